"""Real caches: what Triton and torch.compile wrote is packed, restored elsewhere, and hit there by Triton and torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bundler
from bundler.relocate import parse_group
from tests.conftest import Compile

pytestmark = pytest.mark.torch


def _group_directories(root: Path) -> set[str]:
    return {
        parse_group(path.read_bytes(), path.parent.name).directory + "|" + str(path.parent)
        for path in root.rglob("__grp__*.json")
    }


def test_every_triton_kernel_is_a_hit_after_a_restore_elsewhere(
    triton_tree: Path, triton_compile: Compile, tmp_path: Path
) -> None:
    bundle = tmp_path / "kernels.tbundle"
    packed = bundler.pack([f"triton={triton_tree}"], bundle)
    assert packed.skipped == () and packed.entries >= 6
    elsewhere = tmp_path / "else where" / 'it\'s "here" é'
    restored = bundler.unpack(bundle, [f"triton={elsewhere}"])
    assert (restored.restored, restored.files_written) == (packed.entries, packed.files)
    report = triton_compile(elsewhere)
    assert report["compiled"] == 0 and report["hits"] == len(report["kernels"])
    again = bundler.unpack(bundle, [f"triton={elsewhere}"])
    assert (again.restored, again.files_written, again.unchanged) == (0, 0, packed.entries)


def test_a_tree_that_was_moved_before_it_was_packed_hits_where_it_is_restored(
    triton_tree: Path, triton_compile: Compile, clone: Callable[..., Path], tmp_path: Path
) -> None:
    moved = clone(triton_tree)  # its group files still name the place where it was compiled
    assert triton_compile(clone(triton_tree, "probe"), env={"HOME": str(tmp_path)})["compiled"] >= 0
    bundle = tmp_path / "kernels.tbundle"
    bundler.pack([f"triton={moved}"], bundle)
    home = tmp_path / "home"
    bundler.unpack(bundle, [f"triton={home}"])
    for pair in _group_directories(home):
        named, place = pair.split("|")
        assert named == place
    assert triton_compile(home)["compiled"] == 0


def test_the_runtime_profile_is_all_that_a_hit_needs(
    triton_tree: Path, triton_compile: Compile, tmp_path: Path
) -> None:
    bundle = tmp_path / "kernels.tbundle"
    bundler.pack([f"triton={triton_tree}"], bundle, profile="runtime")
    home = tmp_path / "home"
    bundler.unpack(bundle, [f"triton={home}"])
    assert not [path for path in home.rglob("*") if path.suffix in (".ttir", ".llir", ".ptx", ".amdgcn")]
    assert triton_compile(home)["compiled"] == 0
    assert bundler.verify_root(f"triton={home}").ok


def test_a_torch_compile_cache_hits_after_a_restore_elsewhere_without_a_compiler_call(
    inductor_tree: Path, torch_run: Compile, tmp_path: Path
) -> None:
    bundle = tmp_path / "model.tbundle"
    packed = bundler.pack([f"inductor={inductor_tree}"], bundle)
    assert packed.skipped == ()
    cold = torch_run(tmp_path / "cold")
    elsewhere = tmp_path / "elsewhere"
    bundler.unpack(bundle, [f"inductor={elsewhere}"])
    warm = torch_run(elsewhere)
    assert cold["cpp_compiled"] > 0 and cold["fxgraph_misses"] > 0
    assert warm["cpp_compiled"] == 0 and warm["fxgraph_misses"] == 0 and warm["autograd_misses"] == 0
    assert warm["autograd_hits"] > 0
    assert warm["checksum"] == cold["checksum"]


def test_both_caches_travel_in_one_bundle_and_go_where_this_host_keeps_them(
    triton_tree: Path, inductor_tree: Path, triton_compile: Compile, tmp_path: Path, home: Path
) -> None:
    bundle = tmp_path / "both.tbundle"
    bundler.pack([f"triton={triton_tree}", f"inductor={inductor_tree}"], bundle)
    restored = bundler.unpack(bundle)
    assert restored.env == {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "TRITON_CACHE_DIR": str(home / "triton")}
    assert triton_compile(home / "triton")["compiled"] == 0


def test_packing_the_restored_tree_gives_the_same_content_digest(
    inductor_tree: Path, triton_tree: Path, tmp_path: Path
) -> None:
    roots = [f"triton={triton_tree}", f"inductor={inductor_tree}"]
    first = bundler.pack(roots, tmp_path / "first.tbundle")
    bundler.unpack(tmp_path / "first.tbundle", into=tmp_path / "into")
    again = [f"triton={tmp_path / 'into/triton'}", f"inductor={tmp_path / 'into/inductor'}"]
    second = bundler.pack(again, tmp_path / "second.tbundle", level=9)
    assert first.content_digest == second.content_digest


def test_a_kernel_that_came_back_through_the_life_cycle_is_a_hit(
    triton_tree: Path, triton_compile: Compile, tmp_path: Path
) -> None:
    source = bundler.TritonBundler(triton_tree, strict=True)
    source.begin_compile()
    for path in triton_tree.iterdir():
        if any(path.glob("__grp__*")):
            source.put(path.name, compile_seconds=0.5)
    blob = source.collect()
    assert blob is not None
    target = bundler.TritonBundler(tmp_path / "cache", strict=True)
    report = target.read_and_emit(blob)
    assert report is not None and report.restored == source.stats()["kernels_collected"]
    assert triton_compile(tmp_path / "cache")["compiled"] == 0
    assert target.stats()["compile_seconds_saved"] == pytest.approx(0.5 * report.restored)


_SIZE = 2_000_000_000  # bytes of the tree
_LIMIT = 400 << 20  # bytes resident


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_gigabytes_are_packed_and_restored_in_400_megabytes(tmp_path: Path) -> None:
    """The loss: a job that is killed for memory by the tool that should have saved it time."""
    root = tmp_path / "root"
    program = (
        """
import json, os, sys
import bundler

def peak():
    # Not ru_maxrss: across exec it keeps the peak of the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

root, bundle, into = sys.argv[1:]
os.makedirs(root)
block = os.urandom(1 << 20)
written = number = 0
while written < %d:
    # Large files and small ones; compressible, and no two alike.
    size = (96 << 20) if number %% 8 == 0 else (3 << 20)
    with open(f"{root}/layer{number}.bin", "wb") as file:
        for at in range(0, size, 1 << 20):
            file.write(number.to_bytes(8, "big") + at.to_bytes(8, "big") + block[16 + number %% 1000:])
            file.write(bytes(number %% 1000))
    written += size
    number += 1
packed = bundler.pack([f"generic={root}"], bundle, level=1)
after_pack = peak()
from bundler.emit import EmitOptions
restored = bundler.unpack(bundle, into=into, options=EmitOptions(sync=False))
after_all = peak()
print(json.dumps([packed.entries, restored.restored, packed.bytes_in, after_pack, after_all]))
"""
        % _SIZE
    )
    arguments = [str(root), str(tmp_path / "big.tbundle"), str(tmp_path / "into")]
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True, env={**os.environ}
    )
    entries, restored, size, pack_peak, peak = json.loads(result.stdout)
    assert entries == restored and size >= _SIZE
    assert pack_peak < _LIMIT, f"pack took {pack_peak >> 20} MiB"
    assert peak < _LIMIT, f"unpack took {peak >> 20} MiB"
