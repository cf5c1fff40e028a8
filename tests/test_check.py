"""What a file claims to be, and whether it is: one file by itself, then the files of a kernel together."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler import check
from bundler.check import Facts, Problem, examine, examine_large, is_group, judge, suffix
from bundler.model import Target, Unit
from bundler.testing.artifacts import host_binary
from bundler.testing.trees import kernel_directories, synthetic_inductor_root, synthetic_kernel

PICKLE = pickle.dumps({"a": "b" * 200, "c": b"d" * 300}, 4)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return synthetic_kernel(tmp_path, "add")


def files_of(kernel: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in kernel.iterdir()}


def said(files: dict[str, bytes], key: str) -> dict[str, Facts]:
    return {name: examine(name, data, Unit.KERNEL, key=key) for name, data in files.items()}


# --- one file by itself ----------------------------------------------------------------------------------------------

BYTE_CODE = b"\xa7\r\r\n" + bytes(12) + b"c" + bytes(20) + b"N" * 8 + bytes(4) + b"NN"  # of Python 3.11

# case -> (name, bytes, unit, code of the problem or None)
FILES: dict[str, tuple[str, bytes, Unit, str | None]] = {
    "metadata": ("add.json", b'{"name": "add"}', Unit.KERNEL, None),
    "metadata, empty": ("add.json", b"", Unit.KERNEL, "empty"),
    "metadata, NUL": ("add.json", bytes(9), Unit.KERNEL, "nul_filled"),
    "metadata, cut off": ("add.json", b'{"name": "ad', Unit.KERNEL, "bad_json"),
    "metadata, not UTF-8": ("add.json", b'{"name": "\xff"}', Unit.KERNEL, "bad_json"),
    "metadata, deep": ("add.json", b"[" * 100_000, Unit.KERNEL, "bad_json"),
    "metadata, more than 4,300 digits": ("add.json", b"9" * 5000, Unit.KERNEL, "bad_json"),
    "stage": ("add.ttir", b"module {}", Unit.KERNEL, None),
    "stage, empty": ("add.ttir", b"", Unit.KERNEL, "empty"),
    "stage, NUL": ("add.ptx", bytes(9), Unit.KERNEL, "nul_filled"),
    "source, empty": ("add.source", b"", Unit.KERNEL, None),
    "source, NUL": ("add.source", bytes(9), Unit.KERNEL, "nul_filled"),
    "NUL at both ends": ("add.ptx", b"\0a\0", Unit.KERNEL, None),
    "group file, empty": ("__grp__add.json", b"", Unit.KERNEL, "empty"),
    "group file, NUL": ("__grp__add.json", bytes(9), Unit.KERNEL, "nul_filled"),
    "group file, cut off": ("__grp__add.json", b'{"child_pa', Unit.KERNEL, "bad_json"),
    "group file of another directory": (
        "__grp__add.json",
        b'{"child_paths": {"a": "/x/OTHER/a"}}',
        Unit.KERNEL,
        "bad_json",
    ),
    "group file outside a kernel": ("__grp__add.json", b'{"child_paths": {"a": "a"}}', Unit.FILE, None),
    "binary, no ELF": ("add.cubin", b"text", Unit.KERNEL, "bad_elf"),
    "binary, empty": ("add.cubin", b"", Unit.KERNEL, "empty"),
    "binary of an unknown kind": ("add.npubin", b"text", Unit.KERNEL, None),
    "binary of an unknown kind, empty": ("add.npubin", b"", Unit.KERNEL, "empty"),
    "binary of an unknown kind, NUL": ("add.zebin", bytes(9), Unit.KERNEL, "nul_filled"),
    "binary outside a kernel": ("add.cubin", b"text", Unit.FILE, None),
    "host binary": ("a.so", host_binary(), Unit.HOST_BINARY, None),
    "host binary, cut off": ("a.so", host_binary()[:100], Unit.HOST_BINARY, "bad_elf"),
    "host binary, no ELF": ("a.so", b"GROUP(libm.so.6)", Unit.HOST_BINARY, "bad_elf"),
    "host binary of another system": ("a.dylib", b"\xcf\xfa\xed\xfe", Unit.HOST_BINARY, None),
    "FX graph": ("h", PICKLE, Unit.FXGRAPH, None),
    "FX graph, cut off": ("h", PICKLE[:-1], Unit.FXGRAPH, "bad_pickle"),
    "FX graph, empty": ("h", b"", Unit.FXGRAPH, "empty"),
    "FX graph, NUL": ("h", bytes(9), Unit.FXGRAPH, "nul_filled"),
    "FX graph named JSON": ("h.json", PICKLE, Unit.FXGRAPH, None),
    "AOTAutograd": ("h", PICKLE, Unit.AOTAUTOGRAD, None),
    "AOTAutograd, text": ("h", b"text", Unit.AOTAUTOGRAD, "bad_pickle"),
    "autotuning": ("h.best_config", b"{}", Unit.AUTOTUNE, None),
    "autotuning, text": ("h.best_config", b"text", Unit.AUTOTUNE, "bad_json"),
    "autotuning without a suffix": ("0123", b"{", Unit.AUTOTUNE, "bad_json"),
    "module": ("a.py", b"import torch\n", Unit.MODULE, None),
    "module, cut off": ("a.py", b"def call(", Unit.MODULE, "bad_python"),
    "module, with a NUL": ("a.py", b"a = 1\0", Unit.MODULE, "bad_python"),
    "module, NUL": ("a.py", bytes(9), Unit.MODULE, "nul_filled"),
    "module, not UTF-8": ("a.py", b"a = '\xff'\n", Unit.MODULE, "bad_python"),
    "module, in a declared encoding": ("a.py", b"# coding: latin-1\na = '\xff'\n", Unit.MODULE, None),
    "module, a name twice": ("a.py", b"def f(a, a): pass\nnonlocal b\n", Unit.MODULE, None),
    "module, names wrong, and cut off": ("a.py", b"def f(a, a): pass\nnonlocal b\nf(", Unit.MODULE, "bad_python"),
    "module, deep": ("a.py", b"(" * 5000 + b")" * 5000, Unit.MODULE, "bad_python"),
    "module, empty": ("a.py", b"", Unit.MODULE, "empty"),
    "package, empty": ("__init__.py", b"", Unit.MODULE, None),
    "byte code": ("a.cpython-311.pyc", BYTE_CODE, Unit.FILE, None),
    "byte code, optimised": ("a.cpython-311.opt-2.pyc", BYTE_CODE, Unit.FILE, None),
    "byte code, cut off": ("a.cpython-311.pyc", BYTE_CODE[:-1], Unit.FILE, "bad_python"),
    "byte code, empty": ("a.cpython-311.pyc", b"", Unit.FILE, "empty"),
    "byte code, NUL": ("a.cpython-311.pyc", bytes(64), Unit.FILE, "nul_filled"),
    "byte code, named for another Python": ("a.cpython-312.pyc", BYTE_CODE, Unit.FILE, "bad_python"),
    "byte code of another implementation": ("a.pypy310.pyc", b"\xf0\0\r\n" + BYTE_CODE[4:16], Unit.FILE, None),
    "byte code of a later Python": ("a.cpython-319.pyc", b"\xff\x7f\r\n" + BYTE_CODE[4:20], Unit.FILE, None),
    "any file": ("notes", b"\0\xff", Unit.FILE, None),
    "any file, empty": ("notes", b"", Unit.FILE, None),
    "any file, NUL": ("notes", bytes(9), Unit.FILE, None),
    "any JSON": ("a.json", b"[1]", Unit.FILE, None),
    "any JSON, empty": ("a.json", b"", Unit.FILE, "empty"),
    "any JSON, NUL": ("a.json", bytes(9), Unit.FILE, "nul_filled"),
    "any JSON, cut off": ("a.json", b"[1", Unit.FILE, "bad_json"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_is_what_its_name_claims_or_the_problem_says_why_not(case: str) -> None:
    name, data, unit, code = FILES[case]
    problems = examine(name, data, unit, key="KEY").problems
    assert [problem.code for problem in problems] == ([code] if code else [])
    for problem in problems:
        assert problem.file == name and problem.detail and str(problem) == f"{name}: {problem.detail}"


def module_name(source: bytes) -> str:
    """Name a module as Inductor does."""
    return f"c{base64.b32encode(hashlib.sha256(source.strip()).digest()).decode()[:51].lower()}.py"


@pytest.mark.torch
def test_modules_are_named_as_torch_names_them() -> None:
    from torch._inductor.codecache import code_hash

    source = "\nimport torch\ndef call(args): return args\n\n"
    assert module_name(source.encode()) == f"{code_hash(source.strip())}.py"


def test_a_module_under_the_name_of_its_content_is_whole_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = b"\n# AOT ID: ['0_forward']\nimport torch\ndef call(args): return args\n\n"
    name = module_name(source)
    monkeypatch.setattr("symtable.symtable", lambda *given: pytest.fail("it was parsed"))
    assert examine(name, source, Unit.MODULE).problems == ()


@pytest.mark.parametrize("cut", [b"import torch\ndef call(", b"import torch\nx = 'ab", b"\0" + b"import torch\n"])
def test_a_module_that_is_not_what_its_name_says_is_parsed(cut: bytes) -> None:
    """Loss prevented: a cut-off module is packed, and torch stops with a SyntaxError where it is loaded."""
    name = module_name(b"import torch\ndef call(args): return args\nx = 'abc'\n")
    assert [problem.code for problem in examine(name, cut, Unit.MODULE).problems] == ["bad_python"]
    assert examine(name, b"import torch  # edited\n", Unit.MODULE).problems == ()


@pytest.mark.parametrize(("lead", "ok"), [(b"\n\n", True), (b"  \n", True), (b"  ", False), (b"\n\t", False)])
def test_an_indented_module_has_the_name_of_its_content_and_cannot_be_loaded(lead: bytes, ok: bool) -> None:
    source = b"import torch\n"
    assert (examine(module_name(source), lead + source, Unit.MODULE).problems == ()) is ok


def test_a_module_that_warns_is_parsed_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert examine("a.py", b"a = '\\q'\n", Unit.MODULE).problems == ()


def test_a_group_file_says_its_members_and_where_its_placeholders_stand(kernel: Path) -> None:
    facts = examine("__grp__add.json", (kernel / "__grp__add.json").read_bytes(), Unit.KERNEL, key=kernel.name)
    assert facts.group is not None and facts.group.directory == str(kernel)
    assert set(facts.group.members) == {path.name for path in kernel.iterdir()} - {"__grp__add.json"}


def test_a_pickle_says_its_long_strings() -> None:
    for unit in (Unit.FXGRAPH, Unit.AOTAUTOGRAD):
        long = examine("h", PICKLE, unit).long
        assert {PICKLE[at : at + size] for at, size in long} == {b"b" * 200, b"d" * 300}


def test_byte_code_says_which_python_looks_for_it() -> None:
    for name, needs in (("a.cpython-311.opt-1.pyc", ("python:cpython-311",)), ("a.pyc", ())):
        assert examine(name, BYTE_CODE, Unit.FILE).needs == needs


def test_only_an_fx_graph_says_what_its_compile_took() -> None:
    data = pickle.dumps({"_time_taken_ns": 12_345_678_901}, 4)
    assert examine("h", data, Unit.FXGRAPH).compile_ns == 12_345_678_901
    assert examine("h", data, Unit.AOTAUTOGRAD).compile_ns == 0


def test_a_host_binary_says_what_it_needs() -> None:
    needs = examine("a.so", host_binary(), Unit.HOST_BINARY).needs
    assert any(need.startswith("machine:") for need in needs)


# metadata -> target
METADATA: dict[str, tuple[object, Target | None]] = {
    "cuda": ({"target": {"backend": "cuda", "arch": 90, "warp_size": 32}}, Target("cuda", "90", 32)),
    "hip": ({"target": {"backend": "hip", "arch": "gfx942", "warp_size": 64}}, Target("hip", "gfx942", 64)),
    "without a warp size": ({"target": {"backend": "cuda", "arch": 90}}, Target("cuda", "90")),
    "a strange warp size": ({"target": {"backend": "cuda", "arch": 90, "warp_size": "32"}}, Target("cuda", "90")),
    "a negative warp size": ({"target": {"backend": "cuda", "arch": 90, "warp_size": -1}}, Target("cuda", "90")),
    "a warp size that is true": ({"target": {"backend": "cuda", "arch": 90, "warp_size": True}}, Target("cuda", "90")),
    "no target": ({"name": "add"}, None),
    "an old target": ({"target": ["cuda", 90]}, None),
    "no backend": ({"target": {"arch": 90}}, None),
    "no arch": ({"target": {"backend": "cuda"}}, None),
    "a strange arch": ({"target": {"backend": "cuda", "arch": [9, 0]}}, None),
    # The loss: a lone surrogate cannot be written into an index, and ended the pack of the whole cache.
    "a backend that is no text": ({"target": {"backend": "\ud800", "arch": 90}}, None),
    "an arch that is no text": ({"target": {"backend": "cuda", "arch": "\ud800"}}, None),
    "an array": ([], None),
}


@pytest.mark.parametrize("case", METADATA)
def test_metadata_names_the_gpu(case: str) -> None:
    value, target = METADATA[case]
    data = json.dumps(value).encode()
    assert examine("add.json", data, Unit.KERNEL).target == target
    assert examine("add.json", data, Unit.FILE).target is None


# case -> (name, head, tail, unit, all NUL, code)
LARGE: dict[str, tuple[str, bytes, bytes, Unit, bool, str | None]] = {
    "FX graph": ("h", b"\x80\x04", b"u.", Unit.FXGRAPH, False, None),
    "FX graph, cut off": ("h", b"\x80\x04", b"ab", Unit.FXGRAPH, False, "bad_pickle"),
    "AOTAutograd, text": ("h", b"text", b"t.", Unit.AOTAUTOGRAD, False, "bad_pickle"),
    "FX graph, NUL": ("h", bytes(9), bytes(9), Unit.FXGRAPH, True, "nul_filled"),
    "host binary": ("a.so", b"\x7fELF\x02", b"x", Unit.HOST_BINARY, False, None),
    "host binary, text": ("a.so", b"text", b"x", Unit.HOST_BINARY, False, "bad_elf"),
    "kernel binary, text": ("a.cubin", b"text", b"x", Unit.KERNEL, False, "bad_elf"),
    "kernel binary of an unknown kind": ("a.spv", b"text", b"x", Unit.KERNEL, False, None),
    "any binary": ("a.so", b"text", b"x", Unit.FILE, False, None),
    "any file, NUL": ("a", bytes(9), bytes(9), Unit.FILE, True, None),
    "module": ("a.py", b"def f(", b"(((", Unit.MODULE, False, None),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_large_file_is_judged_by_its_edges(case: str) -> None:
    name, head, tail, unit, nul_only, code = LARGE[case]
    facts = examine_large(name, head, tail, unit, nul_only=nul_only)
    assert [problem.code for problem in facts.problems] == ([code] if code else [])


@given(data=st.binary(max_size=200), name=st.sampled_from(["a.json", "__grp__a.json", "a.cubin", "a.so", "a.py", "h"]))
def test_any_bytes_are_examined_without_an_exception(data: bytes, name: str) -> None:
    for unit in Unit:
        facts = examine(name, data, unit, key="KEY")
        assert all(problem.code and problem.detail for problem in facts.problems)
        examine_large(name, data[:64], data[-64:], unit, nul_only=False)


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_suffix_is_what_follows_the_last_dot() -> None:
    table = {"a.b.cubin": ".cubin", "a": "", ".hidden": "", "a.": ".", "": "", "lib.so.1": ".1"}
    assert {name: suffix(name) for name in table} == table


def test_a_group_file_is_told_by_its_name() -> None:
    assert is_group("__grp__add.json") and is_group("__grp__.json")
    assert not any(map(is_group, ("add.json", "__grp__add", "x__grp__add.json", "__grp__add.json.tmp")))


# --- the files of a kernel -------------------------------------------------------------------------------------------


def test_a_kernel_as_triton_wrote_it_has_no_problem(triton_tree: Path) -> None:
    found = {kernel: judge(said(files_of(kernel), kernel.name)) for kernel in kernel_directories(triton_tree)}
    assert all(problems == () for problems, _ in found.values())
    targets = sorted(str(target) for _, target in found.values())
    assert targets == ["cuda:90"] * 3 + ["hip:gfx942"] * 3


@pytest.mark.parametrize("target", [("cuda", 75, 32), ("cuda", 90, 32), ("hip", "gfx90a", 64)], ids=str)
def test_a_synthetic_kernel_has_no_problem_and_its_target(target: tuple[str, int | str, int], tmp_path: Path) -> None:
    kernel = synthetic_kernel(tmp_path, "add", target=target)
    backend, arch, warp_size = target
    assert judge(said(files_of(kernel), kernel.name)) == ((), Target(backend, str(arch), warp_size))


Change = Callable[[dict[str, bytes]], object]


def _group(files: dict[str, bytes], **paths: str | None) -> None:
    """Change members of the group file; None takes one out."""
    value = json.loads(files["__grp__add.json"])
    directory = next(iter(value["child_paths"].values())).rpartition("/")[0]
    for stem, path in paths.items():
        name = f"add.{stem}"
        value["child_paths"].pop(name, None)
        if path is not None:
            value["child_paths"][name] = path.replace("HERE", directory)
    files["__grp__add.json"] = json.dumps(value).encode()


def _metadata(files: dict[str, bytes], **changes: object) -> None:
    files["add.json"] = json.dumps(json.loads(files["add.json"]) | changes).encode()


# case -> (change to a whole kernel for cuda:90, [(code, file)], words in the details)
KERNELS: dict[str, tuple[Change, list[tuple[str, str]], str]] = {
    "a stray file": (lambda files: files.update({"notes": b"x"}), [], ""),
    "a stray empty stage": (lambda files: files.update({"old.ttir": b""}), [("empty", "old.ttir")], "0 bytes"),
    "no group file": (lambda files: files.pop("__grp__add.json"), [("missing_member", "")], "counts as absent"),
    "no binary on disk": (lambda files: files.pop("add.cubin"), [("missing_member", "add.cubin")], "not there"),
    "two missing": (
        lambda files: (files.pop("add.cubin"), files.pop("add.json")),
        [("missing_member", "add.cubin"), ("missing_member", "add.json")],
        "listed in __grp__add.json",
    ),
    "no binary in the group": (
        lambda files: (_group(files, cubin=None), files.pop("add.cubin")),
        [("missing_member", "")],
        "lists no binary, only add.source",
    ),
    "nothing in the group": (
        lambda files: files.update({"__grp__add.json": b'{"child_paths": {}}'}),
        [("missing_member", "add.json"), ("missing_member", "")],
        "lists no binary, only nothing",
    ),
    "no metadata in the group": (
        lambda files: _group(files, json=None),
        [("missing_member", "add.json")],
        "lists no metadata",
    ),
    "a damaged group file alone": (
        lambda files: files.update({"__grp__add.json": b"{"}),
        [("bad_json", "__grp__add.json")],
        "not a group file",
    ),
    "a child outside": (
        lambda files: _group(files, ptx="/elsewhere/add.ptx"),
        [("bad_json", "__grp__add.json")],
        "different directories",
    ),
    "metadata of another GPU": (
        lambda files: _metadata(files, target={"backend": "cuda", "arch": 80, "warp_size": 32}),
        [("target_mismatch", "add.cubin")],
        "the binary is for cuda:90, add.json says cuda:80",
    ),
    "metadata of another backend": (
        lambda files: _metadata(files, target={"backend": "hip", "arch": "90", "warp_size": 64}),
        [("target_mismatch", "add.cubin")],
        "add.json says hip:90",
    ),
    "another warp size is no mismatch": (
        lambda files: _metadata(files, target={"backend": "cuda", "arch": 90, "warp_size": 64}),
        [],
        "",
    ),
    "metadata without a target": (lambda files: _metadata(files, target=None), [], ""),
    "a second group that lacks its binary": (
        lambda files: files.update({"__grp__mul.json": files["__grp__add.json"].replace(b"add.", b"mul.")}),
        [("missing_member", f"mul.{stem}") for stem in ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")],
        "listed in __grp__mul.json",
    ),
}


@pytest.mark.parametrize("case", KERNELS)
def test_a_kernel_is_whole_or_every_problem_is_named(case: str, kernel: Path) -> None:
    change, expected, words = KERNELS[case]
    files = files_of(kernel)
    change(files)
    problems, _ = judge(said(files, kernel.name))
    assert [(problem.code, problem.file) for problem in problems] == expected
    assert not expected or words in " ".join(problem.detail for problem in problems)


def test_a_problem_of_the_whole_entry_is_shown_without_a_file() -> None:
    assert str(Problem("missing_member", "", "no group file")) == "no group file"


def test_the_target_comes_from_the_metadata_else_from_the_binary(kernel: Path) -> None:
    files = files_of(kernel)
    assert judge(said(files, kernel.name))[1] == Target("cuda", "90", 32)
    _metadata(files, target=None)
    found = judge(said(files, kernel.name))[1]
    assert found is not None and (found.backend, found.arch) == ("cuda", "90")
    assert judge({"add.ttir": Facts()})[1] is None


@pytest.mark.parametrize("ending", [".zebin", ".spv", ".npubin", ".so", ".never-seen", ""])
def test_a_binary_is_what_is_neither_metadata_nor_a_stage(ending: str) -> None:
    members = ("add.json", "add.ttir", "add.ptx", "add.amdgcn", "add.llir", "add.source", f"add{ending}")
    assert check.binaries(members) == (f"add{ending}",)


def test_every_entry_of_a_synthetic_root_is_what_it_claims(tmp_path: Path) -> None:
    from bundler.kinds import unit_of

    root = synthetic_inductor_root(tmp_path / "root")
    kernels = set(kernel_directories(root))
    for path in root.rglob("*"):
        if path.is_file() and path.parent not in kernels:
            unit = unit_of(path.relative_to(root).as_posix())
            assert examine(path.name, path.read_bytes(), unit).problems == (), path
