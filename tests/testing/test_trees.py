"""The synthetic trees are what their docstrings say, and the real ones behave as the fixtures promise."""

from __future__ import annotations

import ast
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundler.testing import trees
from bundler.testing.artifacts import EM_AMDGPU, EM_CUDA, Recipe, path_key
from bundler.testing.trees import (
    GROUP_PREFIX,
    VLLM_CACHE_FILE,
    kernel_directories,
    rehome,
    snapshot,
    synthetic_inductor_root,
    synthetic_kernel,
    synthetic_vllm_root,
)

TARGETS = {
    "cuda:75": (("cuda", 75, 32), EM_CUDA, 7, 0x4B054B),
    "cuda:90": (("cuda", 90, 32), EM_CUDA, 8, 0x9005A04),
    "hip:gfx90a": (("hip", "gfx90a", 64), EM_AMDGPU, 3, 0x53F),
    "hip:gfx942": (("hip", "gfx942", 64), EM_AMDGPU, 3, 0x54C),
    "hip:gfx1100": (("hip", "gfx1100", 32), EM_AMDGPU, 3, 0x41),
}


def group_of(kernel: Path) -> dict[str, str]:
    (file,) = kernel.glob(f"{GROUP_PREFIX}*.json")
    paths: dict[str, str] = json.loads(file.read_bytes())["child_paths"]
    return paths


