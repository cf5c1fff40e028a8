"""Collecting: an entry is taken whole or skipped with a reason; nothing is written, followed, or waited for."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bundler import check, collect
from bundler.collect import (
    Collected,
    Draft,
    Options,
    collect_kernels,
    module_of,
    read_file,
    shown,
    stream_file,
)
from bundler.errors import LocalIOError, UsageError
from bundler.kinds import KINDS
from bundler.model import Profile, Skipped, Target, Unit
from bundler.roots import Root
from bundler.testing.artifacts import path_key
from bundler.testing.trees import (
    VLLM_CACHE_FILE,
    default_key,
    snapshot,
    synthetic_inductor_root,
    synthetic_kernel,
    synthetic_vllm_root,
)

KEY = default_key("add")

posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no FIFOs, sockets in directories, or other users")
any_bytes = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names that are not UTF-8 need Linux")


def root_of(path: Path | str, kind: str = "triton", name: str | None = None) -> Root:
    return Root(name or kind, KINDS[kind], str(path))


def collected(path: Path | str, kind: str = "triton", **options: Any) -> Collected:
    into = Collected()
    collect.collect(root_of(path, kind), Options(**options), into)
    return into


def paths(found: Collected) -> list[str]:
    return [draft.path for draft in found.drafts]


def reasons(found: Collected) -> dict[str, str]:
    return {skipped.path: skipped.reason for skipped in found.skipped}


def files(draft: Draft) -> dict[str, bytes]:
    return {file.name: file.data or b"" for file in draft.files}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return synthetic_kernel(tmp_path / "root", "add")


@pytest.fixture
def root(kernel: Path) -> Path:
    return kernel.parent


# --- whole trees -----------------------------------------------------------------------------------------------------


def test_every_file_of_a_triton_cache_is_taken_and_nothing_is_touched(triton_tree: Path) -> None:
    found = collected(triton_tree)
    assert [draft.unit for draft in found.drafts] == [Unit.KERNEL] * 6 and found.skipped == []
    assert sorted(str(draft.target) for draft in found.drafts) == ["cuda:90"] * 3 + ["hip:gfx942"] * 3
    taken = {f"{draft.path}/{file.name}" for draft in found.drafts for file in draft.files}
    assert taken == set(snapshot(triton_tree))
    assert found.bytes_in == sum(map(len, snapshot(triton_tree).values()))


def test_every_file_of_an_inductor_root_is_taken_excluded_or_skipped(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root")
    before = snapshot(place)
    found = collected(place, "inductor")
    taken = {
        f"{draft.path}/{file.name}" if draft.unit is Unit.KERNEL else draft.path
        for draft in found.drafts
        for file in draft.files
    }
    assert before.keys() - taken == {path for path in before if path.startswith("locks/")}
    assert {draft.unit for draft in found.drafts} == set(Unit) - {Unit.FILE}
    assert found.skipped == [] and found.damaged == [] and snapshot(place) == before
    assert all(draft.module.endswith(".py") for draft in found.drafts if draft.unit is Unit.KERNEL)


def test_a_vllm_root_is_taken_with_its_handle_table_in_placeholder_form(tmp_path: Path) -> None:
    place = synthetic_vllm_root(tmp_path / "root", recorded="/packed/vllm")
    (place / "modelinfos").mkdir()
    (place / "modelinfos" / "x.json").write_text("{}")
    (place / "gpu_p2p_access_cache_for_0.json").write_text("{}")
    found = collected(place, "vllm")
    (table,) = [draft for draft in found.drafts if draft.path.endswith(VLLM_CACHE_FILE)]
    assert table.recorded == "/packed/vllm" and b"/packed/vllm" not in files(table)[VLLM_CACHE_FILE]
    assert table.files[0].relocation is not None and table.files[0].relocation.offsets
    assert {draft.unit for draft in found.drafts} == {Unit.KERNEL, Unit.FXGRAPH, Unit.AOTAUTOGRAD, Unit.MODULE}
    assert not [path for path in paths(found) if path.startswith(("modelinfos", "gpu_p2p"))]
    assert found.skipped == []


def test_a_damaged_handle_table_is_skipped(tmp_path: Path) -> None:
    place = synthetic_vllm_root(tmp_path / "root")
    (table,) = place.rglob(VLLM_CACHE_FILE)
    table.write_text("{'a': __import__('os').getcwd()}")
    found = collected(place, "vllm")
    ((path, reason),) = reasons(found).items()
    assert path.endswith(VLLM_CACHE_FILE) and "not a Python literal" in reason
    assert [problem.code for _, problem in found.damaged] == ["bad_python"]


def test_a_generic_root_is_taken_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name, data in {"x": b"1", "a/y.json": b"{}", "a/b/z": b"", "a/__init__.py": b""}.items():
        (tmp_path / name).write_bytes(data)
    found = collected(tmp_path, "generic")
    assert paths(found) == ["x", "a/__init__.py", "a/y.json", "a/b/z"]
    assert [draft.unit for draft in found.drafts] == [Unit.FILE, Unit.MODULE, Unit.FILE, Unit.FILE]


def test_kernels_are_found_at_any_depth_and_by_any_name(tmp_path: Path) -> None:
    names = ["triton/0/" + KEY, "rank_0_0/triton_cache/" + KEY, KEY, "base64-like_Key"]
    for name in names:
        place = synthetic_kernel(tmp_path / os.path.dirname(name), "add", key=os.path.basename(name))
        assert place == tmp_path / name
    found = collected(tmp_path)
    assert sorted(paths(found)) == sorted(names)
    assert all(draft.unit is Unit.KERNEL for draft in found.drafts)


def test_a_helper_directory_without_a_group_file_is_taken_file_by_file(tmp_path: Path) -> None:
    helper = tmp_path / path_key("ab" * 32)
    helper.mkdir()
    (helper / "cuda_utils.so").write_bytes(b"not ELF")
    (helper / "notes").write_bytes(b"x")
    found = collected(tmp_path)
    assert paths(found) == [f"{helper.name}/notes"]
    assert list(reasons(found)) == [f"triton/{helper.name}/cuda_utils.so"]


def test_files_below_a_kernel_are_entries_of_their_own(kernel: Path, root: Path) -> None:
    (kernel / "sub").mkdir()
    (kernel / "sub" / "x").write_bytes(b"1")
    found = collected(root)
    assert paths(found) == [KEY, f"{KEY}/sub/x"]


def test_a_tree_deeper_than_the_stack_is_walked_and_what_a_path_cannot_hold_is_skipped(tmp_path: Path) -> None:
    # The loss: RecursionError in place of a bundle.
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    (tmp_path / "x").write_bytes(b"1")
    found = collected(tmp_path, "generic")
    assert paths(found) == ["x"]
    ((path, reason),) = reasons(found).items()
    assert path.count("/") == 129 and reason == "number of parts of a path is 129, and a bundle holds 128 at most"
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # too deep for shutil.rmtree, pytest's own too


# --- what is no entry ------------------------------------------------------------------------------------------------


def test_staging_locks_and_byte_code_are_left_out_at_every_level(kernel: Path, root: Path) -> None:
    before = collected(root)
    for place in (root, kernel):
        for name in ("tmp.pid_1_ab", ".tb-0-1-2-3", "__pycache__", "locks", "tmp.7c9e6679-7425-40de-944b-e07fc1f90ae7"):
            (place / name).mkdir()
            (place / name / "add.cubin").write_bytes(b"half")
        for name in ("add.ttir.tmp.pid_7_x", "x.lock", "a.pyc", ".123.456.tmp", ".nfs000000000001", "lock"):
            (place / name).write_bytes(b"half")
    found = collected(root)
    assert paths(found) == paths(before) and found.skipped == []
    assert files(found.drafts[0]) == files(before.drafts[0])


def test_globs_leave_out_entries_and_whole_directories(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root")

    def without(*patterns: str) -> set[str]:
        return set(paths(collected(place, "inductor", exclude=patterns)))

    everything = without()
    assert without("*.py") == {path for path in everything if not path.endswith(".py")}
    assert without("inductor/triton") == {path for path in everything if not path.startswith("triton/")}
    assert without("triton/0/*", "cache") == {p for p in everything if not p.startswith(("triton/", "cache/"))}
    assert without("*") == set() and without("nothing", "inductor/nothing") == everything
    assert collected(place, "inductor", exclude=("*.py",)).skipped == []


def test_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root")
    everything = paths(collected(place, "inductor"))
    for wanted in ([], everything[:1], [everything[0], everything[-1], "absent"]):
        only = frozenset(("inductor", path) for path in wanted)
        assert set(paths(collected(place, "inductor", only=only))) == set(wanted) - {"absent"}
    assert paths(collected(place, "inductor", only=frozenset({("other", everything[0])}))) == []


def test_options_say_of_a_path_alone_whether_it_is_taken(tmp_path: Path) -> None:
    place = root_of(tmp_path)
    assert collect.takes(place, "a/b", Options())
    assert collect.takes(place, "a/b", Options(only=frozenset({("triton", "a/b")})))
    for options in (
        Options(exclude=("a/*",)),
        Options(exclude=("triton/a/b",)),
        Options(only=frozenset()),
        Options(banned=frozenset({("triton", "a/b")})),
    ):
        assert not collect.takes(place, "a/b", options)


def test_a_kernel_without_a_member_that_a_glob_leaves_out_is_not_whole(root: Path) -> None:
    found = collected(root, exclude=("*.ptx",))
    assert paths(found) == [] and reasons(found) == {
        f"triton/{KEY}": "add.ptx: listed in __grp__add.json, but not there"
    }


def _link(place: Path) -> None:
    place.symlink_to(place.parent)


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    here = os.getcwd()
    os.chdir(place.parent)  # the name of a socket has 100 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, tuple[Callable[[Path], None], str]] = {
    "link": (_link, "a symbolic link: a bundle holds regular files only"),
    "FIFO": (_fifo, "not a regular file: a bundle holds regular files only"),
    "socket": (_socket, "not a regular file: a bundle holds regular files only"),
}


@posix
@pytest.mark.parametrize("case", SPECIAL)
@pytest.mark.timeout(20)  # who opens a FIFO without care waits for ever
def test_what_is_no_regular_file_is_skipped_and_never_opened(case: str, kernel: Path, root: Path) -> None:
    make, reason = SPECIAL[case]
    make(root / "special")
    make(kernel / "special")
    found = collected(root)
    assert paths(found) == [KEY] and "special" not in files(found.drafts[0])
    assert reasons(found) == {"triton/special": reason, f"triton/{KEY}/special": reason}
    assert found.damaged == []


@posix
@pytest.mark.parametrize("case", SPECIAL)
@pytest.mark.timeout(20)
def test_a_member_that_is_no_regular_file_is_missing(case: str, kernel: Path, root: Path) -> None:
    (kernel / "add.ptx").unlink()
    SPECIAL[case][0](kernel / "add.ptx")
    found = collected(root)
    assert paths(found) == []
    assert reasons(found)[f"triton/{KEY}"] == "add.ptx: listed in __grp__add.json, but not there"


@posix
@pytest.mark.timeout(20)
def test_a_link_or_a_fifo_that_takes_the_place_of_a_file_is_not_followed_or_waited_for(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("outside")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "."):
        with pytest.raises(OSError):
            read_file(str(tmp_path / name))
        with pytest.raises(OSError):
            list(stream_file(str(tmp_path / name)))


@any_bytes
def test_a_name_that_is_not_utf_8_is_skipped_with_its_bytes_shown(kernel: Path, root: Path) -> None:
    for place in (root, kernel):
        with open(os.path.join(os.fsencode(place), b"caf\xe9"), "wb") as file:
            file.write(b"x")
    found = collected(root)
    assert paths(found) == [KEY]
    assert reasons(found) == {
        r"triton/caf\udce9": "the name is not UTF-8",
        rf"triton/{KEY}/caf\udce9": "the name is not UTF-8",
    }


def test_a_reason_can_always_be_written_down(root: Path, kernel: Path) -> None:
    """The loss: a lone surrogate in one damaged group file ended the pack of the whole cache."""
    (kernel / "__grp__add.json").write_text(json.dumps({"child_paths": {"a\ud800": "/x/\udcff/a\ud800"}}))
    (kernel / "__grp__b.json").write_text(json.dumps({"child_paths": {"b\ud800": f"/x/{KEY}/b\ud800"}}))
    found = collected(root)
    (reason,) = reasons(found).values()
    assert reason.encode() and r"b\ud800" in reason
    assert shown("caf\udce9/ü") == r"caf\udce9/ü"


# --- damaged entries -------------------------------------------------------------------------------------------------


def _rewrite_group(kernel: Path, change: Callable[[dict[str, str]], object]) -> None:
    group = json.loads((kernel / "__grp__add.json").read_bytes())
    change(group["child_paths"])
    (kernel / "__grp__add.json").write_text(json.dumps(group))


def _nul(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


# case -> (damage to a kernel for cuda:90, code, words of the reason)
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a group file of no bytes": (lambda kernel: _cut(kernel / "__grp__add.json", 0), "empty", "0 bytes"),
    "a group file of ten bytes": (lambda kernel: _cut(kernel / "__grp__add.json", 10), "bad_json", "not a group file"),
    "a group file of NULs": (lambda kernel: _nul(kernel / "__grp__add.json"), "nul_filled", "all NUL"),
    "a missing binary": (lambda kernel: (kernel / "add.cubin").unlink(), "missing_member", "add.cubin: listed in"),
    "an empty binary": (lambda kernel: _cut(kernel / "add.cubin", 0), "empty", "add.cubin: 0 bytes"),
    "a binary cut off": (lambda kernel: _cut(kernel / "add.cubin", 500), "bad_elf", "add.cubin:"),
    "a binary of NULs": (lambda kernel: _nul(kernel / "add.cubin"), "nul_filled", "add.cubin:"),
    "a stage of NULs": (lambda kernel: _nul(kernel / "add.ptx"), "nul_filled", "add.ptx:"),
    "metadata cut off": (lambda kernel: _cut(kernel / "add.json", 40), "bad_json", "add.json:"),
    "no binary of any kind": (
        lambda kernel: ((kernel / "add.cubin").unlink(), _rewrite_group(kernel, lambda paths: paths.pop("add.cubin"))),
        "missing_member",
        "lists no binary",
    ),
    "a child outside": (
        lambda kernel: _rewrite_group(kernel, lambda paths: paths.update({"add.ptx": "/elsewhere/add.ptx"})),
        "bad_json",
        "members in different directories",
    ),
    "a child of another name": (
        lambda kernel: _rewrite_group(kernel, lambda paths: paths.update({"add.ptx": paths["add.ttir"]})),
        "bad_json",
        "of another name",
    ),
    "a child above": (
        lambda kernel: _rewrite_group(kernel, lambda paths: paths.update({"../x": f"{kernel}/../x"})),
        "bad_json",
        "of another name",
    ),
    "another GPU in the metadata": (
        lambda kernel: (kernel / "add.json").write_text(
            json.dumps({"target": {"backend": "cuda", "arch": 80, "warp_size": 32}})
        ),
        "target_mismatch",
        "the binary is for cuda:90, add.json says cuda:80",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_kernel_is_skipped_whole_and_its_neighbour_taken(case: str, kernel: Path, root: Path) -> None:
    damage, code, words = DAMAGE[case]
    other = synthetic_kernel(root, "mul")
    damage(kernel)
    found = collected(root)
    assert paths(found) == [other.name]
    ((path, reason),) = reasons(found).items()
    assert path == f"triton/{KEY}" and words in reason
    assert {entry for entry, _ in found.damaged} == {f"triton/{KEY}"}
    assert code in {problem.code for _, problem in found.damaged}
    assert found.bytes_in == sum(path.stat().st_size for path in other.iterdir())


def test_a_kernel_renamed_to_another_key_is_damaged(kernel: Path, root: Path) -> None:
    kernel.rename(root / "OTHER")
    found = collected(root)
    assert paths(found) == [] and "lies in a directory named 'OTHER'" in reasons(found)["triton/OTHER"]


def test_many_problems_are_told_by_the_first_three(kernel: Path, root: Path) -> None:
    for name in ("add.source", "add.ttir", "add.ttgir", "add.llir", "add.ptx"):
        (kernel / name).unlink()
    found = collected(root)
    assert reasons(found)[f"triton/{KEY}"].count(";") == 2
    assert len(found.damaged) == 5


def test_single_files_that_are_damaged_are_skipped(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root", kernels=1, graphs=1, helpers=False)
    module, graph = next(place.glob("??/*.py")), next(path for path in (place / "fxgraph").rglob("*") if path.is_file())
    module.write_text("def f(")
    _cut(graph, 300)
    found = collected(place, "inductor")
    assert {path.removeprefix("inductor/") for path in reasons(found)} == {
        path.relative_to(place).as_posix() for path in (module, graph)
    }
    assert {problem.code for _, problem in found.damaged} == {"bad_python", "bad_pickle"}


def test_a_moved_tree_is_taken_as_it_lies(tmp_path: Path) -> None:
    """Members are looked up where the group file lies; what it records is never opened."""
    place = synthetic_kernel(tmp_path / "root", "add", recorded=f"/nonexistent/cache/{KEY}")
    (draft,) = collected(tmp_path / "root").drafts
    assert draft.recorded == f"/nonexistent/cache/{KEY}"
    here = synthetic_kernel(tmp_path / "here", "add", source_file="/nonexistent/cache/kernels.py")
    (other,) = collected(here.parent).drafts
    assert [file.digest for file in draft.files] == [file.digest for file in other.files]
    assert place.exists()


@pytest.mark.parametrize("suffix", ["zebin", "spv", "npubin", "hsaco2", "never-seen"])
def test_a_binary_of_any_suffix_is_a_binary(suffix: str, kernel: Path, root: Path) -> None:
    (kernel / "add.cubin").unlink()
    (kernel / f"add.{suffix}").write_bytes(b"some binary")
    _rewrite_group(
        kernel, lambda paths: (paths.pop("add.cubin"), paths.update({f"add.{suffix}": f"{kernel}/add.{suffix}"}))
    )
    for profile in Profile:
        (draft,) = collected(root, profile=profile).drafts
        assert f"add.{suffix}" in files(draft) and draft.target == Target("cuda", "90", 32)


# --- profiles --------------------------------------------------------------------------------------------------------


def test_a_runtime_profile_has_the_binary_the_metadata_and_a_group_file_of_those(kernel: Path, root: Path) -> None:
    (kernel / "notes").write_bytes(b"a stray file")
    (full,), (runtime,) = collected(root).drafts, collected(root, profile=Profile.RUNTIME).drafts
    assert set(files(full)) == {path.name for path in kernel.iterdir()}
    assert set(files(runtime)) == {"__grp__add.json", "add.json", "add.cubin"}
    group = json.loads(files(runtime)["__grp__add.json"])
    assert group == {"child_paths": {name: f"[REPLACE]/{name}" for name in ("add.cubin", "add.json")}}
    assert (runtime.target, runtime.recorded, runtime.module) == (full.target, full.recorded, full.module)
    (made,) = [file for file in runtime.files if file.name == "__grp__add.json"]
    assert made.disk_size == (kernel / "__grp__add.json").stat().st_size and list(made.reopen()) == []


def test_ir_that_no_launch_reads_must_only_be_there(kernel: Path, root: Path) -> None:
    (kernel / "add.ptx").write_bytes(bytes(99))  # found by those who read it
    options = {"profile": Profile.RUNTIME, "launch_only": True}
    (draft,) = collected(root, **options).drafts
    assert set(files(draft)) == {"__grp__add.json", "add.json", "add.cubin"} and draft.module == ""
    assert collected(root, profile=Profile.RUNTIME).drafts == []
    (kernel / "add.ptx").write_bytes(b"")
    assert reasons(collected(root, **options)) == {f"triton/{KEY}": "add.ptx: 0 bytes: the write was cut off"}
    (kernel / "add.ptx").unlink()
    assert "not there" in reasons(collected(root, **options))[f"triton/{KEY}"]


def test_two_kernels_in_one_directory_keep_a_group_file_each(kernel: Path, root: Path) -> None:
    synthetic_kernel(root, "mul", key=KEY)
    (draft,) = collected(root, profile=Profile.RUNTIME).drafts
    assert set(files(draft)) == {
        f"{prefix}{name}.{suffix}"
        for name in ("add", "mul")
        for prefix, suffix in (("__grp__", "json"), ("", "json"), ("", "cubin"))
    }


def test_other_entries_are_the_same_in_both_profiles(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root")
    full, runtime = (collected(place, "inductor", profile=profile) for profile in Profile)
    assert paths(full) == paths(runtime)
    for one, other in zip(full.drafts, runtime.drafts, strict=True):
        assert one.unit is Unit.KERNEL or [f.digest for f in one.files] == [f.digest for f in other.files]


# --- what changes meanwhile ------------------------------------------------------------------------------------------


@pytest.fixture
def meddle(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object], int], None]:
    """``meddle(name, act, times)``: act when a file of that name is open and was looked at, the first times."""
    open_file, look_at = os.open, os.fstat

    def install(name: str, act: Callable[[], object], times: int = 1) -> None:
        left, descriptors = [times], set()

        def opened(path: Any, *args: Any, **kwargs: Any) -> int:
            descriptor = open_file(path, *args, **kwargs)
            if str(path).endswith(name) and left[0] and not args[0] & os.O_WRONLY:
                left[0] -= 1
                descriptors.add(descriptor)
            return descriptor

        def looked(descriptor: int) -> os.stat_result:
            status = look_at(descriptor)
            if descriptor in descriptors:
                descriptors.remove(descriptor)
                act()
            return status

        monkeypatch.setattr(collect.os, "open", opened)
        monkeypatch.setattr(collect.os, "fstat", looked)

    return install


def _append(path: Path) -> Callable[[], object]:
    def act() -> None:
        with open(path, "ab") as file:
            file.write(b"//more")

    return act


def _replace(path: Path, data: bytes) -> Callable[[], object]:
    def act() -> None:
        other = path.with_suffix(".new")
        other.write_bytes(data)
        os.replace(other, path)

    return act


Meddle = Callable[..., None]


def test_a_file_that_grows_while_it_is_read_is_read_again(kernel: Path, root: Path, meddle: Meddle) -> None:
    meddle("add.ptx", _append(kernel / "add.ptx"))
    found = collected(root)
    assert files(found.drafts[0])["add.ptx"] == (kernel / "add.ptx").read_bytes() and found.skipped == []


def test_a_kernel_that_changes_twice_is_skipped(kernel: Path, root: Path, meddle: Meddle) -> None:
    meddle("add.ptx", _append(kernel / "add.ptx"), 2)
    found = collected(root)
    assert paths(found) == [] and found.damaged == []
    assert reasons(found) == {f"triton/{KEY}": "add.ptx changed or vanished while it was read, twice"}


def test_files_of_two_builds_are_never_packed_as_one(kernel: Path, root: Path, meddle: Meddle, tmp_path: Path) -> None:
    """The loss: metadata of one build with the binary of another launches with the wrong shared memory size."""
    other = synthetic_kernel(tmp_path / "other", "add", key=KEY, recorded=str(kernel), seed=5)
    builds = [{path.name: path.read_bytes() for path in place.iterdir()} for place in (kernel, other)]

    def publish() -> None:
        for path in other.iterdir():
            _replace(kernel / path.name, path.read_bytes())()

    # By the time that the last file is read, those before it have been replaced.
    meddle("add.ttir", publish)
    found = collected(root)
    (draft,) = found.drafts
    data = files(draft)
    data["__grp__add.json"] = data["__grp__add.json"].replace(b"[REPLACE]", str(kernel).encode())
    assert data == builds[1]


def test_a_kernel_whose_files_are_replaced_again_and_again_is_skipped(kernel: Path, root: Path, meddle: Meddle) -> None:
    meddle("add.ttir", lambda: _replace(kernel / "add.json", (kernel / "add.json").read_bytes())(), 2)
    assert reasons(collected(root)) == {f"triton/{KEY}": f"{KEY} changed or vanished while it was read, twice"}


def test_a_stray_file_that_vanishes_between_listing_and_reading_costs_nothing(
    kernel: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss: a whole kernel, skipped because a neighbour's temporary file was renamed away."""
    original = collect._scan

    def listed(path: str) -> list[tuple[str, int]]:
        return [*original(path), *([("gone.ttir", stat.S_IFREG)] if path.endswith(KEY) else [])]

    with monkeypatch.context() as patch:
        patch.setattr(collect, "_scan", listed)
        assert reasons(collected(root)) == {f"triton/{KEY}": "gone.ttir changed or vanished while it was read, twice"}

    (kernel / "gone.ttir").write_bytes(b"x")
    open_file = os.open

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("gone.ttir"):
            os.unlink(kernel / "gone.ttir")
        return open_file(path, *args, **kwargs)

    monkeypatch.setattr(collect.os, "open", opened)
    found = collected(root)
    assert paths(found) == [KEY] and found.skipped == []


