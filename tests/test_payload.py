"""What was collected becomes a bundle: contents once, copies found, the same bytes however the tree came about."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bundler
from bundler import check, collect, host, packing
from bundler.collect import ChangedError, Collected, Draft, File, Options
from bundler.errors import NothingToPackError, SkippedError
from bundler.formats import Reader, open_bundle
from bundler.formats.v1 import write
from bundler.model import Base, Index, Profile, Relocation, RootRecord, Spelling, Unit
from bundler.payload import lay_out
from bundler.relocate import restore
from bundler.testing.trees import (
    VLLM_CACHE_FILE,
    default_key,
    kernel_directories,
    rehome,
    snapshot,
    synthetic_inductor_root,
    synthetic_kernel,
    synthetic_vllm_root,
)

KEY = default_key("add")


@pytest.fixture(autouse=True)
def fixed_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is true of this host is not what these tests are about."""
    monkeypatch.setattr(host, "facts", lambda: {"os": "linux", "cpu_isa": ["avx2"]})


def packed(*roots: str, **options: Any) -> tuple[bytes, packing.PackReport]:
    out = io.BytesIO()
    report = bundler.pack(roots, out, **options)
    return out.getvalue(), report


def opened(data: bytes) -> Reader:
    return open_bundle(io.BytesIO(data))


def files_of(data: bytes, roots: dict[str, str]) -> dict[str, bytes]:
    """Every file of a bundle by ``root/path``, with its placeholders written over."""
    reader = opened(data)
    found = {}
    for entry in reader.index.entries:
        for artifact in entry.artifacts:
            path = "/".join(filter(None, (entry.directory, artifact.name)))
            content = reader.read(artifact.content)
            if artifact.relocation is not None:
                root = roots[entry.root]
                base = f"{root}/{entry.directory}" if artifact.relocation.base is Base.ENTRY else root
                content = restore(content, artifact.relocation, base)
            found[f"{entry.root}/{path}"] = content
    return found


def tree_files(root: Path, name: str) -> dict[str, bytes]:
    return {f"{name}/{path}": data for path, data in snapshot(root).items() if not path.startswith("locks/")}


# --- the whole way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_bytes", [64 << 20, 100_000, 0])
def test_two_roots_are_packed_to_every_byte_that_they_hold(
    keep_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "Options", partial(Options, keep_bytes=keep_bytes))
    inductor = synthetic_inductor_root(tmp_path / "i")
    vllm = synthetic_vllm_root(tmp_path / "v")
    data, report = packed(f"inductor={inductor}", f"vllm={vllm}")
    expected = tree_files(inductor, "inductor") | tree_files(vllm, "vllm")
    assert files_of(data, {"inductor": str(inductor), "vllm": str(vllm)}) == expected
    assert report.files == len(expected) and report.bytes_in == sum(map(len, expected.values()))
    assert (report.bytes_out, report.skipped) == (len(data), ())
    assert report.content_digest == str(opened(data).content_digest)


def test_memory_makes_no_difference_to_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = synthetic_inductor_root(tmp_path / "i")
    one, _ = packed(f"inductor={place}")
    monkeypatch.setattr(packing, "Options", partial(Options, keep_bytes=0))
    assert packed(f"inductor={place}")[0] == one


def test_large_files_are_streamed_through_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WHOLE_LIMIT", 1000)
    monkeypatch.setattr(collect, "_CHUNK", 700)
    monkeypatch.setattr(packing, "write", partial(write, block_size=1024))
    data = {f"f{n}": random.Random(n).randbytes(size) for n, size in enumerate([0, 999, 1000, 1001, 5000, 5000])}
    (tmp_path / "root").mkdir()
    for name, content in data.items():
        (tmp_path / "root" / name).write_bytes(content)
    packed_data, _ = packed(f"generic={tmp_path / 'root'}")
    assert len(opened(packed_data).index.frames) > 10
    assert files_of(packed_data, {}) == {f"generic/{name}": content for name, content in data.items()}


# --- once, and copies ------------------------------------------------------------------------------------------------


