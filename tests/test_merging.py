"""``merge``: the union by whole entries; the same bytes whatever the order; never a mixture of two builds."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

import bundler
from bundler.errors import ConflictError, UsageError
from bundler.merging import merge
from bundler.testing.trees import snapshot, synthetic_inductor_root, synthetic_kernel

A, B, C = "A" * 52, "B" * 52, "C" * 52


def _pack(root: Path, kind: str = "triton", **options: str) -> Path:
    out = root.with_suffix(".tbundle")
    bundler.pack([f"{kind}={root}"], out, **options)  # type: ignore[arg-type]
    return out


def _keys(bundle: Path) -> list[str]:
    return [entry["key"] for entry in bundler.inspect(bundle)["entries"]]


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Three ranks: one kernel in all of them, one each; equal sources, so equal bytes."""
    for rank, own in enumerate((A, B, C)):
        synthetic_kernel(tmp_path / f"rank{rank}", "shared", key="S" * 52, source_file="/src/k.py")
        synthetic_kernel(tmp_path / f"rank{rank}", "own", key=own, seed=rank, source_file="/src/k.py")
    return [_pack(tmp_path / f"rank{rank}") for rank in range(3)]


def test_the_union_is_the_same_bytes_in_any_order(three: list[Path], tmp_path: Path) -> None:
    made = set()
    for number, order in enumerate(permutations(three)):
        out = tmp_path / f"merged{number}.tbundle"
        report = merge(list(order), out)
        assert (report.entries, report.conflicts) == (4, ())
        made.add(out.read_bytes())
    assert len(made) == 1
    assert _keys(tmp_path / "merged0.tbundle") == sorted([A, B, C, "S" * 52])


def test_a_union_restores_what_its_parts_restore(three: list[Path], tmp_path: Path) -> None:
    merge(three, tmp_path / "all.tbundle")
    bundler.unpack(tmp_path / "all.tbundle", into=tmp_path / "merged")
    for rank, bundle in enumerate(three):
        bundler.unpack(bundle, into=tmp_path / "parts")
        assert rank in range(3)
    merged = {path: data for path, data in snapshot(tmp_path / "merged").items() if "__grp__" not in path}
    parts = {path: data for path, data in snapshot(tmp_path / "parts").items() if "__grp__" not in path}
    assert merged == parts
    assert bundler.verify_root(f"triton={tmp_path / 'merged'}").ok


def test_equal_kernels_of_eight_ranks_cost_about_one(tmp_path: Path) -> None:
    bundles = []
    for rank in range(8):
        root = synthetic_inductor_root(tmp_path / f"rank{rank}", recorded="/recorded", device=rank)
        bundles.append(_pack(root, "inductor"))
    report = merge(bundles, tmp_path / "all.tbundle")
    assert report.bytes_out < 2 * bundles[0].stat().st_size
    keys = [
        entry["path"] for entry in bundler.inspect(tmp_path / "all.tbundle")["entries"] if entry["unit"] == "kernel"
    ]
    assert {path.split("/")[1] for path in keys} == {str(rank) for rank in range(8)}


def test_different_builds_of_one_key_are_a_conflict_and_are_never_mixed(tmp_path: Path) -> None:
    """The loss: launches with the binary of one rank and the shared-memory size of another."""
    for name, seed in (("a", 1), ("b", 2)):
        synthetic_kernel(tmp_path / name, "k", key=A, seed=seed, source_file="/src/k.py")
    a, b = _pack(tmp_path / "a"), _pack(tmp_path / "b")
    with pytest.raises(ConflictError) as error:
        merge([a, b], tmp_path / "all.tbundle")
    assert error.value.entry == f"triton/{A}" and error.value.exit_code == 9
    assert not (tmp_path / "all.tbundle").exists()
    digests = {}
    for policy, order in (("first", [a, b]), ("last", [a, b]), ("lowest", [a, b]), ("lowest", [b, a])):
        report = merge(order, tmp_path / "all.tbundle", on_conflict=policy)
        (conflict,) = report.conflicts
        assert conflict.action == policy and set(conflict.sources) == {str(a), str(b)}
        digests[policy, order[0]] = bundler.verify(tmp_path / "all.tbundle").content_digest
    alone = {bundler.verify(a).content_digest: a, bundler.verify(b).content_digest: b}
    assert alone[digests["first", a]] == a and alone[digests["last", a]] == b
    assert digests["lowest", a] == digests["lowest", b] and digests["lowest", a] in alone


def test_equivalent_builds_are_kept_once_and_the_fuller_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        synthetic_kernel(tmp_path / name, "k", key=A, source_file=f"/{name}/k.py")
    runtime, full = _pack(tmp_path / "a", profile="runtime"), _pack(tmp_path / "b")
    for order in ([runtime, full], [full, runtime]):
        report = merge(order, tmp_path / "all.tbundle")
        assert report.conflicts == () and report.entries == 1
        assert report.content_digest == bundler.verify(full).content_digest
    assert bundler.inspect(tmp_path / "all.tbundle")["profile"] == "full"
    merge([runtime, runtime], tmp_path / "all.tbundle")
    assert bundler.inspect(tmp_path / "all.tbundle")["profile"] == "runtime"


def test_host_paths_are_dropped_and_facts_united(three: list[Path], tmp_path: Path) -> None:
    merge(three, tmp_path / "all.tbundle")
    listing = bundler.inspect(tmp_path / "all.tbundle")
    assert [root["path"] for root in listing["roots"]] == [""]
    assert "recorded_roots" not in listing["facts"]
    assert listing["facts"]["python"] == bundler.inspect(three[0])["facts"]["python"]


def test_keys_with_several_graphs_are_reported(tmp_path: Path) -> None:
    for name in ("a", "b"):
        place = tmp_path / name / "fxgraph" / "aa" / "faa"
        place.mkdir(parents=True)
        import pickle

        (place / name).write_bytes(pickle.dumps(name))
    report = merge([_pack(tmp_path / "a", "inductor"), _pack(tmp_path / "b", "inductor")], tmp_path / "all.tbundle")
    assert dict(report.candidates) == {"inductor/faa": 2}


def test_copies_inside_graphs_stay_shared(tmp_path: Path) -> None:
    root = synthetic_inductor_root(tmp_path / "root")
    bundle = _pack(root, "inductor")
    report = merge([bundle, bundle], tmp_path / "all.tbundle")
    assert report.bytes_out < 1.02 * bundle.stat().st_size
    assert report.content_digest == bundler.verify(bundle).content_digest


def test_roots_of_one_name_and_two_kinds_are_refused(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "a", "k")
    bundler.pack([f"x:triton={tmp_path / 'a'}"], tmp_path / "1.tbundle")
    bundler.pack([f"x:generic={tmp_path / 'a'}"], tmp_path / "2.tbundle")
    with pytest.raises(UsageError, match="kind"):
        merge([tmp_path / "1.tbundle", tmp_path / "2.tbundle"], tmp_path / "all.tbundle")
    with pytest.raises(UsageError):
        merge([], tmp_path / "all.tbundle")