def test_a_kernel_that_vanishes_while_it_is_read_is_skipped_and_not_called_damaged(
    kernel: Path, root: Path, meddle: Meddle
) -> None:
    meddle("__grp__add.json", lambda: shutil.rmtree(kernel))
    found = collected(root)
    assert paths(found) == [] and found.damaged == []
    assert reasons(found) == {f"triton/{KEY}": f"{KEY} changed or vanished while it was read, twice"}


def test_a_member_that_vanishes_when_it_was_read_is_missed(kernel: Path, root: Path, meddle: Meddle) -> None:
    meddle("add.ttir", (kernel / "add.json").unlink)
    assert reasons(collected(root)) == {f"triton/{KEY}": "add.json: listed in __grp__add.json, but not there"}


def test_a_kernel_that_vanishes_before_it_is_opened_is_skipped_and_not_called_damaged(
    kernel: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = collect._scan

    def listed(path: str) -> list[tuple[str, int]]:
        found = original(path)
        if path.endswith(KEY):
            shutil.rmtree(kernel)
        return found

    monkeypatch.setattr(collect, "_scan", listed)
    found = collected(root)
    assert paths(found) == [] and found.damaged == []
    assert reasons(found) == {f"triton/{KEY}": f"{KEY} changed or vanished while it was read, twice"}


def test_a_single_file_that_is_removed_or_replaced_while_it_is_read_is_taken_as_it_was(
    tmp_path: Path, meddle: Meddle
) -> None:
    for act in (_replace(tmp_path / "x", b"2"), (tmp_path / "x").unlink):
        (tmp_path / "x").write_bytes(b"1")
        meddle("/x", act)
        found = collected(tmp_path, "generic")
        assert [files(draft) for draft in found.drafts] == [{"x": b"1"}] and found.skipped == []


def test_directories_and_files_that_vanish_before_they_are_read_are_no_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"1")
    original = collect._scan

    def listed(path: str) -> list[tuple[str, int]]:
        if path.endswith("/d"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return [*original(path), ("gone", -errno.ENOENT)]

    monkeypatch.setattr(collect, "_scan", listed)
    found = collected(tmp_path, "generic")
    assert found.drafts == [] and found.skipped == []


def test_a_single_file_that_changes_is_read_again_then_skipped(tmp_path: Path, meddle: Meddle) -> None:
    (tmp_path / "x").write_bytes(b"1")
    meddle("/x", _append(tmp_path / "x"))
    found = collected(tmp_path, "generic")
    assert files(found.drafts[0]) == {"x": b"1//more"}
    meddle("/x", _append(tmp_path / "x"), 2)
    found = collected(tmp_path, "generic")
    assert found.drafts == [] and reasons(found) == {"generic/x": "changed or vanished while it was read, twice"}


def test_a_single_file_that_vanishes_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"1")
    monkeypatch.setattr(collect, "open_unseen", lambda path, *_: os.unlink(path) or os.stat(path))
    found = collected(tmp_path, "generic")
    assert reasons(found) == {"generic/x": "changed or vanished while it was read, twice"}