def test_equal_kernels_of_eight_devices_cost_about_one(tmp_path: Path) -> None:
    one, eight = tmp_path / "one", tmp_path / "eight"
    for device in range(8):
        for root in (eight, one) if device == 0 else (eight,):
            for seed in range(2):
                synthetic_kernel(root / "triton" / str(device), "add", seed=seed, source_file="/x/k.py")
    single, single_report = packed(f"inductor={one}")
    several, report = packed(f"inductor={eight}")
    assert report.entries == 8 * single_report.entries
    # Group files name their directory, and are equal in placeholder form.
    assert opened(several).index.contents == opened(single).index.contents
    assert len(several) < 1.2 * len(single)


def test_files_inside_fx_graph_entries_are_copies(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i", kernels=4, graphs=2)
    data, _ = packed(f"inductor={place}")
    index = opened(data).index
    graphs = [entry for entry in index.entries if entry.unit is Unit.FXGRAPH]
    kernels = [entry for entry in index.entries if entry.unit is Unit.KERNEL]
    copied = {source for entry in graphs for _, source in index.contents[entry.artifacts[0].content].copies}
    of_kernels = {artifact.content for entry in kernels for artifact in entry.artifacts}
    of_modules = {entry.artifacts[0].content for entry in index.entries if entry.unit is Unit.MODULE}
    # Each file of each kernel, the group file in its placeholder form among them, but the tiny ones; and each module.
    assert copied <= of_kernels | of_modules and copied & of_modules
    assert all(index.contents[number].size < 128 for number in of_kernels - copied)
    for entry in graphs:
        content = index.contents[entry.artifacts[0].content]
        own = content.size - sum(index.contents[source].size for _, source in content.copies)
        assert own < content.size / 4
    assert sum(frame.raw_size for frame in index.frames) == index.content_size - sum(
        index.contents[number].size for number in copied
    )


def test_what_is_nowhere_else_is_no_copy(tmp_path: Path) -> None:
    """An FX graph alone holds its kernels whole; there is nothing that it could copy."""
    place = synthetic_inductor_root(tmp_path / "i", kernels=1, graphs=1)
    shutil.rmtree(place / "triton")
    for module in place.glob("??/*.py"):
        module.unlink()
    data, _ = packed(f"inductor={place}")
    assert not any(content.copies for content in opened(data).index.contents)


def _file(name: str, data: bytes, long: tuple[tuple[int, int], ...] = ()) -> File:
    strings = tuple((at, size, hashlib.sha256(data[at : at + size]).digest()) for at, size in long)
    return File(name, hashlib.sha256(data).digest(), len(data), len(data), lambda: [data], None, data, strings)


def _draft(path: str, data: bytes, unit: Unit = Unit.FILE, long: tuple[tuple[int, int], ...] = ()) -> Draft:
    return Draft("a", path, unit, [_file(path.rpartition("/")[2], data, long)])


def laid_out(drafts: list[Draft], recorded: dict[str, str] | None = None) -> tuple[Index, dict[str, bytes]]:
    """Lay out, write and read again."""
    payload = lay_out(Collected(drafts=drafts), recorded or {})
    out = io.BytesIO()
    index = Index(Profile.FULL, (RootRecord("a", "generic"),), payload.entries, (), ())
    report = write(out, index, payload.sources, annotate=payload.annotate)
    return report.index, {path.removeprefix("a/"): data for path, data in files_of(out.getvalue(), {}).items()}


def test_what_is_made_of_copies_is_itself_not_copied() -> None:
    part = b"p" * 200
    inner = b"<" + part + b">"
    outer = b"[" + inner + part + b"]"
    drafts = [
        _draft("outer", outer, long=((1, len(inner)), (1 + len(inner), 200))),
        _draft("inner", inner, long=((1, 200),)),
        _draft("part", part),
    ]
    index, files = laid_out(drafts)
    assert files == {"outer": outer, "inner": inner, "part": part}
    by_path = {entry.path: index.contents[entry.artifacts[0].content] for entry in index.entries}
    assert [len(by_path[name].copies) for name in ("outer", "inner", "part")] == [1, 1, 0]


def test_a_string_that_is_the_file_itself_is_no_copy() -> None:
    data = b"d" * 300
    index, files = laid_out([_draft("x", data, long=((0, 300),)), _draft("y", data)])
    assert files == {"x": data, "y": data} and len(index.contents) == 1 and not index.contents[0].copies


def test_a_source_may_be_copied_many_times_and_stand_at_either_end() -> None:
    part, other = b"p" * 200, b"q" * 150
    whole = part + other + part + b"end"
    index, files = laid_out(
        [_draft("w", whole, long=((0, 200), (200, 150), (350, 200))), _draft("p", part), _draft("q", other)]
    )
    assert files["w"] == whole
    assert index.contents[-1].copies == ((0, 0), (0, 1), (0, 0))
    assert sum(frame.raw_size for frame in index.frames) == 200 + 150 + 3


def test_copies_are_found_in_a_file_that_is_not_kept_in_memory() -> None:
    part = b"p" * 200
    drafts = [_draft("w", b"<" + part + b">", long=((1, 200),)), _draft("p", part)]
    for draft in drafts:
        draft.files[0].data = None
    index, files = laid_out(drafts)
    assert files == {"w": b"<" + part + b">", "p": part} and index.contents[1].copies == ((1, 0),)


def test_of_two_equal_files_the_one_in_memory_is_used() -> None:
    kept, dropped = _draft("kept", b"x" * 10), _draft("dropped", b"x" * 10)
    dropped.files[0].data = None
    dropped.files[0].reopen = lambda: pytest.fail("read again")
    for drafts in ([kept, dropped], [dropped, kept]):
        kept.files[0].data = b"x" * 10
        dropped.files[0].data = None
        assert laid_out(list(drafts))[1] == {"kept": b"x" * 10, "dropped": b"x" * 10}


# --- order -----------------------------------------------------------------------------------------------------------


def test_contents_stand_by_kind_then_by_name_and_composites_last(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i")
    index = opened(packed(f"inductor={place}")[0]).index
    names: dict[int, str] = {}
    for entry in index.entries:
        for artifact in entry.artifacts:
            names.setdefault(artifact.content, artifact.name)

    def kind(number: int) -> str:
        name = names[number]
        return "group" if name.startswith("__grp__") else check.suffix(name)

    plain = [number for number, content in enumerate(index.contents) if not content.copies]
    assert plain == list(range(len(plain)))
    kinds = [key for key, _ in itertools.groupby(map(kind, plain))]
    order = [".json", "group", ".source", ".ttir", ".ttgir", ".llir", ".ptx", ".cubin", ".py"]
    assert [key for key in kinds if key in order] == order
    for key in order:
        same = [names[number] for number in plain if kind(number) == key]
        assert same == sorted(same)


def test_the_order_in_which_entries_were_found_leaves_the_bytes_alone() -> None:
    part = b"p" * 200
    drafts = [
        _draft("b/w", b"<" + part + b">", long=((1, 200),)),
        _draft("a/p.json", part),
        _draft("c.py", b"x"),
        _draft("d", b""),
        _draft("e.ttir", b"y" * 50),
    ]
    results = set()
    for order in itertools.permutations(drafts):
        for draft in order:
            draft.files[0].data = None
        index, _ = laid_out(list(order))
        results.add(hashlib.sha256(repr(index).encode()).digest())
    assert len(results) == 1


def _scramble(root: Path, seed: int) -> None:
    """Make the tree again: other order of creation, other times, another umask."""
    files = list(snapshot(root).items())
    shutil.rmtree(root)
    random.Random(seed).shuffle(files)
    before = os.umask([0o000, 0o027, 0o077][seed % 3])
    try:
        for path, data in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            os.utime(root / path, (seed, 1_000_000_000 + seed))
    finally:
        os.umask(before)


@pytest.mark.parametrize("profile", [profile.value for profile in Profile])
def test_order_of_creation_times_and_modes_leave_the_bytes_alone(profile: str, tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i")
    one, _ = packed(f"inductor={place}", profile=profile)
    for seed in range(3):
        _scramble(place, seed)
        assert packed(f"inductor={place}", profile=profile)[0] == one


def test_a_tree_that_was_moved_has_the_same_content_digest(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i", recorded="/packed/i")
    _, report = packed(f"inductor={place}")
    for name, change in {"moved": lambda root: root, "rehomed": rehome}.items():
        other = change(Path(shutil.copytree(place, tmp_path / name)))
        data, again = packed(f"inductor={other}", level=9)
        assert again.content_digest == report.content_digest
        assert opened(data).index.roots[0].path == str(other)


# --- placeholders ----------------------------------------------------------------------------------------------------


def test_only_files_with_paths_have_placeholders(tmp_path: Path) -> None:
    place = synthetic_vllm_root(tmp_path / "v")
    index = opened(packed(f"vllm={place}")[0]).index
    relocated = {
        artifact.name: artifact.relocation for e in index.entries for artifact in e.artifacts if artifact.relocation
    }
    assert {(name.startswith("__grp__"), row.base, row.spelling) for name, row in relocated.items()} == {
        (True, Base.ENTRY, Spelling.JSON),
        (False, Base.ROOT, Spelling.PYTHON),
    }
    assert {name for name in relocated if not name.startswith("__grp__")} == {VLLM_CACHE_FILE}


def test_a_table_without_a_path_below_the_root_has_none(tmp_path: Path) -> None:
    (tmp_path / "v" / "torch_compile_cache").mkdir(parents=True)
    (tmp_path / "v" / "torch_compile_cache" / VLLM_CACHE_FILE).write_text("{'a': '/usr/lib/x'}")
    index = opened(packed(f"vllm={tmp_path / 'v'}")[0]).index
    assert index.entries[0].artifacts[0].relocation is None


def test_a_relocation_of_no_placeholder_is_not_written() -> None:
    draft = _draft("x", b"data")
    draft.files[0].relocation = Relocation(Base.ENTRY, Spelling.JSON, ())
    index, _ = laid_out([draft])
    assert index.entries[0].artifacts[0].relocation is None


def test_a_runtime_profile_points_home_and_is_made_for_each_kernel(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i")
    data, _ = packed(f"inductor={place}", profile="runtime")
    assert opened(data).index.profile is Profile.RUNTIME
    found = files_of(data, {"inductor": str(place)})
    for kernel in kernel_directories(place):
        inside = f"inductor/{kernel.relative_to(place).as_posix()}/"
        names = {path.removeprefix(inside) for path in found if path.startswith(inside)}
        (group,) = [name for name in names if name.startswith("__grp__")]
        children = json.loads(found[inside + group])["child_paths"]
        assert children.keys() == names - {group} and len(children) == 2
        assert all(path == f"{kernel}/{name}" for name, path in children.items())


# --- foreign paths, facts, needs -------------------------------------------------------------------------------------


def test_foreign_paths_are_told_once_and_the_root_by_its_recorded_place(tmp_path: Path) -> None:
    synthetic_kernel(
        tmp_path / "t", "add", recorded=f"/home/packer/cache/{KEY}", source_file="/home/packer/cache/x/k.py"
    )
    index = opened(packed(f"triton={tmp_path / 't'}")[0]).index
    assert index.facts["recorded_roots"] == {"triton": "/home/packer/cache"}
    assert index.foreign[0] == () and list(index.foreign[1:]) == sorted(set(index.foreign[1:]))
    named = {path for row in index.foreign for path in row}
    assert "/home/packer/cache" in named and "/home/packer/cache/x" not in named
    assert "/opt/venv/lib/python3.12/site-packages/triton/backends/nvidia/lib" in named
    assert {content.foreign for content in index.contents} == set(range(len(index.foreign)))


@given(rows=st.lists(st.sampled_from(["", "/a", "/b/c", "/a /b/c"]), max_size=6))
def test_rows_of_foreign_paths_are_numbered_in_one_way(rows: list[str]) -> None:
    drafts = [
        _draft(f"f{n}", b"".join(b'"%s/x"' % path.encode() for path in row.split()) + b" %d" % n)
        for n, row in enumerate(rows)
    ]
    index, _ = laid_out(drafts) if drafts else (None, None)
    if index is not None:
        assert [index.foreign[index.contents[e.artifacts[0].content].foreign] for e in index.entries] == [
            tuple(row.split()) for row in rows
        ]


def test_what_a_host_binary_needs_is_kept_and_instruction_sets_only_with_one(tmp_path: Path) -> None:
    place = synthetic_inductor_root(tmp_path / "i")
    index = opened(packed(f"inductor={place}")[0]).index
    needs = {entry.unit: entry.needs for entry in index.entries}
    assert needs[Unit.HOST_BINARY] and not any(needs[unit] for unit in needs if unit is not Unit.HOST_BINARY)
    assert index.facts["cpu_isa"] == ["avx2"]
    synthetic_kernel(tmp_path / "t", "add")
    assert "cpu_isa" not in opened(packed(f"triton={tmp_path / 't'}")[0]).index.facts


def test_compile_time_is_a_fact(tmp_path: Path) -> None:
    (tmp_path / "i" / "fxgraph" / "ab" / "fabc").mkdir(parents=True)
    (tmp_path / "i" / "fxgraph" / "ab" / "fabc" / "h").write_bytes(pickle.dumps({"_time_taken_ns": 2_500_000_000}, 4))
    assert opened(packed(f"inductor={tmp_path / 'i'}")[0]).index.facts["compile_milliseconds"] == 2500


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names that are not UTF-8 need Linux")
def test_a_root_whose_path_is_not_utf_8_can_be_packed(tmp_path: Path) -> None:
    """The loss: UnicodeEncodeError in place of a bundle, for a cache in a directory with an old name."""
    place = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9"))
    kernel = synthetic_kernel(tmp_path / "made", "add", recorded=f"{place}/{KEY}", source_file="/x/k.py")
    shutil.copytree(kernel.parent, place)
    data, report = packed(f"triton={place}")
    assert report.entries == 1
    assert opened(data).index.roots[0].path == f"{tmp_path}/caf\\udce9"
    assert opened(data).index.facts["recorded_roots"] == {"triton": f"{tmp_path}/caf\\udce9"}
    assert files_of(data, {"triton": place}) == {
        f"triton/{KEY}/{path.name}": path.read_bytes() for path in kernel.iterdir()
    }


# --- what changes between reading and writing ------------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object], int], list[int]]:
    """``late(act, times)``: nothing is kept in memory, and ``act`` comes between reading and writing."""

    def install(act: Callable[[], object], times: int = 1) -> list[int]:
        monkeypatch.setattr(packing, "Options", partial(Options, keep_bytes=0))
        original, rounds = packing.write_collected, []

        def written(*args: Any, **kwargs: Any) -> Any:
            rounds.append(1)
            if len(rounds) <= times:
                act()
            return original(*args, **kwargs)

        monkeypatch.setattr(packing, "write_collected", written)
        return rounds

    return install


Late = Callable[..., list[int]]


def test_a_file_that_changes_before_it_is_written_makes_the_pack_start_over(tmp_path: Path, late: Late) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "x").write_bytes(b"one")
    rounds = late(lambda: (tmp_path / "r" / "x").write_bytes(b"two"))
    bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "out")
    assert files_of((tmp_path / "out").read_bytes(), {}) == {"generic/x": b"two"} and len(rounds) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "r"]


def test_a_file_that_goes_on_changing_is_left_out(tmp_path: Path, late: Late) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "busy").write_bytes(b"0")
    (tmp_path / "r" / "calm").write_bytes(b"1")
    numbers = itertools.count(1)
    late(lambda: (tmp_path / "r" / "busy").write_bytes(b"%d" % next(numbers)), 99)
    data, report = packed(f"generic={tmp_path / 'r'}")
    assert files_of(data, {}) == {"generic/calm": b"1"}
    assert [(skipped.path, skipped.reason) for skipped in report.skipped] == [
        ("generic/busy", "changed while it was read, twice: something is writing to it")
    ]


def test_a_file_that_vanishes_before_it_is_written_is_left_out(tmp_path: Path, late: Late) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "gone").write_bytes(b"0")
    (tmp_path / "r" / "calm").write_bytes(b"1")
    late(lambda: (tmp_path / "r" / "gone").unlink(missing_ok=True))
    data, report = packed(f"generic={tmp_path / 'r'}")
    assert files_of(data, {}) == {"generic/calm": b"1"} and report.skipped == ()


