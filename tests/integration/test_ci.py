"""Two CI jobs on two machines, with real kernels: the second one compiles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import bundler


@pytest.mark.torch
@pytest.mark.parametrize("service", ["file", "s3"])
def test_a_second_job_compiles_nothing(  # type: ignore[no-untyped-def]
    service: str, triton_compile, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"file://{tmp_path}/store" if service == "file" else request.getfixturevalue("s3_url")
    key = "tb1-linux-cuda90"
    reports = []
    for runner in ("runner1", "runner2"):
        cache = tmp_path / runner / "cache"
        restored = bundler.restore(store, key, [f"triton={cache}"])
        reports.append((restored.hit, triton_compile(cache, "--targets=cuda:90")))
        saved = bundler.save(store, key, [f"triton={cache}"])
        assert saved.uploaded == (not restored.hit)
    (cold_hit, cold), (warm_hit, warm) = reports
    assert (cold_hit, cold["hits"], warm_hit, warm["compiled"]) == (False, 0, True, 0)
    assert warm["hits"] == cold["compiled"] > 0