@pytest.mark.timeout(60)
def test_a_compiler_at_work_costs_no_kernel_that_is_whole(tmp_path: Path) -> None:
    """Staging files come and go, other kernels are published: what was whole before is packed."""
    root = tmp_path / "root"
    whole = {synthetic_kernel(root, "add", seed=seed).name for seed in range(4)}
    fresh = synthetic_kernel(tmp_path / "fresh", "mul")
    stop = threading.Event()

    def compiler() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for key in whole:
                staged = root / key / f"tmp.pid_{os.getpid()}_{number}"
                staged.mkdir()
                (staged / "add.ttir").write_bytes(b"half")
                plain = root / key / f"k.ttir.tmp.pid_7_{number}"
                plain.write_bytes(b"half")
                plain.unlink()
                shutil.rmtree(staged)
            shutil.copytree(fresh, root / f"published{number}", dirs_exist_ok=True)
            shutil.rmtree(root / f"published{number}")

    thread = threading.Thread(target=compiler)
    thread.start()
    try:
        for _ in range(30):
            found = collected(root)
            assert whole <= set(paths(found))
            assert not [path for path in reasons(found) if "published" not in path]
    finally:
        stop.set()
        thread.join()


# --- what cannot be read ---------------------------------------------------------------------------------------------


def _as_somebody_else(work: Callable[[], Any], place: Path) -> Any:
    """Run ``work`` without root's power to read everything, and return its result."""
    if os.geteuid() != 0:
        return work()
    for directory in (place, *place.parents):  # the directories of pytest are closed to others
        if directory.owner() == "root" and stat.S_IMODE(directory.stat().st_mode) == 0o700:
            directory.chmod(0o711)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with os.fdopen(writer, "wb") as file:
                pickle.dump(work(), file)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        result = pickle.load(file)
    os.waitpid(child, 0)
    return result


