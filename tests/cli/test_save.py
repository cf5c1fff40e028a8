"""``save`` as a command: the JSON, the words, and an exit code for every way to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli.save import FIELDS
from bundler.stores import open_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store?deadline=0"


def test_the_json_is_what_is_documented_and_nothing_new_is_not_uploaded(
    cli: Any, conform: Any, store: str, triton: Path
) -> None:
    argv = ["save", "--store", store, "--key", "k", f"triton={triton}", "--json"]
    first, second = cli(*argv), cli(*argv)
    for run in (first, second):
        assert run.code == 0 and run.err == ""
        conform(run.json, FIELDS)
    assert (first.json["uploaded"], first.json["entries"], first.json["added"]) == (True, 3, 3)
    assert (second.json["uploaded"], second.json["entries"], second.json["added"]) == (False, 3, 0)
    assert first.json["content_digest"] == second.json["content_digest"]
    assert first.json["content_digest"] == bundler.verify(open_store(store).get("k") or b"").content_digest


def test_the_words(cli: Any, store: str, triton: Path) -> None:
    argv = ["save", "--store", store, "--key", "k", f"triton={triton}"]
    assert "read-only: nothing was uploaded; k would have got 3 new entries" in cli(*argv, "--readonly").lines
    assert cli(*argv).lines[0].startswith("saved: k, 3 new entries, 3 entries in ")
    assert cli(*argv).lines[0] == "nothing new: k has 3 entries"
    assert cli(*argv, "--quiet").text == ""


def test_without_roots_the_usual_places_are_saved(cli: Any, store: str, home: Path, triton: Path) -> None:
    empty = cli("save", "--store", store, "--key", "k", "--json")
    assert (empty.code, empty.json["uploaded"], empty.json["content_digest"]) == (0, False, None)
    triton.rename(home / "triton")
    assert cli("save", "--store", store, "--key", "k", "--json").json["entries"] == 3


def test_a_size_drops_entries_and_names_them(cli: Any, store: str, triton: Path) -> None:
    argv = ["save", "--store", store, "--key", "k", f"triton={triton}", "--json"]
    whole = cli(*argv, "--readonly").json
    assert whole["would_upload"]
    run = cli(*argv, "--max-size", "20KB")
    assert run.code == 0 and run.json["bytes_stored"] <= 20_000
    assert run.json["entries"] + len(run.json["dropped"]) == 3 and run.json["dropped"][0]["entry"].startswith("triton/")
    assert cli(*argv, "--max-size", "10").code == 2
    inspected = cli("inspect", f"{store.partition('?')[0]}/k")
    assert inspected.code == 0 and "last_used" not in inspected.text


@pytest.mark.parametrize("text", ["x", "-1", "5 apples", "1e3", "", "5G"])
def test_a_size_that_is_none_is_2(cli: Any, store: str, text: str) -> None:
    run = cli("save", "--store", store, "--key", "k", "--max-size", text)
    assert run.code == 2 and "500MB" in run.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--key", "k"], 2),
        (["--store", "nonsense://x", "--key", "k"], 2),
        (["--store", "file:///proc/none", "--key", "k"], 10),
        (["--store", "STORE", "--key", "a b"], 10),
        (["--store", "STORE", "--key", "k", "--level", "99"], 2),
        (["--store", "STORE", "--key", "k", "nokind=/x"], 2),
    ],
)
def test_bad_input_has_a_code(cli: Any, store: str, triton: Path, options: list[str], code: int) -> None:
    argv = [store if each == "STORE" else each for each in options]
    run = cli("save", *argv, *([] if argv[-1].startswith("nokind") else [f"triton={triton}"]), "--json")
    assert run.code == code and run.json["error"]["message"]


def test_wrong_credentials_are_10(cli: Any, bucket: str, s3_server: str, triton: Path, monkeypatch: Any) -> None:
    """moto takes any credentials, so they are left out altogether, and those of the machine are out of reach."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/none")
    url = f"s3://{bucket}?endpoint={s3_server}&deadline=0&proxy_url=http://127.0.0.1:9"
    run = cli("save", "--store", url, "--key", "k", f"triton={triton}", "--json")
    assert run.code == 10 and run.json["error"]["store"] == f"s3://{bucket}"


def test_a_foreign_object_is_10_and_stays(cli: Any, store: str, triton: Path) -> None:
    open_store(store).put("k", b"x" * 1000)
    run = cli("save", "--store", store, "--key", "k", f"triton={triton}", "--json")
    assert run.code == 10 and "no bundle" in run.json["error"]["reason"]
    assert open_store(store).get("k") == b"x" * 1000
