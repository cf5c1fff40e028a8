"""Kinds of roots: how they are told apart, where they lie, what an entry is there, and what is no entry."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from bundler import kinds
from bundler.errors import UsageError
from bundler.formats import _rules
from bundler.kinds import KINDS, STAGING_PREFIX, detect, excluded, is_literal, locate, unit_of
from bundler.model import Unit
from bundler.testing.trees import synthetic_inductor_root, synthetic_kernel, synthetic_vllm_root

KEY = "BJFAKZ37H2MIP66674GEP4TDXXMGAQOX3PGIRWQFYTCCQKAHIV6A"

UNITS = {
    "fxgraph/ab/fabc/hash": Unit.FXGRAPH,
    "torch_compile_cache/h/rank_0_0/inductor_cache/fxgraph/ab/fabc/hash": Unit.FXGRAPH,
    "fxgraph/ab/hash": Unit.FILE,
    "fxgraph/ab/fabc/more/hash": Unit.FILE,
    "notfxgraph/ab/fabc/hash": Unit.FILE,
    "aotautograd/aabc/hash": Unit.AOTAUTOGRAD,
    "backbone/artifact/aotautograd/aabc/hash": Unit.AOTAUTOGRAD,
    "aotautograd/hash": Unit.FILE,
    "ab/x.best_config": Unit.AUTOTUNE,
    "triton/0/x.autotune.json": Unit.AUTOTUNE,
    "cache/0123": Unit.AUTOTUNE,
    "cache/more/0123": Unit.FILE,
    "ab/cab.so": Unit.HOST_BINARY,
    "ab/cab.main.so": Unit.HOST_BINARY,
    "lib.so.1.2": Unit.HOST_BINARY,
    "lib.so.d": Unit.FILE,
    "lib.dylib": Unit.HOST_BINARY,
    "cuda_utils.cpython-312-x86_64-linux-gnu.so": Unit.HOST_BINARY,
    "cuda_utils.cp312-win_amd64.pyd": Unit.HOST_BINARY,
    "ab/cab.py": Unit.MODULE,
    "ab/cab.cpp": Unit.FILE,
    "ab/cab.py.bak": Unit.FILE,
    "notes": Unit.FILE,
    "lib/cache/a.cpython-311.pyc": Unit.FILE,
    "lib/fxgraph/ab/fabc/a.cpython-311.pyc": Unit.FILE,
    "lib/aotautograd/abc/a.cpython-311.opt-1.pyc": Unit.FILE,
}


@pytest.mark.parametrize("path", UNITS)
def test_a_file_outside_kernels_is_told_by_its_path(path: str) -> None:
    assert unit_of(path) is UNITS[path]


NO_ENTRY = [
    "tmp.pid_123_0f9a",
    "add.ttir.tmp.pid_7_x",
    "tmp.7c9e6679-7425-40de-944b-e07fc1f90ae7",
    ".123.140735.tmp",
    ".nfs000000000a1b2c3d",
    f"{STAGING_PREFIX}0-1-2-3",
    "lock",
    "locks",
    "cab.lock",
    "__pycache__",
    "cab.cpython-312.pyc",
]
ENTRY = [
    "tmp.pid",
    "tmp.7c9e",
    "tmp.7c9e6679-7425-40de-944b-e07fc1f90aeg",
    ".123.tmp",
    "add.tmp",
    ".nfs",
    ".nfsx",
    "locker",
    "cab.locks",
    "cab.py",
    "a.tb-x",
    "gpu_p2p_access_cache_for_0,1.json",
]


# Names that are entries in a root of byte code alone: a package may have a directory of any name.
BYTE_CODE = ["lock", "locks", "cab.cpython-312.pyc"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_staging_locks_and_byte_code_are_no_entries_but_where_byte_code_lies(kind: kinds.RootKind) -> None:
    kept = [name for name in NO_ENTRY if not excluded(kind, name) or not excluded(kind, f"triton/0/{name}")]
    assert kept == (BYTE_CODE if kind.name == "pycache" else [])
    assert kind.name == "vllm" or not [name for name in ENTRY if excluded(kind, name) or excluded(kind, f"a/{name}")]


def test_staging_is_no_entry_among_byte_code() -> None:
    pycache = KINDS["pycache"]
    for name in ("cab.cpython-312.pyc.140093412", f"{STAGING_PREFIX}cab.cpython-312.pyc"):
        assert excluded(pycache, name) and excluded(pycache, f"usr/lib/{name}")
    assert not excluded(pycache, "usr/lib/cab.cpython-312.opt-1.pyc")


def test_only_the_last_part_is_looked_at_since_parents_were() -> None:
    assert not excluded(KINDS["inductor"], "locks/x")


def test_vllm_leaves_out_what_is_of_one_host() -> None:
    vllm = KINDS["vllm"]
    for path in ("assets/model/x.bin", "modelinfos/a.json", "gpu_p2p_access_cache_for_0,1.json", "assets/a\nb"):
        assert excluded(vllm, path) and not excluded(KINDS["generic"], path)
    assert not excluded(vllm, "torch_compile_cache/assets/x") and not excluded(vllm, "assets")


def test_handle_tables_are_literals_where_vllm_writes_them() -> None:
    table = "torch_compile_cache/abc/rank_0_0/backbone/vllm_compile_cache.py"
    for kind in ("vllm", "generic"):
        assert is_literal(KINDS[kind], table) and is_literal(KINDS[kind], "vllm_compile_cache.py")
        assert not is_literal(KINDS[kind], f"{table}c") and not is_literal(KINDS[kind], "my_vllm_compile_cache.py")
    assert not is_literal(KINDS["inductor"], table) and not is_literal(KINDS["triton"], table)


# case -> (paths in a directory, its kind)
DETECTED: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "generic"),
    "unknown things": (["a", "a/b", "fx", "triton", "triton/x"], "generic"),
    "FX graphs": (["fxgraph", "fxgraph/ab"], "inductor"),
    "AOTAutograd entries": (["aotautograd"], "inductor"),
    "a device": (["triton", "triton/0"], "inductor"),
    "a path key": ([KEY], "triton"),
    "a kernel of another key": (["base64-key", "base64-key/__grp__add.json"], "triton"),
    "vLLM": (["torch_compile_cache"], "vllm"),
    "a rank of vLLM": (["rank_0_0", "rank_0_0/backbone"], "vllm"),
    "a hash of vLLM": (["abc", "abc/rank_12_3"], "vllm"),
    "vLLM over Inductor over Triton": ([KEY, "fxgraph", "torch_compile_cache"], "vllm"),
    "Inductor over Triton": ([KEY, "fxgraph"], "inductor"),
    "a key in small letters": ([KEY.lower()], "generic"),
}


@pytest.mark.parametrize("case", DETECTED)
def test_a_kind_is_told_by_what_lies_in_it(case: str) -> None:
    paths, name = DETECTED[case]
    assert detect(iter(paths)).name == name


# case -> (files at any depth, kind)
FILLED: dict[str, tuple[list[str], str]] = {
    "byte code below absolute paths": (["usr/lib/python3.11/os.cpython-311.pyc", "a.pypy310.pyc"], "pycache"),
    "optimised, and of a test runner": (["a/b.cpython-311.opt-2.pyc", "a/c.cpython-311-pytest-9.0.2.pyc"], "pycache"),
    "byte code that Python is writing": (["a/b.cpython-311.pyc", "a/b.cpython-311.pyc.1400934"], "pycache"),
    "byte code beside its sources": (["a/__pycache__/b.cpython-311.pyc", "a/b.py"], "generic"),
    "byte code in the directories of sources": (["a/__pycache__/b.cpython-311.pyc"], "generic"),
    "byte code of directories of sources": (["__pycache__/b.cpython-311.pyc"], "generic"),
    "byte code in place of sources": (["a/b.pyc"], "generic"),
    "byte code and something else": (["a/b.cpython-311.pyc", "a/notes"], "generic"),
    "nothing but staging": ([f"{STAGING_PREFIX}0"], "generic"),
}


@pytest.mark.parametrize("case", FILLED)
def test_byte_code_is_told_by_nothing_else_being_there(case: str) -> None:
    files, name = FILLED[case]
    assert detect([path.split("/")[0] for path in files], iter(files)).name == name
    assert detect(["fxgraph"], iter(files)).name == "inductor"


def test_every_synthetic_tree_is_of_its_kind(tmp_path: Path) -> None:
    def listed(root: Path) -> list[str]:
        paths = (path.relative_to(root) for path in root.rglob("*"))
        return [path.as_posix() for path in paths if len(path.parts) <= 2]

    assert detect(listed(synthetic_inductor_root(tmp_path / "i"))) is KINDS["inductor"]
    assert detect(listed(synthetic_vllm_root(tmp_path / "v"))) is KINDS["vllm"]
    assert detect(listed(synthetic_kernel(tmp_path / "t", "add").parent)) is KINDS["triton"]


TEMP = tempfile.gettempdir()

# case -> (kind, environment, place)
PLACES: dict[str, tuple[str, dict[str, str], str]] = {
    "inductor, named": ("inductor", {"TORCHINDUCTOR_CACHE_DIR": "/c/inductor"}, "/c/inductor"),
    "inductor, by user": ("inductor", {"USER": "me"}, f"{TEMP}/torchinductor_me"),
    "inductor, by login name first": ("inductor", {"LOGNAME": "a", "USER": "b"}, f"{TEMP}/torchinductor_a"),
    "inductor, empty variables": ("inductor", {"TORCHINDUCTOR_CACHE_DIR": "", "LOGNAME": "", "LNAME": "c"}, "_c"),
    "inductor, a domain user": ("inductor", {"USERNAME": 'D\\a:b*c?d"e<f>g|h/i j'}, "_D_a_b_c_d_e_f_g_h_i j"),
    "triton, named": ("triton", {"TRITON_CACHE_DIR": "/c/t", "TRITON_HOME": "/h"}, "/c/t"),
    "triton, home of Triton": ("triton", {"TRITON_HOME": "/h", "HOME": "/home/me"}, "/h/.triton/cache"),
    "triton, home": ("triton", {"HOME": "/home/me"}, "/home/me/.triton/cache"),
    "triton, empty home": ("triton", {"HOME": ""}, "/.triton/cache"),
    "vllm, named": ("vllm", {"VLLM_CACHE_ROOT": "/c/v", "XDG_CACHE_HOME": "/x"}, "/c/v"),
    "vllm, XDG": ("vllm", {"XDG_CACHE_HOME": "/x", "HOME": "/home/me"}, "/x/vllm"),
    "vllm, home": ("vllm", {"HOME": "/home/me"}, "/home/me/.cache/vllm"),
    "pycache, named": ("pycache", {"PYTHONPYCACHEPREFIX": "/c/p", "XDG_CACHE_HOME": "/x"}, "/c/p"),
    "pycache, XDG": ("pycache", {"XDG_CACHE_HOME": "/x"}, "/x/triton-bundler/pycache"),
    "pycache, home": ("pycache", {"HOME": "/home/me"}, "/home/me/.cache/triton-bundler/pycache"),
    "braces in a path": ("triton", {"HOME": "/home/{user}"}, "/home/{user}/.triton/cache"),
    "relative": ("triton", {"TRITON_CACHE_DIR": "a/../b"}, os.path.abspath("b")),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_root_lies_where_its_maker_looks(case: str) -> None:
    kind, environment, place = PLACES[case]
    found = locate(KINDS[kind], environment)
    assert found == place or (place.startswith("_") and found == f"{TEMP}/torchinductor{place}")


def test_the_environment_of_the_process_is_the_default(home: Path) -> None:
    assert locate(KINDS["triton"]) == str(home / "triton")
    assert locate(KINDS["vllm"]) == str(home / "vllm")


def test_a_generic_root_lies_nowhere_by_itself() -> None:
    with pytest.raises(UsageError, match="generic=PATH"):
        locate(KINDS["generic"], {"HOME": "/home/me"})


@pytest.mark.parametrize("kind", ["triton", "vllm"])
def test_a_user_without_a_home_must_name_the_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # expanduser gives "~" back then, and a root named "~" in the current directory is anybody's.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for environment in ({}, {"HOME": "~"}, {"HOME": "~other"}):
        with pytest.raises(UsageError, match=f"{KINDS[kind].variable} is not set"):
            locate(KINDS[kind], environment)


def test_the_home_of_the_account_is_used_when_the_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", "/home/account"))
    assert locate(KINDS["triton"], {}) == "/home/account/.triton/cache"


@pytest.mark.parametrize("error", [KeyError("uid not found: 54321"), ImportError("no pwd"), OSError("no user")])
def test_a_user_without_an_account_is_called_by_number(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise error

    monkeypatch.setattr(kinds.getpass, "getuser", fail)
    monkeypatch.setattr(os, "getuid", lambda: 54321, raising=False)
    assert locate(KINDS["inductor"], {}) == f"{TEMP}/torchinductor_uid_54321"
    monkeypatch.delattr(os, "getuid")
    assert locate(KINDS["inductor"], {}) == f"{TEMP}/torchinductor_unknown_user"


def test_the_name_of_the_account_is_used_when_no_variable_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds.getpass, "getuser", lambda: "account")
    assert locate(KINDS["inductor"], {"USER": ""}) == f"{TEMP}/torchinductor_account"


def test_a_kind_that_a_newer_package_made_is_refused_by_the_name_of_its_root() -> None:
    assert kinds.known_kind("triton", "mine") is KINDS["triton"]
    with pytest.raises(
        UsageError, match="root 'mine' is of kind 'tpu'; this package knows generic, inductor, pycache, triton, vllm"
    ):
        kinds.known_kind("tpu", "mine")


def test_the_table_of_kinds_is_consistent() -> None:
    assert list(KINDS) == [kind.name for kind in KINDS.values()]
    variables = [kind.variable for kind in KINDS.values() if kind.variable]
    assert len(set(variables)) == len(variables)
    for kind in KINDS.values():
        assert re.fullmatch(r"[a-z]+", kind.name)  # what the grammar of ROOT takes for a kind
        assert (kind.variable is None) == (not kind.places)
        assert kind.variable is None or kind.places[0] == (kind.variable, "")
        for pattern in (*kind.marks, *kind.excluded, *kind.literals, *kind.kept, kind.filled):
            re.compile(pattern)


def test_the_format_reserves_our_staging_names() -> None:
    assert _rules._RESERVED == STAGING_PREFIX
