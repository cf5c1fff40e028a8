"""``pack --base``: what a base has is left out, and the two together restore what a whole bundle would."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bundler
from bundler.emit import EmitOptions, OnConflict
from bundler.errors import (
    BundlerError,
    ConflictError,
    DigestMismatchError,
    MissingBaseError,
    NothingToPackError,
    UsageError,
    WrongBaseError,
)
from bundler.merging import merge
from bundler.packing import PackReport
from bundler.reading import paired
from bundler.remote import pull, push
from bundler.testing.trees import rehome, snapshot, synthetic_inductor_root, synthetic_kernel

A, B, C, D = ("A" * 52, "B" * 52, "C" * 52, "D" * 52)


class Case:
    """A base and a tree that went on from it: A is the same, B was built anew, C was lost, D is new."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tree = place / "tree"
        for key, seed in ((A, 1), (B, 2), (C, 3)):
            synthetic_kernel(self.tree, "k", key=key, seed=seed)
        self.old = place / "old.tbundle"
        bundler.pack([f"triton={self.tree}"], self.old)
        shutil.rmtree(self.tree / B)
        synthetic_kernel(self.tree, "k", key=B, seed=20)
        shutil.rmtree(self.tree / C)
        synthetic_kernel(self.tree, "k", key=D, seed=1)  # equal sources, so equal IR: contents that the base has
        self.delta = place / "delta.tbundle"

    def pack(self, **options: Any) -> PackReport:
        return bundler.pack([f"triton={self.tree}"], self.delta, base=self.old, **options)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def keys(bundle: Path) -> list[str]:
    return [entry["key"] for entry in bundler.inspect(bundle)["entries"]]


def files(root: Path) -> dict[str, bytes]:
    """The files below a root, but for group files, which name the place where they lie."""
    return {path: data for path, data in snapshot(root).items() if "__grp__" not in path}


def test_a_delta_holds_what_is_new_or_different(case: Case) -> None:
    report = case.pack()
    assert (report.entries, report.in_base, report.lost) == (2, 1, (f"triton/{C}",))
    assert report.base == bundler.inspect(case.old)["content_digest"]
    assert keys(case.delta) == [B, D]
    said = bundler.inspect(case.delta)["base"]
    assert said["content_digest"] == report.base and said["lost"] == [f"triton/{C}"]
    assert said["files"] > 0  # of D, whose files are those of A
    assert bundler.inspect(case.old)["base"] is None


def test_base_and_delta_restore_the_tree_and_what_it_lost(case: Case) -> None:
    case.pack()
    report = bundler.unpack(case.delta, base=case.old, into=case.place / "new")
    assert (report.restored, report.kept) == (4, 0)
    restored = files(case.place / "new")
    assert {path: data for path, data in restored.items() if not path.startswith(C)} == files(case.tree)
    assert {path.split("/")[0] for path in restored} == {A, B, C, D}
    assert bundler.verify_root(f"triton={case.place / 'new'}").ok
    assert bundler.unpack(case.delta, base=case.old, into=case.place / "new").files_written == 0


def test_the_base_never_comes_before_its_delta(case: Case) -> None:
    """The loss: the old build of a kernel under the key of the new one, because it was restored first and kept."""
    case.pack()
    options = EmitOptions(on_conflict=OnConflict.FAIL)
    bundler.unpack(case.delta, base=case.old, into=case.place / "new", options=options)
    assert files(case.place / "new" / B) == files(case.tree / B)


def test_what_is_in_the_tree_already_is_never_deleted(case: Case) -> None:
    case.pack()
    there = case.place / "there"
    bundler.unpack(case.old, into=there)
    report = bundler.unpack(case.delta, base=case.old, into=there, options=EmitOptions(on_conflict=OnConflict.REPLACE))
    assert (report.restored, report.unchanged) == (2, 2)
    assert (there / C / "k.cubin").exists()


