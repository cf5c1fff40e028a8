"""The JSON of every command: the fields that are documented, in their types, and no others."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundler.cli import COMMANDS, program
from bundler.cli._command import Command
from bundler.cli._fields import Field, conforms, describe

# Promised to tools: these fields never go away.
PROMISED = {
    "pack": "bundle content_digest entries files bytes_in bytes_out skipped seconds",
    "unpack": "restored unchanged equivalent repaired kept conflicts damaged skipped files_written bytes_written "
    "seconds env",
    "verify": "ok entries problems",
    "inspect": "format_version content_digest bundle_size content_size profile targets roots facts foreign_paths "
    "entries signed_by",
    "diff": "added removed changed equivalent",
    "repair": "restored unchanged equivalent repaired kept conflicts damaged skipped files_written bytes_written "
    "seconds env remaining",
    "run": "exit_code restored used compiled new_entries bundle content_digest seconds_saved processes",
    "export": "exit_code restored used compiled new_entries bundle content_digest seconds_saved processes",
    "merge": "bundle content_digest entries files bytes_in bytes_out skipped seconds conflicts",
    "key": "key prefixes",
    "restore": "hit matched_key restored unchanged equivalent repaired kept conflicts damaged skipped files_written "
    "bytes_written seconds env",
    "save": "uploaded entries added content_digest",
    "demo": "ok seconds_saved",
}
PROMISED_ROWS = {
    ("pack", "skipped"): [{"path": str, "reason": str}],
    ("unpack", "conflicts"): [{"entry": str, "action": str}],
    ("unpack", "damaged"): [{"entry": str, "file": str, "reason": str}],
    ("unpack", "skipped"): [{"entry": str, "reason": str}],
    ("unpack", "env"): {str: str},
    ("merge", "conflicts"): [{"entry": str, "sources": [str], "action": str}],
    ("verify", "problems"): [{"code": str, "entry": str, "file": str, "detail": str}],
    ("repair", "remaining"): [{"code": str, "entry": str, "file": str, "detail": str}],
    ("run", "compiled"): [{"kind": str, "name": str}],
    ("export", "compiled"): [{"kind": str, "name": str}],
    ("diff", "changed"): [{"entry": str, "files": [str]}],
    ("diff", "equivalent"): [{"entry": str, "files": [str]}],
    ("inspect", "targets"): [str],
    ("inspect", "foreign_paths"): [{"entry": str, "file": str, "path": str}],
}


def fields(name: str) -> dict[str, Field]:
    command = program.get_command(None, name)  # type: ignore[arg-type]
    assert isinstance(command, Command)
    return dict(command.fields)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_promised_is_documented(name: str) -> None:
    assert set(PROMISED.get(name, "").split()) <= fields(name).keys()
    assert all(field.text.strip() for field in fields(name).values())


@pytest.mark.parametrize(("name", "field"), PROMISED_ROWS)
def test_rows_are_documented_as_promised(name: str, field: str) -> None:
    assert fields(name)[field].shape == PROMISED_ROWS[name, field]


def test_inspect_lists_entries_and_roots_as_promised() -> None:
    (entry,) = fields("inspect")["entries"].shape
    assert {"root", "unit", "key", "name", "target", "files"} <= entry.keys()
    assert {"name", "size", "digest"} <= entry["files"][0].keys()
    (root,) = fields("inspect")["roots"].shape
    assert {"name", "kind", "path", "entries", "files", "bytes"} <= root.keys()


SHAPES = {
    "string": ("x", str, True),
    "no string": (1, str, False),
    "integer": (1, int, True),
    "a boolean is no integer": (True, int, False),
    "an integer is a number": (1, float, True),
    "a boolean is no number": (True, float, False),
    "null or string": (None, (str, None), True),
    "neither null nor string": (1, (str, None), False),
    "zero is not null": (0, None, False),
    "zero is no boolean": (0, bool, False),
    "list": (["x"], [str], True),
    "list with a stranger": (["x", 1], [str], False),
    "object": ({"a": 1}, {"a": int}, True),
    "object with another name": ({"a": 1, "b": 1}, {"a": int}, False),
    "object with any names": ({"a": 1, "b": 1}, {str: int}, True),
    "anything": ([{"a": None}], object, True),
}


@pytest.mark.parametrize(("value", "shape", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_a_value_conforms_to_its_shape_only(value: object, shape: Any, expected: bool) -> None:
    assert conforms(value, shape) is expected


def test_a_shape_is_described_in_words() -> None:
    shape = [{"a": (str, None), "b": {str: int}, "c": [float]}]
    assert describe(shape) == "list of {a: string or null, b: object of integer, c: list of number}"


def _every_run(triton: Path, bundle: Path, both: Path, flipped: Path, tmp_path: Path) -> dict[str, list[object]]:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "x.json").write_text("{")
    damaged = tmp_path / "into" / "triton"
    return {
        "pack": ["pack", triton, "-o", tmp_path / "new.tbundle"],
        "pack, with something skipped": ["pack", triton, f"generic={broken}", "-o", tmp_path / "new2.tbundle"],
        "unpack": ["unpack", both, "--into", tmp_path / "into"],
        "unpack, again": ["unpack", both, "--into", tmp_path / "into"],
        "unpack, dry": ["unpack", both, "--into", tmp_path / "dry", "--dry-run"],
        "unpack, several": ["unpack", both, bundle, "--into", tmp_path / "into", "--target", "cuda:90"],
        "unpack, damaged": ["unpack", flipped, "--into", tmp_path / "salvaged", "--salvage"],
        "verify": ["verify", bundle],
        "verify, damaged": ["verify", flipped],
        "verify, a root": ["verify", "--root", f"triton={triton}"],
        "inspect": ["inspect", both],
        "diff": ["diff", bundle, both],
        "repair": ["repair", bundle, "--root", f"triton={damaged}"],
    }


def test_every_command_prints_what_is_documented(
    cli: Any,
    conform: Callable[..., None],
    triton: Path,
    bundle: Path,
    both: Path,
    flipped: Path,
    tmp_path: Path,
) -> None:
    for label, argv in _every_run(triton, bundle, both, flipped, tmp_path).items():
        run = cli(*argv, "--json")
        assert "error" not in run.json, (label, run)
        assert run.err == "", label
        conform(run.json, fields(str(argv[0])))


def _text(text: str) -> bytes:
    raw = base64.b64encode(text.encode())
    return len(raw).to_bytes(8, "big") + raw


def test_a_mega_cache_is_inspected_in_the_same_fields_and_packed(
    cli: Any, conform: Callable[..., None], tmp_path: Path
) -> None:
    content = pickle.dumps({"graph": b"g" * 500})
    body = (1).to_bytes(8, "big") + _text("inductor") + (1).to_bytes(8, "big")
    body += _text("f" + "a" * 51) + len(content).to_bytes(8, "big") + content
    (tmp_path / "cache.mega").write_bytes(zlib.crc32(body).to_bytes(4, "big") + body)
    run = cli("inspect", tmp_path / "cache.mega", "--json")
    conform(run.json, fields("inspect"))
    assert (run.json["format_version"], len(run.json["entries"])) == ("mega", 1)
    assert cli("inspect", tmp_path / "cache.mega").lines[0] == "format: mega"
    packed = cli("pack", f"mega={tmp_path / 'cache.mega'}", "-o", tmp_path / "m.tbundle", "--json")
    assert packed.json["entries"] == 1


def test_facts_hold_no_floats_and_entries_are_listed_whole(cli: Any, both: Path) -> None:
    found = cli("inspect", both, "--json").json
    assert json.loads(json.dumps(found["facts"]), parse_float=lambda text: pytest.fail(text)) == found["facts"]
    assert sum(root["entries"] for root in found["roots"]) == len(found["entries"])
    assert sum(root["files"] for root in found["roots"]) == sum(len(entry["files"]) for entry in found["entries"])
    assert all(file["digest"].startswith("sha256:") for entry in found["entries"] for file in entry["files"])
