"""``--winners-only``: losers go, single-configuration kernels stay."""

from __future__ import annotations

import json
from pathlib import Path

import bundler
from bundler.testing.trees import synthetic_kernel


def _keys(bundle: Path) -> set[str]:
    return {entry["key"] for entry in bundler.inspect(bundle)["entries"] if entry["unit"] == "kernel"}


def _root(tmp_path: Path) -> tuple[Path, list[str]]:
    """One module with three configurations, one with one; the first has a noted winner."""
    cache = tmp_path / "root" / "triton" / "0"
    tuned = [synthetic_kernel(cache, "mm", seed=seed, source_file="/x/ab/cab.py").name for seed in range(3)]
    lone = synthetic_kernel(cache, "add", source_file="/x/cd/ccd.py").name
    (tmp_path / "root" / "ab").mkdir()
    config = {"XBLOCK": 64, "triton_cache_hash": tuned[1]}
    (tmp_path / "root" / "ab" / "0.best_config").write_text(json.dumps(config))
    return tmp_path / "root", [*tuned, lone]


def test_only_the_chosen_configuration_is_kept_and_no_other_kernel_is_lost(tmp_path: Path) -> None:
    root, (first, chosen, last, lone) = _root(tmp_path)
    report = bundler.pack([f"inductor={root}"], tmp_path / "it.tbundle", winners_only=True)
    assert _keys(tmp_path / "it.tbundle") == {chosen, lone}
    assert {row.path.rpartition("/")[2] for row in report.skipped} == {first, last}
    assert all(chosen in row.reason for row in report.skipped)


def test_without_a_noted_winner_every_configuration_is_kept(tmp_path: Path) -> None:
    root, keys = _root(tmp_path)
    next(root.rglob("*.best_config")).write_text("{}")
    bundler.pack([f"inductor={root}"], tmp_path / "it.tbundle", winners_only=True)
    assert _keys(tmp_path / "it.tbundle") == set(keys)


def test_losers_are_told_in_the_runtime_profile_too(tmp_path: Path) -> None:
    root, (_, chosen, _, lone) = _root(tmp_path)
    bundler.pack([f"inductor={root}"], tmp_path / "it.tbundle", winners_only=True, profile="runtime")
    assert _keys(tmp_path / "it.tbundle") == {chosen, lone}
