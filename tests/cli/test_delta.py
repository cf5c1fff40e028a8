"""``pack --base`` and the commands that take a delta together with its base."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bundler.testing.trees import synthetic_kernel

A, B, C = "A" * 52, "B" * 52, "C" * 52


@pytest.fixture
def pair(cli: Any, tmp_path: Path) -> tuple[Path, Path]:
    """A base of A and B, and a delta of a tree that lost B and has C."""
    tree, old, delta = tmp_path / "tree", tmp_path / "old.tbundle", tmp_path / "delta.tbundle"
    synthetic_kernel(tree, "k", key=A, seed=1)
    synthetic_kernel(tree, "k", key=B, seed=2)
    assert cli("pack", f"triton={tree}", "-o", old).code == 0
    shutil.rmtree(tree / B)
    synthetic_kernel(tree, "k", key=C, seed=3)
    run = cli("pack", f"triton={tree}", "-o", delta, "--base", old, "--json")
    digest = cli("inspect", old, "--json").json["content_digest"]
    assert (run.json["entries"], run.json["in_base"], run.json["lost"]) == (1, 1, [f"triton/{B}"])
    assert run.json["base"] == digest
    return old, delta


def test_the_words_name_the_base_and_what_was_lost(cli: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, delta = pair
    run = cli("pack", f"triton={tmp_path / 'tree'}", "-o", delta, "--base", old)
    assert "which has 1 entry of the roots already" in run.text and f"triton/{B}" in run.text
    said = cli("inspect", delta).text
    assert "base: sha256:" in said and f"triton/{B}" in said


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_unpack_takes_both_in_any_order(
    cli: Any, pair: tuple[Path, Path], order: tuple[int, int], tmp_path: Path
) -> None:
    run = cli("unpack", *(pair[number] for number in order), "--into", tmp_path / "new", "--json")
    assert (run.code, run.json["restored"]) == (0, 3)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [A, B, C]


def test_a_third_bundle_is_restored_beside_the_pair(cli: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "x").write_text("x")
    assert cli("pack", f"generic={tmp_path / 'g'}", "-o", tmp_path / "g.tbundle").code == 0
    run = cli("unpack", pair[0], tmp_path / "g.tbundle", pair[1], "--into", tmp_path / "new", "--json")
    assert (run.code, run.json["restored"]) == (0, 4)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["generic", "triton"]


def test_one_of_the_two_may_come_through_a_pipe(process: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    for number in (0, 1):
        names = ["-" if place == number else pair[place] for place in (0, 1)]
        run = process("unpack", *names, "--into", tmp_path / f"new{number}", "--json", input=pair[number].read_bytes())
        assert (run.code, run.json["restored"]) == (0, 3)


def test_a_delta_alone_or_with_another_bundle_is_refused(cli: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    old, delta = pair
    assert cli("pack", f"triton={tmp_path / 'tree'}", "-o", tmp_path / "other.tbundle").code == 0
    alone = cli("unpack", delta, "--into", tmp_path / "new", "--json")
    assert (alone.code, alone.json["error"]["type"]) == (2, "MissingBaseError")
    assert alone.json["error"]["base"] == cli("inspect", old, "--json").json["content_digest"]
    wrong = cli("unpack", tmp_path / "other.tbundle", delta, "--into", tmp_path / "new", "--json")
    assert (wrong.code, wrong.json["error"]["type"]) == (4, "WrongBaseError")
    assert not (tmp_path / "new").exists()


def test_verify_looks_at_what_is_in_the_base_when_it_is_named(cli: Any, pair: tuple[Path, Path]) -> None:
    old, delta = pair
    run = cli("verify", delta, "--base", old, "--json")
    assert (run.code, run.json["entries"], run.json["files_in_base"]) == (0, 3, 0)
    assert cli("verify", delta, "--expect-digest", run.json["content_digest"]).code == 0
    data = bytearray(old.read_bytes())
    data[-1] ^= 1
    old.write_bytes(data)
    assert cli("verify", delta).code == 0
    assert cli("verify", delta, "--base", old).code == 4
    assert cli("verify", "--root", old.parent, "--base", old).code == 2


def test_verify_says_what_it_did_not_look_at(cli: Any, tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "tree", "k", key=A, seed=1)
    cli("pack", f"triton={tmp_path / 'tree'}", "-o", tmp_path / "old.tbundle")
    synthetic_kernel(tmp_path / "tree", "k", key=B, seed=1)
    cli("pack", f"triton={tmp_path / 'tree'}", "-o", tmp_path / "d.tbundle", "--base", tmp_path / "old.tbundle")
    run = cli("verify", tmp_path / "d.tbundle")
    assert run.code == 0 and "not looked at:" in run.text and "name it with --base" in run.text
    assert cli("verify", tmp_path / "d.tbundle", "--json").json["files_in_base"] > 0


def test_merge_makes_a_whole_bundle_of_the_two(cli: Any, pair: tuple[Path, Path], tmp_path: Path) -> None:
    run = cli("merge", *pair, "-o", tmp_path / "whole.tbundle", "--json")
    assert (run.code, run.json["entries"]) == (0, 3)
    assert cli("unpack", tmp_path / "whole.tbundle", "--into", tmp_path / "new").code == 0


def test_a_run_with_a_delta_alone_is_a_cold_start_that_says_why(
    cli: Any, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    delta = pair[1].read_bytes()
    run = cli("run", "--bundle", pair[1], "--save", "--root-dir", tmp_path / "roots", "--", "true")
    assert (
        run.code == 0
        and "a cold start" in run.err
        and "is not written" in run.err
        and "is a delta, and needs the bundle" in run.err
    )
    assert pair[1].read_bytes() == delta  # and is not written over


def test_a_base_that_lies_in_the_root_is_not_packed(cli: Any, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    synthetic_kernel(tree, "k", key=A)
    assert cli("pack", f"triton={tree}", "-o", tree / "old.tbundle").code == 0
    run = cli("pack", f"triton={tree}", "-o", tree / "d.tbundle", "--base", tree / "old.tbundle", "--json")
    assert (run.code, run.json["entries"], run.json["in_base"]) == (0, 0, 1)
