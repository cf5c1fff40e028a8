"""``restore`` as a command: a miss is no failure unless it is told to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli.restore import FIELDS
from bundler.stores import Retry, open_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store?deadline=0"


@pytest.fixture
def saved(store: str, triton: Path) -> str:
    bundler.save(store, "main-1", [f"triton={triton}"])
    return store


def test_hit_and_miss_have_the_same_documented_fields(cli: Any, conform: Any, saved: str, tmp_path: Path) -> None:
    root = f"triton={tmp_path / 'out'}"
    miss = cli("restore", "--store", saved, "--key", "x", root, "--json")
    exact = cli("restore", "--store", saved, "--key", "main-1", root, "--json")
    other = cli("restore", "--store", saved, "--key", "main-2", "--restore-key", "main-", root, "--json")
    for run in (miss, exact, other):
        assert run.code == 0 and run.err == ""
        conform(run.json, FIELDS)
        assert run.json["env"] == {"TRITON_CACHE_DIR": str(tmp_path / "out")}
    assert (miss.json["hit"], miss.json["matched_key"], miss.json["restored"]) == (False, None, 0)
    assert (exact.json["hit"], exact.json["exact"], exact.json["restored"]) == (True, True, 3)
    assert (other.json["hit"], other.json["exact"], other.json["matched_key"]) == (True, False, "main-1")
    assert (other.json["restored"], other.json["unchanged"]) == (0, 3)


def test_a_miss_is_10_where_a_hit_is_required(cli: Any, saved: str) -> None:
    run = cli("restore", "--store", saved, "--key", "x", "--restore-key", "y-", "--require-hit", "--json")
    assert run.code == 10 and run.json["hit"] is False and "no bundle is there" in run.json["error"]["reason"]


def test_a_damaged_bundle_is_a_miss_with_a_warning(cli: Any, saved: str, tmp_path: Path) -> None:
    data = bytearray(open_store(saved).get("main-1") or b"")
    data[-1] ^= 1
    open_store(saved).put("main-1", bytes(data))
    argv = ["restore", "--store", saved, "--key", "main-1", f"triton={tmp_path / 'out'}"]
    run = cli(*argv)
    assert run.code == 0 and run.lines[0] == "miss: main-1" and "warning: main-1 was not restored" in run.err
    required = cli(*argv, "--require-hit", "--json")
    assert required.code == 10 and "digest" in required.json["error"]["reason"]
    assert not (tmp_path / "out").exists()


def test_a_bundle_for_another_gpu_is_a_miss_with_a_warning(cli: Any, saved: str, tmp_path: Path) -> None:
    argv = ["restore", "--store", saved, "--key", "main-1", f"triton={tmp_path / 'out'}", "--json"]
    run = cli(*argv, "--target", "cuda:75")
    assert (run.code, run.json["hit"]) == (0, False) and "cuda:75" in run.json["warnings"][0]
    assert not (tmp_path / "out").exists()
    some = cli(*argv, "--target", "cuda:90")
    assert some.json["restored"] == 2 and len(some.json["skipped"]) == 1


def test_the_words_and_the_environment(cli: Any, saved: str, tmp_path: Path) -> None:
    argv = ["restore", "--store", saved, "--key", "main-1", f"triton={tmp_path / 'out'}"]
    run = cli(*argv)
    assert run.lines[0] == "hit: main-1" and "restored: 3 entries" in run.lines
    assert cli(*argv, "--print-env").lines == [f"export TRITON_CACHE_DIR={tmp_path / 'out'}"]


def test_without_roots_all_goes_to_the_usual_places(cli: Any, saved: str, home: Path) -> None:
    assert cli("restore", "--store", saved, "--key", "main-1", "--json").json["restored"] == 3
    assert len(list((home / "triton").iterdir())) == 3


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--key", "k"], 2),
        (["--store", "STORE"], 2),
        (["--store", "nonsense://x", "--key", "k"], 2),
        (["--store", "STORE", "--key", "a b"], 10),
        (["--store", "STORE", "--key", "k", "--restore-key", ""], 2),
        (["--store", "STORE", "--key", "k", "--restore-key", "a?"], 10),
        (["--store", "STORE", "--key", "k", "nokind=/x"], 2),
        (["--store", "http://127.0.0.1:9/dir?deadline=0", "--key", "k"], 10),
        (["--store", "STORE", "--key", "main-1", "triton=FILE/below"], 12),
    ],
)
def test_bad_input_has_a_code(
    cli: Any, saved: str, tmp_path: Path, options: list[str], code: int, quick_http: None
) -> None:
    (tmp_path / "file").write_text("x")
    argv = [each.replace("STORE", saved).replace("FILE", str(tmp_path / "file")) for each in options]
    run = cli("restore", *argv, "--json")
    assert run.code == code and run.json["error"]["message"]


@pytest.fixture
def quick_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """http URLs have no options, so the deadline is made short here."""
    monkeypatch.setattr(Retry, "run", lambda self, attempt: attempt())


def test_a_foreign_object_is_10(cli: Any, saved: str) -> None:
    open_store(saved).put("foreign", b"x" * 1000)
    assert cli("restore", "--store", saved, "--key", "foreign").code == 10