@posix
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_what_may_not_be_read_is_skipped_with_the_reason(tmp_path: Path) -> None:
    root = tmp_path / "root"
    kernels = [synthetic_kernel(root, "add", seed=seed) for seed in range(3)]
    (root / "closed").mkdir()
    (root / "secret").write_bytes(b"x")
    closed = [kernels[0] / "add.cubin", kernels[1], root / "closed", root / "secret"]
    for path in closed:
        path.chmod(0)
    try:
        found = _as_somebody_else(lambda: (paths(f := collected(root)), reasons(f)), root)
    finally:
        for path in closed:
            path.chmod(0o755)
    assert found == (
        [kernels[2].name],
        {
            "triton/secret": "cannot be read: Permission denied",
            "triton/closed": "cannot be listed: Permission denied",
            f"triton/{kernels[0].name}": "cannot be read: Permission denied",
            f"triton/{kernels[1].name}": "cannot be listed: Permission denied",
        },
    )


def test_what_cannot_be_looked_at_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"1")

    def looked(descriptor: int) -> os.stat_result:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(collect.os, "fstat", looked)
        found = collected(tmp_path, "generic")
    assert reasons(found) == {"generic/x": "cannot be read: Input/output error"}


@posix
def test_where_a_listing_tells_no_kinds_each_thing_is_looked_at(
    kernel: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems tell names alone; a thing that is gone by then, or cannot be looked at, ends nothing."""
    for name in ("x", "gone", "broken"):
        (root / name).write_bytes(b"1")
    (root / "link").symlink_to("x")
    scandir = os.scandir

    class Untold:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.name, self.path = entry.name, entry.path

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            if self.name == "broken":
                raise OSError(5, "Input/output error")
            return os.lstat("/nonexistent/" if self.name == "gone" else self.path)

        def is_file(self, *, follow_symlinks: bool) -> bool:
            return self.name != "gone" and stat.S_ISREG(self.stat(follow_symlinks=False).st_mode)

        def is_dir(self, *, follow_symlinks: bool) -> bool:
            return self.name != "gone" and stat.S_ISDIR(self.stat(follow_symlinks=False).st_mode)

    @contextmanager
    def scanned(path: str) -> Iterator[Iterator[Untold]]:
        with scandir(path) as found:
            yield map(Untold, found)

    monkeypatch.setattr(collect.os, "scandir", scanned)
    found = collected(root)
    assert paths(found) == ["x", KEY]
    assert reasons(found) == {
        "triton/broken": "cannot be read: Input/output error",
        "triton/link": "a symbolic link: a bundle holds regular files only",
    }


def test_without_descriptors_of_directories_the_same_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = synthetic_inductor_root(tmp_path / "root")
    usual = collected(place, "inductor")
    monkeypatch.setattr(collect, "_HAS_DESCRIPTORS", False)
    found = collected(place, "inductor")
    assert [(draft.path, files(draft)) for draft in found.drafts] == [(d.path, files(d)) for d in usual.drafts]


def test_a_file_that_cannot_be_opened_costs_its_entry_and_no_other(
    kernel: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "x").write_bytes(b"1")
    other = synthetic_kernel(root, "mul")
    original = os.open

    def opened(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(("add.ptx", "/x")):
            raise OSError(5, "Input/output error", path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(collect.os, "open", opened)
    found = collected(root)
    assert paths(found) == [other.name] and found.damaged == []
    assert reasons(found) == dict.fromkeys([f"triton/{KEY}", "triton/x"], "cannot be read: Input/output error")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_bytes(b"x")], ids=["absent", "a file"])
def test_a_root_that_cannot_be_listed_is_an_error(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "root")
    with pytest.raises(LocalIOError) as error:
        collected(tmp_path / "root")
    assert error.value.path == str(tmp_path / "root") and error.value.action == "read the root"


def test_a_kernel_directory_is_no_root(kernel: Path) -> None:
    with pytest.raises(UsageError, match=f"is a kernel directory, not a root.*{kernel.parent}"):
        collected(kernel)


# --- single kernels --------------------------------------------------------------------------------------------------


@any_bytes
def test_kernels_are_taken_by_name_and_absent_ones_skipped(kernel: Path, root: Path) -> None:
    (root / "EMPTY").mkdir()
    (root / "closed").write_bytes(b"no directory")
    (kernel / "link").symlink_to("add.cubin")
    (kernel / "x.lock").write_bytes(b"")
    with open(os.path.join(os.fsencode(kernel), b"\xff"), "wb"):
        pass
    into = Collected()
    collect_kernels(root_of(root), [KEY, "ABSENT", "EMPTY", "closed"], Options(), into)
    assert paths(into) == [KEY]
    assert set(files(into.drafts[0])) == {p.name for p in kernel.iterdir()} - {"link", "x.lock", "\udcff"}
    assert reasons(into) == {
        rf"triton/{KEY}/\udcff": "the name is not UTF-8",
        "triton/ABSENT": "no such kernel directory: it was never written, or is gone",
        "triton/EMPTY": "no group file: the kernel counts as absent",
        "triton/closed": "no such kernel directory: it was never written, or is gone",
    }


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_into_memory_is_kept_as_digests(kernel: Path, root: Path) -> None:
    (draft,) = collected(root, keep_bytes=0).drafts
    (full,) = collected(root).drafts
    # The group file was edited: it cannot simply be read again.
    assert [file.name for file in draft.files if file.data is not None] == ["__grp__add.json"]
    assert [file.digest for file in draft.files] == [file.digest for file in full.files]
    for file in draft.files:
        assert file.data is not None or b"".join(file.reopen()) == (kernel / file.name).read_bytes()
    budget = (kernel / "add.cubin").stat().st_size + (kernel / "__grp__add.json").stat().st_size
    (some,) = collected(root, keep_bytes=budget).drafts
    assert {file.name for file in some.files if file.data is not None} >= {"add.cubin", "__grp__add.json"}
    assert sum(len(file.data) for file in some.files if file.data is not None) <= budget + 1000


def test_a_large_file_is_streamed_and_judged_by_its_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WHOLE_LIMIT", 1000)
    monkeypatch.setattr(collect, "_CHUNK", 300)
    data = {
        "ok": os.urandom(5000),
        "fxgraph/ab/fabc/good": b"\x80\x04" + bytes(2000) + b".",
        "fxgraph/ab/fabc/cut": b"\x80\x04" + bytes(2000),
        "fxgraph/ab/fabc/nul": bytes(5000),
        "ab/x.so": b"#!/bin/sh" * 300,
        "at the limit": bytes(1000),
    }
    for name, content in data.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    found = collected(tmp_path, "inductor")
    assert set(paths(found)) == {"ok", "fxgraph/ab/fabc/good", "at the limit"}
    assert {path: problem.code for path, problem in found.damaged} == {
        "inductor/fxgraph/ab/fabc/cut": "bad_pickle",
        "inductor/fxgraph/ab/fabc/nul": "nul_filled",
        "inductor/ab/x.so": "bad_elf",
    }
    (large,) = [draft.files[0] for draft in found.drafts if draft.path == "ok"]
    assert large.data is None and large.size == large.disk_size == 5000
    assert b"".join(large.reopen()) == data["ok"]
    assert large.digest == hashlib.sha256(data["ok"]).digest()


def test_a_large_file_that_grows_or_vanishes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meddle: Meddle
) -> None:
    monkeypatch.setattr(check, "WHOLE_LIMIT", 1000)
    (tmp_path / "x").write_bytes(b"1" * 2000)
    original = collect.stream_file
    chunks = iter([True, False, True, True])

    def streamed(path: str) -> Any:
        yield from original(path)
        if next(chunks):
            _append(tmp_path / "x")()

    monkeypatch.setattr(collect, "stream_file", streamed)
    found = collected(tmp_path, "generic")
    assert found.drafts[0].files[0].size == 2006
    found = collected(tmp_path, "generic")
    assert reasons(found) == {"generic/x": "changed or vanished while it was read, twice"}


def test_a_file_is_read_whole_even_when_the_system_gives_it_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    original = os.read
    monkeypatch.setattr(collect.os, "read", lambda fd, size: original(fd, min(size, 3)))
    assert read_file(str(tmp_path / "x")) == b"0123456789"
    assert b"".join(stream_file(str(tmp_path / "x"))) == b"0123456789"


def test_a_file_that_was_written_to_in_place_is_not_taken(tmp_path: Path, meddle: Meddle) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")

    def overwrite() -> None:
        with open(path, "r+b") as file:
            file.write(b"9")
        os.utime(path, ns=(0, time.time_ns() + 1_000_000_000))

    meddle("/x", overwrite)
    assert read_file(str(path)) is None
    assert read_file(str(path)) == b"9123456789"


# --- what a pickle and an IR say -------------------------------------------------------------------------------------


def test_long_strings_of_fx_graphs_are_hashed_and_their_time_is_added_up(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "root", kernels=1, graphs=1)
    found = collected(place, "inductor")
    (graph,) = [draft for draft in found.drafts if draft.unit is Unit.FXGRAPH]
    (kernel,) = [draft for draft in found.drafts if draft.unit is Unit.KERNEL]
    copied = {digest for _, _, digest in graph.files[0].long}
    assert {file.digest for file in kernel.files if file.size >= 128} <= copied
    for number, nanoseconds in enumerate((1_000_000, 2_500_000)):
        entry = place / "fxgraph" / "zz" / f"fzz{number}"
        entry.mkdir(parents=True)
        (entry / "h").write_bytes(pickle.dumps({"_time_taken_ns": nanoseconds}, 4))
    assert collected(place, "inductor").compile_ns == 3_500_000


def test_a_banned_entry_is_skipped(kernel: Path, root: Path) -> None:
    found = collected(root, banned=frozenset({("triton", KEY)}))
    assert paths(found) == [] and found.bytes_in == 0
    assert found.skipped == [
        Skipped(f"triton/{KEY}", "changed while it was read, twice: something is writing to it"),
    ]


MODULES: dict[str, tuple[dict[str, bytes], str]] = {
    "nothing": ({}, ""),
    "no location": ({"a.ttir": b"module {}"}, ""),
    "a location": ({"a.ttir": b'#loc = loc("/tmp/i/ab/cab.py":18:0)'}, "cab.py"),
    "a bare name": ({"a.ttir": b'loc("cab.py":1:1)'}, "cab.py"),
    "no Python": ({"a.ttir": b'loc("in_ptr0")'}, ""),
    "the earliest stage": ({"a.ttgir": b'loc("/x/b.py":1)', "a.source": b'loc("/x/a.py":1)'}, "a.py"),
    "IR before source": ({"a.source": b'loc("/x/b.py":1)', "a.ttir": b'loc("/x/a.py":1)'}, "a.py"),
    "another stage alone": ({"a.llir": b'loc("/x/b.py":1)'}, ""),
    "not UTF-8": ({"a.ttir": b'loc("/x/\xff.py":1)'}, "\ufffd.py"),
}


@pytest.mark.parametrize("case", MODULES)
def test_the_module_of_a_kernel_is_told_by_its_ir(case: str) -> None:
    stages, module = MODULES[case]
    assert module_of(stages) == module
