"""How an installed entry stands to the bundle's: what a launch loads decides, not the bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bundler.compare import Verdict, build_files, compare_file, compare_kernel
from bundler.model import Unit
from bundler.relocate import make_group, restore
from bundler.testing.trees import default_key, synthetic_kernel

KEY = default_key("add")
Files = dict[str, bytes]


def built(place: Path, *, source_file: str = "/workspace/kernels.py", seed: int = 0, name: str = "add") -> Files:
    """The files of a kernel under ``KEY``, as they would lie in ``/cache/KEY``."""
    kernel = synthetic_kernel(place, name, key=KEY, recorded=f"/cache/{KEY}", source_file=source_file, seed=seed)
    return {path.name: path.read_bytes() for path in kernel.iterdir()}


def runtime(files: Files) -> Files:
    """What a runtime profile has of them."""
    group = make_group(["add.cubin", "add.json"])
    kept = {name: files[name] for name in group.members}
    return kept | {"__grp__add.json": restore(group.data, group.relocation, f"/cache/{KEY}")}


@pytest.fixture
def ours(tmp_path: Path) -> Files:
    return built(tmp_path / "ours")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Files:
    """The same kernel, compiled from a source that lies elsewhere."""
    return built(tmp_path / "elsewhere", source_file="/home/other/kernels.py")


@pytest.fixture
def different(tmp_path: Path) -> Files:
    return built(tmp_path / "different", seed=7)


def test_equal_files_are_identical_whatever_lies_beside_them(ours: Files) -> None:
    assert compare_kernel(ours, dict(ours), KEY) is Verdict.IDENTICAL
    assert (
        compare_kernel(ours, ours | {"notes": b"", ".nfs01": b"x", "__grp__old.json": b"{"}, KEY) is Verdict.IDENTICAL
    )


def test_a_kernel_compiled_elsewhere_is_equivalent_though_its_binary_differs(ours: Files, elsewhere: Files) -> None:
    assert ours["add.cubin"] != elsewhere["add.cubin"] and ours["add.ttir"] != elsewhere["add.ttir"]
    assert compare_kernel(ours, elsewhere, KEY) is compare_kernel(elsewhere, ours, KEY) is Verdict.EQUIVALENT


def _with_metadata(files: Files, **changes: object) -> Files:
    return files | {"add.json": json.dumps(json.loads(files["add.json"]) | changes).encode()}


Change = Callable[[Files], Files]

# case -> (what is installed, made from a kernel compiled elsewhere; the verdict)
INSTALLED: dict[str, tuple[Change, Verdict]] = {
    "nothing": (lambda files: {}, Verdict.VACANT),
    "foreign files only": (lambda files: {"notes": b"x", ".nfs01": b""}, Verdict.VACANT),
    "stages of another kernel": (lambda files: {"mul.ttir": b"x"}, Verdict.VACANT),
    "one stage": (lambda files: {"add.ttir": files["add.ttir"]}, Verdict.DAMAGED),
    "a half-written binary": (lambda files: {"add.cubin.tmp": b"x"}, Verdict.DAMAGED),
    "no group file": (lambda files: {n: d for n, d in files.items() if not n.startswith("__")}, Verdict.DAMAGED),
    "a group file alone": (lambda files: {"__grp__add.json": files["__grp__add.json"]}, Verdict.DAMAGED),
    "a missing stage": (lambda files: {n: d for n, d in files.items() if n != "add.ttir"}, Verdict.DAMAGED),
    "an empty binary": (lambda files: files | {"add.cubin": b""}, Verdict.DAMAGED),
    "an empty stage": (lambda files: files | {"add.ptx": b""}, Verdict.DAMAGED),
    "a binary of NULs": (lambda files: files | {"add.cubin": bytes(len(files["add.cubin"]))}, Verdict.DAMAGED),
    "a binary cut off": (lambda files: files | {"add.cubin": files["add.cubin"][:99]}, Verdict.DAMAGED),
    "metadata cut off": (lambda files: files | {"add.json": files["add.json"][:99]}, Verdict.DAMAGED),
    "metadata of another GPU": (
        lambda files: _with_metadata(files, target={"backend": "cuda", "arch": 80, "warp_size": 32}),
        Verdict.DAMAGED,
    ),
    "a group file cut off": (lambda files: files | {"__grp__add.json": b'{"child_'}, Verdict.DAMAGED),
    "a group file of nothing": (lambda files: files | {"__grp__add.json": b'{"child_paths": null}'}, Verdict.DAMAGED),
    "a group file that is an array": (lambda files: files | {"__grp__add.json": b"[]"}, Verdict.DAMAGED),
    "a group file of another place": (
        lambda files: files | {"__grp__add.json": files["__grp__add.json"].replace(b"/cache/", b"/packed/")},
        Verdict.DAMAGED,
    ),
    "a group file of another key": (
        lambda files: files | {"__grp__add.json": files["__grp__add.json"].replace(KEY.encode(), b"OTHER")},
        Verdict.DAMAGED,
    ),
    "a stray empty file": (lambda files: files | {"old.ttir": b""}, Verdict.EQUIVALENT),
    "IR of another version": (lambda files: files | {"add.ttir": b"x", "add.ptx": b"y"}, Verdict.EQUIVALENT),
    "a library that lies elsewhere": (
        lambda files: _with_metadata(
            files, extern_libs=[["libdevice", "/usr/lib/triton/backends/nvidia/lib/libdevice.10.bc"]]
        ),
        Verdict.EQUIVALENT,
    ),
    "another library": (
        lambda files: _with_metadata(files, extern_libs=[["libdevice", "/usr/lib/libdevice.11.bc"]]),
        Verdict.DIFFERENT,
    ),
    "metadata in another order": (
        lambda files: files | {"add.json": json.dumps(json.loads(files["add.json"]), sort_keys=True).encode()},
        Verdict.EQUIVALENT,
    ),
    "another shared memory size": (lambda files: _with_metadata(files, shared=77), Verdict.DIFFERENT),
    "a runtime profile": (runtime, Verdict.UPGRADE),
    "a runtime profile of another build": (lambda files: _with_metadata(runtime(files), shared=77), Verdict.DIFFERENT),
}


@pytest.mark.parametrize("case", INSTALLED)
def test_what_is_installed_is_judged_by_what_a_launch_loads(case: str, ours: Files, elsewhere: Files) -> None:
    change, verdict = INSTALLED[case]
    home = f"/cache/{KEY}"
    assert compare_kernel(ours, change(elsewhere), KEY, lambda directory: directory == home) is verdict


def test_another_build_of_the_key_is_different(ours: Files, different: Files) -> None:
    assert compare_kernel(ours, different, KEY) is Verdict.DIFFERENT
    assert compare_kernel(ours, runtime(different), KEY) is Verdict.DIFFERENT


def test_a_full_profile_holds_a_runtime_profile(ours: Files, elsewhere: Files) -> None:
    assert compare_kernel(runtime(ours), elsewhere, KEY) is Verdict.EQUIVALENT
    assert compare_kernel(runtime(ours), runtime(elsewhere), KEY) is Verdict.EQUIVALENT


def test_a_directory_that_lacks_one_of_two_kernels_is_damaged(ours: Files, tmp_path: Path) -> None:
    both = ours | built(tmp_path / "second", name="mul")
    assert compare_kernel(both, ours, KEY) is Verdict.DAMAGED
    assert compare_kernel(ours, both | {"add.ttir": b"x"}, KEY) is Verdict.EQUIVALENT


def test_a_group_without_our_binary_is_another_build(ours: Files, elsewhere: Files) -> None:
    """The same kernel with a binary of another kind: its group is whole, and has nothing that a launch here loads."""
    group = make_group(["add.spv", "add.json"])
    installed = {
        "add.spv": b"binary of another backend",
        "add.json": elsewhere["add.json"],
        "__grp__add.json": restore(group.data, group.relocation, f"/cache/{KEY}"),
    }
    assert compare_kernel(ours, installed, KEY) is Verdict.DIFFERENT


def test_binaries_that_are_no_elf_are_the_same_only_byte_for_byte() -> None:
    group = make_group(["add.spv", "add.json"])
    ours = {
        "add.spv": b"binary",
        "add.json": b'{"name": "add"}',
        "__grp__add.json": restore(group.data, group.relocation, f"/cache/{KEY}"),
    }
    assert compare_kernel(ours, ours | {"add.json": b'{ "name": "add" }'}, KEY) is Verdict.EQUIVALENT
    assert compare_kernel(ours, ours | {"add.spv": b"Binary"}, KEY) is Verdict.DIFFERENT


@pytest.mark.parametrize("broken", [b"{", b"", b"[" * 100_000, b"\xff"])
def test_a_bundle_with_strange_metadata_is_different_and_no_crash(broken: bytes, ours: Files) -> None:
    assert compare_kernel(ours | {"add.json": broken}, ours, KEY) is Verdict.DIFFERENT


def test_a_bundle_that_lists_what_it_lacks_is_compared_by_what_it_has(ours: Files, elsewhere: Files) -> None:
    lacking = {name: data for name, data in ours.items() if name != "add.ttir"}
    assert compare_kernel(lacking, elsewhere, KEY) is Verdict.EQUIVALENT


PYC = "a.cpython-311.pyc"


def byte_code(*, flags: int = 0, source: int = 0, code: int = 0x63) -> bytes:
    head = b"\xa7\r\r\n" + flags.to_bytes(4, "little") + source.to_bytes(8, "little")
    return head + bytes([code, *bytes(20)]) + b"N" * 8 + bytes(4) + b"NN"


# case -> (name, unit, ours, theirs, verdict)
SINGLE: dict[str, tuple[str, Unit, bytes, bytes, Verdict]] = {
    "identical": ("a.py", Unit.MODULE, b"a = 1", b"a = 1", Verdict.IDENTICAL),
    "identical though it does not parse": ("a.py", Unit.MODULE, b"(", b"(", Verdict.IDENTICAL),
    "different": ("a.py", Unit.MODULE, b"a = 1", b"a = 2", Verdict.DIFFERENT),
    "cut off": ("a.py", Unit.MODULE, b"a = (1)", b"a = (1", Verdict.DAMAGED),
    "empty": ("h", Unit.FXGRAPH, b"\x80\x04N.", b"", Verdict.DAMAGED),
    "any file, empty": ("notes", Unit.FILE, b"x", b"", Verdict.DIFFERENT),
    "byte code, written twice": (PYC, Unit.FILE, byte_code(), byte_code(code=0xE3), Verdict.EQUIVALENT),
    "byte code of another source": (PYC, Unit.FILE, byte_code(), byte_code(source=1), Verdict.DIFFERENT),
    "byte code tied otherwise": (PYC, Unit.FILE, byte_code(), byte_code(flags=3), Verdict.DIFFERENT),
    "byte code, cut off": (PYC, Unit.FILE, byte_code(), byte_code()[:-1], Verdict.DAMAGED),
    "byte code, cut off in the bundle": (PYC, Unit.FILE, byte_code()[:-1], byte_code(), Verdict.DIFFERENT),
}


@pytest.mark.parametrize("case", SINGLE)
def test_a_single_file_is_identical_damaged_or_different(case: str) -> None:
    name, unit, ours, theirs, verdict = SINGLE[case]
    assert compare_file(name, unit, ours, theirs) is verdict


# case -> (installed, names of the entry that takes its place, those that belong to a build)
BUILDS: dict[str, tuple[Files, set[str], set[str]]] = {
    "nothing": ({}, {"__grp__add.json", "add.json"}, set()),
    "what the group lists": (
        {"__grp__k.json": b'{"child_paths": {"other.bin": "/x/other.bin"}}', "other.bin": b"", "notes": b""},
        set(),
        {"__grp__k.json", "other.bin"},
    ),
    "what bears the stem of a new group": (
        {"add.ttir": b"", "add.cubin.tmp": b"", "added": b"", "mul.ttir": b""},
        {"__grp__add.json"},
        {"add.ttir", "add.cubin.tmp"},
    ),
    "what bears the stem of a damaged group": (
        {"__grp__add.json": b"{", "add.ptx": b"", "x": b""},
        set(),
        {"__grp__add.json", "add.ptx"},
    ),
    "what has the name of a new file": ({"notes": b"", "x": b""}, {"notes"}, {"notes"}),
    "a group of strange children": (
        {
            "__grp__a.json": b'{"child_paths": 5}',
            "__grp__b.json": b"[1]",
            "__grp__c.json": b'{"child_paths": [7]}',
            "7": b"",
        },
        set(),
        {"__grp__a.json", "__grp__b.json", "__grp__c.json", "7"},
    ),
    "deep": ({"__grp__a.json": b"[" * 100_000, "x": b""}, set(), {"__grp__a.json"}),
}


@pytest.mark.parametrize("case", BUILDS)
def test_what_belongs_to_a_build_goes_with_it_and_the_rest_is_foreign(case: str) -> None:
    installed, names, expected = BUILDS[case]
    assert build_files(installed, names) == expected
