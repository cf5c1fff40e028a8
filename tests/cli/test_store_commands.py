"""``push``, ``pull``, ``ls``, ``rm``, ``gc`` and ``inspect`` of a URL as commands."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli._units import duration, size
from bundler.stores import open_store


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def fields(name: str) -> Any:
    return import_module(f"bundler.cli.{name}").FIELDS


def test_a_bundle_goes_there_and_back(cli: Any, conform: Any, store: str, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tbundle"
    first = cli("push", bundle, f"{store}/ci/main.tbundle", "--json")
    conform(first.json, fields("push"))
    assert (first.code, first.json["uploaded"], first.json["key"]) == (0, True, "main.tbundle")
    again = cli("push", bundle, "--store", store, "--key", "ci/main.tbundle", "--json")
    assert (again.code, again.json["uploaded"], again.json["bytes_out"]) == (0, False, 0)
    pulled = cli("pull", f"{store}/ci/main.tbundle", "-o", out, "--json")
    conform(pulled.json, fields("pull"))
    assert out.read_bytes() == bundle.read_bytes()
    part = cli("pull", "--store", store, "--key", "ci/main.tbundle", "-o", out, "--only", "softmax", "--json")
    assert (part.code, part.json["entries"]) == (0, 1)
    assert cli("push", bundle, f"{store}/ci/main.tbundle", "--create").code == 10


def test_words(cli: Any, store: str, bundle: Path, tmp_path: Path) -> None:
    assert "3 entries" in cli("push", bundle, f"{store}/main").text
    assert "not sent: the store has the same bundle" in cli("push", bundle, f"{store}/main").text
    assert "3 entries" in cli("pull", f"{store}/main", "-o", tmp_path / "out").text
    assert cli("ls", store).lines[0].startswith("object\tmain\t")
    assert "freed: 0 bytes" in cli("gc", store, "--max-age", "1d").lines
    assert cli("rm", f"{store}/main").lines == [f"removed: {store}/main"]


def test_a_bundle_is_pushed_from_stdin(process: Any, store: str, bundle: Path) -> None:
    run = process("push", "-", f"{store}/main", input=bundle.read_bytes())
    assert run.code == 0 and open_store(store).get("main") == bundle.read_bytes()


def test_a_url_is_inspected(cli: Any, store: str, bundle: Path) -> None:
    cli("push", bundle, f"{store}/main")
    there, here = cli("inspect", f"{store}/main", "--json"), cli("inspect", bundle, "--json")
    assert there.code == 0 and there.json == here.json
    assert cli("inspect", f"{store}/absent").code == 10


def test_ls_lists_by_prefix(cli: Any, conform: Any, store: str, bundle: Path) -> None:
    for key in ("a-1", "a-2", "b"):
        cli("push", bundle, "--store", store, "--key", key)
    run = cli("ls", "--store", store, "--prefix", "a-", "--json")
    conform(run.json, fields("ls"))
    assert [each["key"] for each in run.json["objects"]] == ["a-1", "a-2"]
    assert run.json["bytes"] == 2 * bundle.stat().st_size
    assert cli("ls", f"{store}/nothing", "--json").json["objects"] == []


def test_rm_removes_bundles_only(cli: Any, conform: Any, store: str, bundle: Path) -> None:
    cli("push", bundle, f"{store}/main")
    open_store(store).put("notes", b"x" * 1000)
    run = cli("rm", "--store", store, "main", "absent", "notes", "--json")
    conform(run.json, fields("rm"))
    assert run.code == 10
    assert run.json == {"removed": ["main"], "missing": ["absent"], "foreign": ["notes"]}
    assert cli("rm", f"{store}/notes", "--force").code == 0
    assert open_store(store).head("notes") is None


def test_gc_keeps_what_it_is_told(cli: Any, conform: Any, store: str, bundle: Path, tmp_path: Path) -> None:
    for day in range(1, 5):
        cli("push", bundle, "--store", store, "--key", f"day{day}")
        old = (tmp_path / "store" / f"day{day}").stat().st_mtime - day * 86_400
        os.utime(tmp_path / "store" / f"day{day}", (old, old))
    dry = cli("gc", store, "--max-age", "60h", "--keep", "day4", "--dry-run", "--json")
    conform(dry.json, fields("gc"))
    assert [each["key"] for each in dry.json["removed"]] == ["day3"] and dry.json["dry_run"]
    assert cli("gc", store, "--max-age", "60h", "--keep", "day4").code == 0
    assert cli("gc", store, "--max-size", f"{bundle.stat().st_size}", "--json").json["kept"] == 1
    assert [info.key for info in open_store(store).list()] == ["day1"]
    assert cli("gc", store).code == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["push", "x.tbundle"],
        ["push", "x.tbundle", "no-url"],
        ["push", "x.tbundle", "file:///s/k", "--key", "k"],
        ["push", "x.tbundle", "--store", "file:///s"],
        ["pull", "file:///s/", "-o", "x"],
        ["pull", "file:///s/k"],
        ["pull", "file:///s/k", "-o", "x", "--expect-digest", "md5:1"],
        ["ls"],
        ["ls", "file:///s", "--store", "file:///s"],
        ["ls", "ftp://x"],
        ["rm", "key"],
        ["rm"],
        ["gc", "--max-size", "1"],
        ["gc", "file:///s", "--max-age", "soon"],
    ],
)
def test_a_call_that_cannot_be_is_2(cli: Any, argv: list[str]) -> None:
    assert cli(*argv).code == 2


def test_a_damaged_bundle_is_not_pushed(cli: Any, store: str, flipped: Path) -> None:
    assert cli("push", flipped, f"{store}/main").code == 4
    assert open_store(store).head("main") is None


def test_what_is_missing_is_10(cli: Any, store: str, tmp_path: Path) -> None:
    run = cli("pull", f"{store}/absent", "-o", tmp_path / "out", "--json")
    assert run.code == 10 and run.json["error"]["type"] == "ObjectNotFoundError"
    assert not (tmp_path / "out").exists()


def test_all_of_it_on_s3(cli: Any, s3_url: str, bundle: Path, tmp_path: Path) -> None:
    base, _, query = s3_url.partition("?")
    assert cli("push", bundle, f"{base}/main?{query}").code == 0
    assert cli("inspect", f"{base}/main?{query}").code == 0
    assert cli("pull", "--store", s3_url, "--key", "main", "-o", tmp_path / "out").code == 0
    assert bundler.verify(tmp_path / "out").ok
    assert len(cli("ls", s3_url, "--json").json["objects"]) == 1
    assert cli("rm", f"{base}/main?{query}").code == 0
    assert cli("ls", s3_url, "--json").json["objects"] == []


def test_units() -> None:
    assert [size(text) for text in ("0", "12", "5MB", "1.5 MiB", "2gib", "3B")] == [
        0,
        12,
        5_000_000,
        1_572_864,
        2 << 30,
        3,
    ]
    assert [duration(text) for text in ("90", "2m", "1.5h", "14d", "1w")] == [90, 120, 5400, 1_209_600, 604_800]