def sections_of(elf: bytes) -> dict[str, bytes]:
    """Name -> bytes of every section, read without any of the builder's code."""
    table, count, names_at = struct.unpack_from("<Q", elf, 40)[0], *struct.unpack_from("<HH", elf, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", elf, table + 64 * number) for number in range(count)]
    names = elf[rows[names_at][4] :]
    return {names[row[0] :].split(b"\0")[0].decode(): elf[row[4] : row[4] + row[5]] for row in rows[1:]}


def test_kernel_directory_holds_what_triton_writes_in_its_order(tmp_path: Path) -> None:
    kernel = synthetic_kernel(tmp_path, "add")
    suffixes = ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")
    assert list(group_of(kernel)) == [f"add.{suffix}" for suffix in suffixes]
    assert all(Path(path).parent == kernel and Path(path).is_file() for path in group_of(kernel).values())
    metadata = json.loads((kernel / "add.json").read_bytes())
    assert path_key(metadata["hash"]) == kernel.name == trees.default_key("add")
    assert len(kernel.name) == 52
    assert metadata["target"] == {"backend": "cuda", "arch": 90, "warp_size": 32}


@pytest.mark.parametrize(("target", "machine", "abi", "flags"), TARGETS.values(), ids=TARGETS.keys())
def test_binary_carries_its_target(tmp_path: Path, target: Any, machine: int, abi: int, flags: int) -> None:
    kernel = synthetic_kernel(tmp_path, "add", target=target)
    binary = (kernel / f"add.{Recipe('add', target).binary_suffix}").read_bytes()
    assert binary[:6] == b"\x7fELF\x02\x01" and binary[8] == abi
    assert struct.unpack_from("<H", binary, 18)[0] == machine
    assert struct.unpack_from("<I", binary, 48)[0] == flags
    assert {".debug_line", ".shstrtab"} < set(sections_of(binary))


def test_two_places_share_the_code_and_not_the_debug_section(tmp_path: Path) -> None:
    one, other = (synthetic_kernel(tmp_path / name, "add") for name in ("one", "other"))
    assert one.name == other.name
    first, second = (sections_of((kernel / "add.cubin").read_bytes()) for kernel in (one, other))
    assert {name for name in first if first[name] != second[name]} == {".debug_line"}
    assert str(tmp_path / "one").encode() in first[".debug_line"]


def test_equal_arguments_give_equal_bytes_wherever_they_are_written(tmp_path: Path) -> None:
    builders: list[Callable[..., Path]] = [synthetic_inductor_root, synthetic_vllm_root]
    for number, build in enumerate(builders):
        first = build(tmp_path / f"first{number}")
        second = build(tmp_path / f"second{number}", recorded=str(first))
        assert snapshot(second) == snapshot(first)
        assert snapshot(build(tmp_path / f"third{number}", seed=1)).keys() != snapshot(first).keys()


def test_kernel_may_lack_its_binary_or_its_text_and_have_any_key(tmp_path: Path) -> None:
    assert "add.cubin" not in group_of(synthetic_kernel(tmp_path / "1", "add", binary=False))
    assert list(group_of(synthetic_kernel(tmp_path / "2", "add", text=False))) == ["add.cubin", "add.json"]
    odd = synthetic_kernel(tmp_path / "3", "add", key="not-a-key", metadata={"shared": 7})
    assert odd.name == "not-a-key" and json.loads((odd / "add.json").read_bytes())["shared"] == 7
    moved = synthetic_kernel(tmp_path / "4", "add", recorded="/elsewhere/KEY")
    assert set(group_of(moved).values()) == {f"/elsewhere/KEY/{name}" for name in group_of(moved)}


def test_inductor_root_has_every_kind_of_entry(tmp_path: Path) -> None:
    root = synthetic_inductor_root(tmp_path / "root")
    kernels = kernel_directories(root)
    assert len(kernels) == 4 and {kernel.parent for kernel in kernels} == {root / "triton" / "0"}
    assert len(list(root.glob("fxgraph/??/f*/*"))) == 2 and len(list(root.glob("aotautograd/a*/*"))) == 2
    configs = [json.loads(path.read_bytes()) for path in root.glob("??/*.best_config")]
    assert {config["triton_cache_hash"] for config in configs} == {kernel.name for kernel in kernels}
    for module in root.glob("??/c*.py"):
        ast.parse(module.read_text())
        assert module.parent.name == module.name[1:3]


def test_fx_graph_entries_hold_raw_copies_of_the_kernels(tmp_path: Path) -> None:
    root = synthetic_inductor_root(tmp_path / "root")
    bundled = {}
    for path in root.glob("fxgraph/??/f*/*"):
        for kernel in pickle.loads(path.read_bytes())["_triton_bundle"]["kernel_artifacts"]:
            bundled[kernel["kernel_hash"]] = {each["filename"]: each["payload"] for each in kernel["artifacts"]}
            assert all(payload in path.read_bytes() for payload in bundled[kernel["kernel_hash"]].values())
    for kernel in kernel_directories(root):
        for name, data in snapshot(kernel).items():
            expected = data.replace(str(kernel).encode(), b"[REPLACE]") if name.startswith(GROUP_PREFIX) else data
            assert bundled[kernel.name][name] == expected


@pytest.mark.parametrize("compiler", ["inductor", "inductor_standalone"])
def test_vllm_root_names_what_lies_in_it(tmp_path: Path, compiler: str) -> None:
    root = synthetic_vllm_root(tmp_path / "a root", compiler=compiler)
    (file,) = root.glob(f"torch_compile_cache/??????????/rank_0_0/backbone/{VLLM_CACHE_FILE}")
    handles = ast.literal_eval(file.read_text())
    assert len(handles) == 2 and all(key[1:] == (number, compiler) for number, key in enumerate(handles))
    assert all(Path(path).exists() and root in Path(path).parents for _, path in handles.values())
    assert len(kernel_directories(root)) == 3
    for module in ("computation_graph.py", "transformed_code.py"):
        ast.parse((file.parent / module).read_text())


@pytest.mark.parametrize("build", [synthetic_inductor_root, synthetic_vllm_root])
def test_rehomed_tree_points_at_itself(tmp_path: Path, build: Callable[..., Path], clone: Callable[..., Path]) -> None:
    first = build(tmp_path / "first")
    second = rehome(clone(first, "second one"), str(first))
    assert snapshot(second).keys() == snapshot(first).keys()
    for kernel in kernel_directories(second):
        assert all(Path(path).parent == kernel for path in group_of(kernel).values())
    for file in second.rglob(VLLM_CACHE_FILE):
        assert all(second in Path(path).parents for _, path in ast.literal_eval(file.read_text()).values())


def test_triton_hits_in_a_real_tree_and_misses_in_a_moved_one(
    triton_tree: Path, triton_compile: Any, clone: Callable[..., Path], rehomed: Callable[..., Path]
) -> None:
    assert len(kernel_directories(triton_tree)) == 6
    # One kernel says it: each process costs a second.
    assert triton_compile(rehomed(triton_tree, "rehomed"), "--kernels=add")["hits"] == 2
    moved = clone(triton_tree, "moved")
    for kernel in kernel_directories(moved):
        for file in kernel.glob(f"{GROUP_PREFIX}*.json"):
            file.write_bytes(file.read_bytes().replace(str(triton_tree).encode(), b"/nowhere"))
    assert triton_compile(moved, "--kernels=add")["compiled"] == 2


@pytest.mark.slow
def test_torch_hits_in_a_copy_of_a_real_tree(inductor_tree: Path, torch_run: Any, clone: Callable[..., Path]) -> None:
    report = torch_run(clone(inductor_tree))
    assert (report["fxgraph_hits"], report["fxgraph_misses"]) == (2, 0)
    assert (report["autograd_hits"], report["autograd_misses"]) == (1, 0)
    assert report["cpp_compiled"] == 0
