"""``merge`` as a command: exit 9 and no output on a conflict that nobody decided, and the conflicts in the JSON."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli.merge import FIELDS
from bundler.testing.trees import snapshot, synthetic_kernel

A, B, S = "A" * 52, "B" * 52, "S" * 52


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Two bundles: one kernel each, one shared, and two keys that they have different builds of."""
    made = []
    for number, name in enumerate(("one", "two")):
        root = tmp_path / name
        synthetic_kernel(root, "own", key=name.upper().ljust(52, "X"), source_file="/src/k.py")
        synthetic_kernel(root, "shared", key=S, source_file="/src/k.py")
        for key in (A, B):
            synthetic_kernel(root, "clash", key=key, seed=number + 1, source_file="/src/k.py")
        made.append(tmp_path / f"{name}.tbundle")
        bundler.pack([f"triton={root}"], made[-1])
    return made


def test_a_conflict_without_a_choice_is_9_and_writes_nothing(
    cli: Any, parts: list[Path], tmp_path: Path, leftovers: Any
) -> None:
    out = tmp_path / "all.tbundle"
    for old in (None, b"old"):
        if old is not None:
            out.write_bytes(old)
        run = cli("merge", *parts, "-o", out, "--json")
        assert run.code == 9
        rows = [
            {"entry": f"triton/{key}", "sources": [str(part) for part in parts], "action": "refused"} for key in (A, B)
        ]
        assert run.json["conflicts"] == run.json["error"]["conflicts"] == rows
        assert run.json["error"]["entry"] == f"triton/{A}"
        assert (out.read_bytes() if out.exists() else None) == old
    words = cli("merge", *parts, "-o", out)
    assert words.code == 9 and "1 more entries differ" in words.err and f"triton/{B}" in words.text
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("policy", ["first", "last", "lowest"])
def test_a_choice_keeps_one_build_whole(cli: Any, conform: Any, parts: list[Path], tmp_path: Path, policy: str) -> None:
    """The loss: launches with the binary of one rank and the shared-memory size of another."""
    out = tmp_path / "all.tbundle"
    run = cli("merge", *parts, "-o", out, "--on-conflict", policy, "--json")
    assert run.code == 0
    conform(run.json, FIELDS)
    assert {row["entry"] for row in run.json["conflicts"]} == {f"triton/{A}", f"triton/{B}"}
    assert {row["action"] for row in run.json["conflicts"]} == {policy}
    assert run.json["entries"] == 5
    bundler.unpack(out, into=tmp_path / "merged")
    merged = snapshot(tmp_path / "merged")
    for key in (A, B):
        kept = []
        for name in ("one", "two"):
            files = {p: d for p, d in snapshot(tmp_path / name).items() if p.startswith(key) and "__grp__" not in p}
            kept.append(files == {p: d for p, d in merged.items() if p.startswith(key) and "__grp__" not in p})
        assert kept.count(True) == 1
        if policy != "lowest":
            assert kept == [policy == "first", policy == "last"]


def test_the_order_changes_no_byte(cli: Any, parts: list[Path], tmp_path: Path) -> None:
    made = set()
    for number, order in enumerate(permutations(parts)):
        out = tmp_path / f"{number}.tbundle"
        assert cli("merge", *order, "-o", out, "--on-conflict", "lowest").code == 0
        made.add(out.read_bytes())
    assert len(made) == 1


def test_four_node_roots_unite(cli: Any, tmp_path: Path) -> None:
    bundles = []
    for node in range(4):
        for kernel in range(node, node + 3):  # each kernel is on up to three nodes
            synthetic_kernel(tmp_path / f"n{node}", "k", key=str(kernel).rjust(52, "K"), source_file="/src/k.py")
        bundles.append(tmp_path / f"n{node}.tbundle")
        bundler.pack([f"triton={tmp_path / f'n{node}'}"], bundles[-1])
    run = cli("merge", *bundles, "-o", tmp_path / "all.tbundle", "--json")
    assert (run.code, run.json["entries"], run.json["conflicts"]) == (0, 6, [])


def test_a_union_goes_to_stdout_and_a_bundle_comes_from_a_pipe(process: Any, parts: list[Path], tmp_path: Path) -> None:
    run = process("merge", "-", parts[1], "-o", "-", "--on-conflict", "first", input=parts[0].read_bytes())
    assert run.code == 0 and "merged: 5 entries" in run.err
    (tmp_path / "all.tbundle").write_bytes(run.out)
    assert bundler.verify(tmp_path / "all.tbundle").entries == 5


@pytest.mark.parametrize("argv", [["-o", "x"], ["a"], ["-", "-", "-o", "x"], ["a", "-o", "x", "--level", "99"]])
def test_a_call_that_cannot_be_is_2(cli: Any, tmp_path: Path, argv: list[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("merge", *argv).code == 2
    assert not (tmp_path / "x").exists()


def test_bundles_that_cannot_be_read_have_their_own_codes(
    cli: Any, parts: list[Path], flipped: Path, tmp_path: Path
) -> None:
    out = tmp_path / "all.tbundle"
    (tmp_path / "text").write_text("text")
    for other, code in ((flipped, 4), (tmp_path / "text", 3), (tmp_path / "absent", 12)):
        assert cli("merge", parts[0], other, "-o", out, "--on-conflict", "first").code == code
        assert not out.exists()