def test_a_large_file_that_changes_while_it_is_streamed_is_found(
    tmp_path: Path, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "WHOLE_LIMIT", 100)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "x").write_bytes(b"1" * 1000)
    rounds = late(lambda: (tmp_path / "r" / "x").write_bytes(b"2" * 1000))
    data, _ = packed(f"generic={tmp_path / 'r'}")
    assert files_of(data, {}) == {"generic/x": b"2" * 1000} and len(rounds) == 2


def test_with_nothing_left_nothing_is_packed(tmp_path: Path, late: Late) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "busy").write_bytes(b"0")
    numbers = itertools.count(1)
    late(lambda: (tmp_path / "r" / "busy").write_bytes(b"%d" % next(numbers)), 99)
    with pytest.raises(NothingToPackError):
        bundler.pack([f"generic={tmp_path / 'r'}"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_strict_refuses_what_was_left_out_since_it_changed(tmp_path: Path, late: Late) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "busy").write_bytes(b"0")
    (tmp_path / "r" / "calm").write_bytes(b"1")
    numbers = itertools.count(1)
    late(lambda: (tmp_path / "r" / "busy").write_bytes(b"%d" % next(numbers)), 99)
    with pytest.raises(SkippedError) as error:
        packed(f"generic={tmp_path / 'r'}", strict=True)
    assert error.value.entry == "generic/busy"


def test_a_changed_file_is_told_with_its_entry() -> None:
    draft = _draft("x", b"data")
    draft.files[0].data = None
    draft.files[0].reopen = lambda: [b"other"]
    payload = lay_out(Collected(drafts=[draft]), {})
    with pytest.raises(ChangedError) as error:
        b"".join(bytes(chunk) for chunk in payload.sources[0].own())
    assert (error.value.root, error.value.path) == ("a", "x")


# --- identity --------------------------------------------------------------------------------------------------------


def test_two_roots_of_one_kind_keep_their_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        synthetic_kernel(tmp_path / name, "add", source_file="/x/k.py")
    data, report = packed(f"one:triton={tmp_path / 'one'}", f"triton={tmp_path / 'two'}")
    index = opened(data).index
    assert [entry.identity for entry in index.entries] == [("one", KEY), ("triton", KEY)] and report.entries == 2
    assert [(root.name, root.kind) for root in index.roots] == [("one", "triton"), ("triton", "triton")]
    one, two = index.entries
    assert one.artifacts == two.artifacts


def test_a_root_without_entries_beside_one_with_is_recorded(tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "t", "add")
    (tmp_path / "empty").mkdir()
    index = opened(packed(f"triton={tmp_path / 't'}", f"generic={tmp_path / 'empty'}")[0]).index
    assert [root.name for root in index.roots] == ["generic", "triton"]
    assert {entry.root for entry in index.entries} == {"triton"}


@given(
    datas=st.lists(st.binary(max_size=30) | st.sampled_from([b"", b"a" * 200, b"b" * 300]), max_size=6),
    joins=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=3),
)
def test_any_files_come_back_as_they_were(datas: list[bytes], joins: list[list[int]]) -> None:
    drafts = [_draft(f"f{n}", data) for n, data in enumerate(datas)]
    for number, join in enumerate(joins):
        parts, long, at = [], [], 0
        for pick in join:
            if pick < len(datas):
                parts += [b"-", datas[pick]]
                long.append((at + 1, len(datas[pick])))
                at += 1 + len(datas[pick])
        # As collect does: short strings are not looked up.
        drafts.append(_draft(f"g{number}", b"".join(parts), Unit.FXGRAPH, tuple(row for row in long if row[1] >= 128)))
    expected = {draft.path: draft.files[0].data for draft in drafts}
    if drafts:
        assert laid_out(drafts)[1] == expected