def test_a_base_is_told_by_what_it_holds_not_by_its_bytes(case: Case) -> None:
    case.pack()
    again = case.place / "again.tbundle"
    merge([case.old], again, level=1)
    assert again.read_bytes() != case.old.read_bytes()
    assert bundler.unpack(case.delta, base=again, into=case.place / "new").restored == 4


def test_an_equivalent_build_is_not_packed_again(tmp_path: Path) -> None:
    """The loss: a delta as large as its base, since no two compiles agree on their debug sections."""
    synthetic_kernel(tmp_path / "a", "k", key=A, source_file="/here/k.py")
    synthetic_kernel(tmp_path / "b", "k", key=A, source_file="/somewhere/else/k.py")
    bundler.pack([f"triton={tmp_path / 'a'}"], tmp_path / "old.tbundle")
    report = bundler.pack([f"triton={tmp_path / 'b'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    assert (report.entries, report.in_base, report.lost) == (0, 1, ())
    assert bundler.unpack(tmp_path / "d.tbundle", base=tmp_path / "old.tbundle", into=tmp_path / "c").restored == 1


def test_a_full_tree_over_a_runtime_base_is_packed_for_the_files_that_are_missing(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "a", "k", key=A)
    old, new = tmp_path / "old.tbundle", tmp_path / "new.tbundle"
    bundler.pack([f"triton={tmp_path / 'a'}"], old, profile="runtime")
    assert bundler.pack([f"triton={tmp_path / 'a'}"], new, base=old).entries == 1
    assert bundler.inspect(new)["base"]["files"] == 2  # the binary and its metadata
    bundler.unpack(new, base=old, into=tmp_path / "b")
    assert files(tmp_path / "b") == files(tmp_path / "a")
    # The other way round a launch finds all it reads.
    bundler.pack([f"triton={tmp_path / 'a'}"], old)
    assert bundler.pack([f"triton={tmp_path / 'a'}"], new, base=old, profile="runtime").entries == 0


def test_graphs_copy_kernels_that_only_the_base_has(tmp_path: Path) -> None:
    """The loss: 15 MB of kernel copies in each new graph entry, stored again in each delta."""
    root = tmp_path / "root"
    kernel = synthetic_kernel(root / "triton" / "0", "k", key=A)
    bundler.pack([f"inductor={root}"], tmp_path / "old.tbundle")
    members = [path.read_bytes() for path in sorted(kernel.iterdir()) if "__grp__" not in path.name]
    for number in range(2):
        graph = root / "fxgraph" / "ab" / f"fabc{number}"
        graph.mkdir(parents=True)
        (graph / "hash").write_bytes(pickle.dumps([number, members], protocol=4))
    report = bundler.pack([f"inductor={root}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    whole = bundler.pack([f"inductor={root}"], tmp_path / "whole.tbundle")
    assert report.entries == 2 and sum(map(len, members)) > 10_000
    alone = bundler.verify(tmp_path / "d.tbundle")  # the graphs copy from the base: they cannot be looked at
    assert alone.ok and alone.files_in_base == 2
    assert bundler.verify(tmp_path / "d.tbundle", base=tmp_path / "old.tbundle").files_in_base == 0
    assert report.bytes_out * 4 < whole.bytes_out
    bundler.unpack(tmp_path / "d.tbundle", base=tmp_path / "old.tbundle", into=tmp_path / "new")
    assert files(tmp_path / "new") == files(root)


def test_a_union_of_the_two_is_a_whole_bundle(case: Case) -> None:
    case.pack()
    report = merge([case.delta, case.old], case.place / "union.tbundle")
    assert (report.entries, report.conflicts) == (4, ())
    assert bundler.inspect(case.place / "union.tbundle")["base"] is None
    bundler.unpack(case.place / "union.tbundle", into=case.place / "one")
    bundler.unpack(case.delta, base=case.old, into=case.place / "two")
    assert files(case.place / "one") == files(case.place / "two")


def test_nothing_new_is_a_delta_of_no_entries(case: Case) -> None:
    bundler.pack([f"triton={case.tree}"], case.old)
    report = case.pack()
    assert (report.entries, report.in_base, report.bytes_in) == (0, 3, 0) and report.bytes_out < 1000
    assert bundler.unpack(case.delta, base=case.old, into=case.place / "new").restored == 3


def test_what_was_left_out_for_a_reason_is_not_lost(case: Case) -> None:
    (case.tree / A / "k.cubin").write_bytes(b"")
    report = case.pack(exclude=[f"{C}*"])
    assert report.lost == () and [skipped.path for skipped in report.skipped] == [f"triton/{A}"]


def test_what_lies_below_something_that_was_left_out_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "r" / "x").mkdir(parents=True)
    for name in ("x/a", "b"):
        (tmp_path / "r" / name).write_text(name)
    bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "old.tbundle")
    shutil.move(tmp_path / "r" / "x", tmp_path / "x")
    (tmp_path / "r" / "x").symlink_to(tmp_path / "x")
    report = bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    assert report.lost == () and [skipped.path for skipped in report.skipped] == ["generic/x"]


def test_roots_that_were_not_given_are_not_lost(tmp_path: Path) -> None:
    synthetic_inductor_root(tmp_path / "i")
    synthetic_kernel(tmp_path / "t", "k", key=A)
    bundler.pack([f"inductor={tmp_path / 'i'}", f"triton={tmp_path / 't'}"], tmp_path / "old.tbundle")
    report = bundler.pack([f"triton={tmp_path / 't'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    assert (report.entries, report.in_base, report.lost) == (0, 1, ())


def test_a_tree_that_moved_is_the_same(case: Case) -> None:
    bundler.pack([f"triton={case.tree}"], case.old)
    rehome(shutil.copytree(case.tree, case.place / "moved"), str(case.place / "moved"))
    assert bundler.pack([f"triton={case.place / 'moved'}"], case.delta, base=case.old).entries == 0


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_delta_alone_is_refused_before_anything_is_written(case: Case) -> None:
    report = case.pack()
    calls = {
        "unpack": lambda: bundler.unpack(case.delta, into=case.place / "new"),
        "repair": lambda: bundler.repair(case.delta, f"triton={case.place / 'new'}"),
        "merge": lambda: merge([case.delta], case.place / "union.tbundle"),
        "diff": lambda: bundler.diff(case.old, case.delta),
        "a base": lambda: bundler.pack([f"triton={case.tree}"], case.place / "x.tbundle", base=case.delta),
    }
    for name, call in calls.items():
        with pytest.raises(MissingBaseError) as caught:
            call()
        assert caught.value.base == report.base, name
    assert sorted(os.listdir(case.place)) == ["delta.tbundle", "old.tbundle", "tree"]


def test_a_wrong_base_is_refused_before_anything_is_written(case: Case) -> None:
    case.pack()
    other = case.place / "other.tbundle"
    bundler.pack([f"triton={case.tree}"], other)
    for call in (
        lambda: bundler.unpack(case.delta, base=other, into=case.place / "new"),
        lambda: merge([other, case.delta], case.place / "union.tbundle"),
        lambda: bundler.verify(case.delta, base=other),
    ):
        with pytest.raises(WrongBaseError) as caught:
            call()
        assert caught.value.exit_code == DigestMismatchError.exit_code
    assert not (case.place / "new").exists() and not (case.place / "union.tbundle").exists()


def test_a_base_for_a_whole_bundle_is_refused(case: Case) -> None:
    with pytest.raises(UsageError, match="needs no base"):
        bundler.unpack(case.old, base=case.old, into=case.place / "new")


def test_two_deltas_of_one_base_are_refused_together(case: Case) -> None:
    case.pack()
    shutil.copy(case.delta, case.place / "second.tbundle")
    with pytest.raises(UsageError, match="deltas of one base"):
        paired([case.old, case.delta, case.place / "second.tbundle"])


def test_a_damaged_base_is_found_before_a_delta_is_made_of_it(case: Case) -> None:
    """The loss: a delta that can never be restored, found out when it is needed."""
    data = bytearray(case.old.read_bytes())
    data[-1] ^= 1
    case.old.write_bytes(data)
    with pytest.raises(DigestMismatchError):
        case.pack()
    assert not case.delta.exists()


def test_the_base_is_not_written_over(case: Case) -> None:
    before = case.old.read_bytes()
    os.link(case.old, case.place / "same.tbundle")
    with pytest.raises(UsageError, match="is the base itself"):
        bundler.pack([f"triton={case.tree}"], case.place / "same.tbundle", base=case.old)
    assert case.old.read_bytes() == before


def test_a_root_of_another_kind_is_refused(case: Case) -> None:
    with pytest.raises(UsageError, match="is of kind generic here and of kind triton in"):
        bundler.pack([f"triton:generic={case.tree}"], case.delta, base=case.old)


def test_a_file_where_the_base_has_a_directory_is_refused_when_it_is_packed(tmp_path: Path) -> None:
    """The loss: a delta that no restore could carry out."""
    (tmp_path / "r" / "a").mkdir(parents=True)
    (tmp_path / "r" / "a" / "b").write_text("x")
    bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "old.tbundle")
    shutil.rmtree(tmp_path / "r" / "a")
    (tmp_path / "r" / "a").write_text("y")
    with pytest.raises(UsageError, match="pack the tree whole"):
        bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")


def test_an_empty_tree_is_nothing_to_pack_whatever_the_base_has(case: Case) -> None:
    shutil.rmtree(case.tree)
    case.tree.mkdir()
    with pytest.raises(NothingToPackError):
        case.pack()


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_changes_while_it_is_compared_is_read_again(
    case: Case, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """The loss: a build taken for the base's after another one came in its place."""
    from bundler import builds

    shutil.rmtree(case.tree / B)
    synthetic_kernel(case.tree, "k", key=B, seed=2, source_file="/elsewhere/k.py")
    real, calls = builds._read_file, []

    def changing(draft: Any, file: Any) -> bytes:
        if not calls:
            shutil.rmtree(case.tree / B)
            if not gone:
                synthetic_kernel(case.tree, "k", key=B, seed=77)
        calls.append(file.name)
        if file.relocation is None:
            file.data = None  # as in a large tree
        return real(draft, file)

    monkeypatch.setattr(builds, "_read_file", changing)
    report = case.pack()
    assert (f"triton/{B}" in report.lost, B in keys(case.delta)) == (gone, not gone)
    bundler.unpack(case.delta, base=case.old, into=case.place / "new")
    assert gone or files(case.place / "new" / B) == files(case.tree / B)


# --- stores, pipes, and all trees ------------------------------------------------------------------------------------


def test_a_delta_travels_through_a_store(case: Case) -> None:
    case.pack()
    url = f"file://{case.place}/store"
    for name in ("old", "delta"):
        push(case.place / f"{name}.tbundle", url, name)
        pull(url, name, case.place / f"{name}2.tbundle")
    assert bundler.unpack(
        case.place / "delta2.tbundle", base=case.place / "old2.tbundle", into=case.place / "n"
    ).restored
    with pytest.raises(MissingBaseError):
        pull(url, "delta", case.place / "some.tbundle", only=[f"*{D}"])


def test_open_files_and_bytes_serve_as_well_as_paths(case: Case) -> None:
    case.pack()
    with open(case.old, "rb") as old, open(case.delta, "rb") as delta:
        pairs = paired([old, delta])
        assert pairs == [(delta, old)]
        assert bundler.unpack(delta, base=old, into=case.place / "one").restored == 4
    behind = case.place / "behind"
    behind.write_bytes(b"other bytes" + case.delta.read_bytes())
    with open(behind, "rb") as delta, open(case.old, "rb") as old:
        delta.seek(11)
        assert merge([delta, old], io.BytesIO()).entries == 4
    blobs = [case.old.read_bytes(), case.delta.read_bytes()]
    assert paired(blobs) == [(blobs[1], blobs[0])]
    assert merge(blobs, io.BytesIO()).entries == 4


Trees = st.dictionaries(st.sampled_from(["a", "b", "c", "d/a", "d/b"]), st.binary(max_size=3), min_size=1)


def _write(root: Path, tree: dict[str, bytes]) -> None:
    for path, data in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data * 200)


@given(Trees, Trees)
def test_base_and_delta_are_the_old_tree_with_the_new_one_over_it(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    with TemporaryDirectory() as name:
        place = Path(name)
        _write(place / "old", old)
        _write(place / "new", new)
        base, delta = io.BytesIO(), io.BytesIO()
        bundler.pack([f"r:generic={place / 'old'}"], base)
        report = bundler.pack([f"r:generic={place / 'new'}"], delta, base=base.getvalue())
        assert report.lost == tuple(f"r/{path}" for path in sorted(old.keys() - new.keys()))
        assert report.entries == sum(old.get(path) != data for path, data in new.items())
        bundler.unpack(delta.getvalue(), base=base.getvalue(), into=place / "there")
        assert snapshot(place / "there") == {path: data * 200 for path, data in {**old, **new}.items()}


def test_every_error_of_a_pair_is_one_of_ours(case: Case) -> None:
    case.pack()
    pair = [case.old.read_bytes(), case.delta.read_bytes()]
    for which, data in enumerate(pair):
        for at in range(0, len(data), max(1, len(data) // 80)):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            old, delta = (bytes(flipped) if number == which else each for number, each in enumerate(pair))
            with pytest.raises(BundlerError):
                bundler.unpack(delta, base=old, into=case.place / "new")
            assert not any((case.place / "new").rglob("*")), (which, at)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_base_that_is_given_twice_counts_once(case: Case, copies: int) -> None:
    """The loss: ``unpack *.tbundle`` with a copy of the base, and the old build wins without a word."""
    case.pack()
    again = case.place / "copy.tbundle"
    shutil.copy(case.old, again)
    given = [again, case.old, case.delta][-1 - copies :]
    (pair,) = paired(given)
    assert pair[0] == case.delta and pair[1] in (case.old, again)


def test_a_delta_that_no_restore_would_accept_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bundler.formats import _rules

    for name, count in (("old", 1), ("new", 30)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"f{number}").write_bytes(bytes(10_000))
    bundler.pack([f"r:generic={tmp_path / 'old'}"], tmp_path / "old.tbundle")
    monkeypatch.setattr(_rules, "MAX_FREE_EXPANSION", 100_000)
    monkeypatch.setattr(_rules, "MAX_EXPANSION", 20)
    with pytest.raises(UsageError, match="could not be restored together"):
        bundler.pack([f"r:generic={tmp_path / 'new'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    assert not (tmp_path / "d.tbundle").exists()


def test_a_file_that_holds_the_digest_of_a_large_one_is_not_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundler.check.WHOLE_LIMIT", 1000)
    large = bytes(5000)
    for name, data in (("old", large), ("new", hashlib.sha256(large).digest())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w").write_bytes(data)
        bundler.pack([f"r:generic={tmp_path / name}"], tmp_path / f"{name}.tbundle")
    report = bundler.pack([f"r:generic={tmp_path / 'new'}"], tmp_path / "d.tbundle", base=tmp_path / "old.tbundle")
    assert report.entries == 1
    with pytest.raises(ConflictError):
        merge([tmp_path / "old.tbundle", tmp_path / "new.tbundle"], io.BytesIO())
