"""``diff``: two bundles, entry by entry."""

from __future__ import annotations

from pathlib import Path

import bundler
from bundler.testing.trees import synthetic_kernel

KEY, OTHER = "A" * 52, "B" * 52


def _pack(tree: Path) -> bytes:
    out = tree.with_suffix(".tbundle")
    bundler.pack([f"triton={tree}"], out)
    return out.read_bytes()


def test_equal_trees_do_not_differ_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("a", "b"):
        synthetic_kernel(tmp_path / name, "k", key=KEY, source_file="/src/k.py")
    report = bundler.diff(_pack(tmp_path / "a"), _pack(tmp_path / "b"))
    assert report.same and report.equivalent == ()


def test_entries_of_one_bundle_alone_are_added_or_removed(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "a", "k", key=KEY, source_file="/src/k.py")
    synthetic_kernel(tmp_path / "b", "k", key=OTHER, source_file="/src/k.py")
    report = bundler.diff(_pack(tmp_path / "a"), _pack(tmp_path / "b"))
    assert report.added == (f"triton/{OTHER}",) and report.removed == (f"triton/{KEY}",)
    assert report.changed == () and not report.same


def test_one_kernel_compiled_in_two_places_is_equivalent(tmp_path: Path) -> None:
    """The loss: a diff full of noise, since no two compiles agree on their debug sections."""
    synthetic_kernel(tmp_path / "a", "k", key=KEY, source_file="/here/k.py")
    synthetic_kernel(tmp_path / "b", "k", key=KEY, source_file="/somewhere/else/k.py")
    report = bundler.diff(_pack(tmp_path / "a"), _pack(tmp_path / "b"))
    assert report.same and [row.entry for row in report.equivalent] == [f"triton/{KEY}"]
    assert "k.cubin" in report.equivalent[0].files


def test_another_build_under_the_same_key_is_changed(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "a", "k", key=KEY, seed=1)
    synthetic_kernel(tmp_path / "b", "k", key=KEY, seed=2)
    report = bundler.diff(_pack(tmp_path / "a"), _pack(tmp_path / "b"))
    assert [row.entry for row in report.changed] == [f"triton/{KEY}"] and not report.same


def test_a_runtime_profile_is_equivalent_to_a_superset(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "a", "k", key=KEY)
    bundler.pack([f"triton={tmp_path / 'a'}"], tmp_path / "runtime.tbundle", profile="runtime")
    report = bundler.diff(tmp_path / "runtime.tbundle", _pack(tmp_path / "a"))
    assert report.same and len(report.equivalent) == 1


def test_single_files_are_the_same_bytes_or_changed(tmp_path: Path) -> None:
    for name, text in (("a", "x = 1\n"), ("b", "x = 2\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text(text)
        bundler.pack([f"generic={tmp_path / name}"], tmp_path / f"{name}.tbundle")
    report = bundler.diff(tmp_path / "a.tbundle", tmp_path / "b.tbundle")
    assert [(row.entry, row.files) for row in report.changed] == [("generic/m.py", ("m.py",))]
