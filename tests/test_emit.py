"""Laws of the restore: what is left alone, what is replaced, what is refused, and what is said about it.

Crash points, storage, links and races have their own files in ``faults/``.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import _atomic, host, packing, stage
from bundler.bundle import Selection, UnpackReport
from bundler.emit import Conflict, EmitOptions, OnConflict
from bundler.errors import (
    DigestMismatchError,
    EntryExistsError,
    IncompatibleTargetError,
    LocalIOError,
    RelocationError,
    TruncatedError,
    UsageError,
)
from bundler.formats import Source, open_bundle, write
from bundler.installed import InstalledRoot
from bundler.model import Target
from bundler.testing import programs, trees
from bundler.testing.artifacts import host_binary
from bundler.testing.faults import crash_points, without_renameat2

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")

KEEP, REPLACE, FAIL = (EmitOptions(on_conflict=policy) for policy in OnConflict)
TOTAL = 11  # entries of the bundle
HOPPER = Selection(targets=(Target("cuda", "90"),))


class Place:
    """A tree, its bundle, and a root to restore to."""

    def __init__(self, base: Path, made: Path) -> None:
        self.base = base
        self.source = Path(shutil.copytree(made / "source", base / "source"))
        self.bundle = Path(shutil.copyfile(made / "full.tbundle", base / "full.tbundle"))
        self.root = base / "root"

    def unpack(self, options: EmitOptions = KEEP, blob: Any = None, selection: Selection = HOPPER) -> UnpackReport:
        return bundler.unpack(blob or self.bundle, into=self.root, options=options, selection=selection)

    def runtime(self) -> Path:
        bundler.pack([f"inductor={self.source}"], self.base / "runtime.tbundle", profile="runtime")
        return self.base / "runtime.tbundle"

    def kernel(self, number: int = 0) -> Path:
        return trees.kernel_directories(self.root)[number]

    def member(self, suffix: str, number: int = 0) -> Path:
        return next(
            path for path in self.kernel(number).iterdir() if path.suffix == suffix and "__grp__" not in path.name
        )

    def group(self, number: int = 0) -> Path:
        return next(self.kernel(number).glob("__grp__*"))

    def module(self) -> Path:
        return sorted(self.root.glob("??/*.py"))[0]

    def snapshot(self) -> dict[str, bytes]:
        return trees.snapshot(self.root)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree and its bundle, made once and not to be changed."""
    base = tmp_path_factory.mktemp("made")
    trees.synthetic_inductor_root(base / "source", kernels=2, graphs=1)
    bundler.pack([f"inductor={base / 'source'}"], base / "full.tbundle")
    return base


@pytest.fixture
def place(tmp_path: Path, made: Path) -> Place:
    return Place(tmp_path, made)


def counts(report: UnpackReport) -> dict[str, int]:
    """The counts of entries that are not zero."""
    names = ("restored", "unchanged", "equivalent", "upgraded", "repaired", "kept")
    return {name: getattr(report, name) for name in names if getattr(report, name)}


def statuses(root: Path) -> dict[str, tuple[int, ...]]:
    """What any write would change, of every file and directory."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode, status.st_size)
    return found


# --- whole and again -------------------------------------------------------------------------------------------------


def test_restore_brings_every_file_and_group_files_name_the_new_place(place: Place) -> None:
    report = place.unpack()
    source = trees.snapshot(place.source)
    restored = place.snapshot()
    assert counts(report) == {"restored": TOTAL}
    assert set(restored) == {path for path in source if not path.startswith("locks/")}
    for path, data in restored.items():
        if "__grp__" in path:
            moved = {
                name: f"{place.root}/{os.path.dirname(path)}/{name}" for name in json.loads(source[path])["child_paths"]
            }
            assert json.loads(data) == {"child_paths": moved}
        else:
            assert data == source[path]
    assert report.files_written == len(restored)
    assert report.bytes_written == pytest.approx(sum(map(len, source.values())), rel=0.02)
    assert report.env == {"TORCHINDUCTOR_CACHE_DIR": str(place.root)}


@pytest.mark.parametrize("blob", ["path", "bytes", "file", "pipe"])
def test_second_restore_writes_nothing(blob: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a helper that other ranks have mapped is written again, and one of them gets EBUSY or a stale handle.
    place.unpack()
    before = statuses(place.root)
    for name in ("rename", "replace", "link", "mkdir", "makedirs", "unlink", "rmdir", "symlink", "chmod", "write"):
        monkeypatch.setattr(os, name, _forbidden)
    with given(blob, place.bundle) as given_blob, crash_points() as calls:
        report = place.unpack(blob=given_blob)
    assert counts(report) == {"unchanged": TOTAL} and (report.files_written, report.bytes_written) == (0, 0)
    assert calls == [] and statuses(place.root) == before


def _forbidden(*arguments: object, **options: object) -> None:
    raise AssertionError(f"nothing was to be written, but {arguments}")


@contextmanager
def given(how: str, path: Path) -> Iterator[Any]:
    """A bundle as a path, as bytes, as an open file, or as a file that cannot seek."""
    if how == "path":
        yield path
    elif how == "bytes":
        yield path.read_bytes()
    elif how == "file":
        with open(path, "rb") as file:
            yield file
    else:
        yield Pipe(path.read_bytes())


class Pipe(io.RawIOBase):
    """Bytes that can be read once, in order, and a few at a time."""

    def __init__(self, data: bytes, *, fails_at: int | None = None) -> None:
        self._file = io.BytesIO(data)
        self._fails_at = fails_at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        if self._fails_at is not None and self._file.tell() >= self._fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.readinto(memoryview(buffer)[:1000])


def test_restore_from_a_pipe_equals_that_from_a_file(place: Place) -> None:
    assert counts(place.unpack(blob=Pipe(place.bundle.read_bytes()))) == {"restored": TOTAL}
    assert counts(place.unpack()) == {"unchanged": TOTAL}


def test_contents_larger_than_a_block_span_blocks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # Group files among them, whose placeholders are written over when all of the file is there.
    monkeypatch.setattr(packing, "write", partial(write, block_size=97))
    bundler.pack([f"inductor={place.source}"], place.base / "many")
    monkeypatch.undo()
    for blob in (place.base / "many", Pipe((place.base / "many").read_bytes())):
        assert counts(place.unpack(blob=blob)) == {"restored": TOTAL}
        assert counts(place.unpack()) == {"unchanged": TOTAL}
        shutil.rmtree(place.root)


def test_empty_files_are_restored(tmp_path: Path) -> None:
    (tmp_path / "source" / "pkg").mkdir(parents=True)
    (tmp_path / "source" / "pkg" / "__init__.py").touch()
    (tmp_path / "source" / "a").touch()
    bundler.pack([f"generic={tmp_path / 'source'}"], tmp_path / "b")
    assert bundler.unpack(tmp_path / "b", into=tmp_path / "root").restored == 2
    assert trees.snapshot(tmp_path / "root") == {"pkg/__init__.py": b"", "a": b""}
    assert bundler.unpack(tmp_path / "b", into=tmp_path / "root").unchanged == 2


@pytest.mark.parametrize("compiler", ["inductor_standalone", "inductor"])
def test_handle_tables_name_the_new_root(compiler: str, tmp_path: Path) -> None:
    source = trees.synthetic_vllm_root(tmp_path / "source", compiler=compiler)
    bundler.pack([f"vllm={source}"], tmp_path / "b")
    report = bundler.unpack(tmp_path / "b", into=tmp_path / "root", selection=HOPPER)
    moved = trees.rehome(Path(shutil.copytree(source, tmp_path / "moved")), str(source))
    (table,) = (tmp_path / "root").rglob(trees.VLLM_CACHE_FILE)
    (wanted,) = moved.rglob(trees.VLLM_CACHE_FILE)
    assert table.read_bytes() == wanted.read_bytes().replace(str(moved).encode(), str(tmp_path / "root").encode())
    assert bundler.unpack(tmp_path / "b", into=tmp_path / "root", selection=HOPPER).unchanged == report.restored


@pytest.mark.parametrize("how", ["of another root", "not readable", "different"])
def test_handle_table_that_leads_away_is_repaired(how: str, tmp_path: Path) -> None:
    # The loss: a tree that was moved, whose every look-up misses while all of its files are there.
    trees.synthetic_vllm_root(tmp_path / "source")
    bundler.pack([f"vllm={tmp_path / 'source'}"], tmp_path / "b")
    bundler.unpack(tmp_path / "b", into=tmp_path / "root", selection=HOPPER)
    (table,) = (tmp_path / "root").rglob(trees.VLLM_CACHE_FILE)
    good = table.read_bytes()
    changes = {"of another root": good.replace(b"/root/", b"/moved/"), "not readable": good[:-3], "different": b"{}"}
    table.write_bytes(changes[how])
    report = bundler.unpack(tmp_path / "b", into=tmp_path / "root", selection=HOPPER)
    assert (report.repaired, report.kept) == ((0, 1) if how == "different" else (1, 0))
    assert (table.read_bytes() == good) is (how != "different")


def test_progress_counts_every_byte_that_is_staged(place: Place) -> None:
    told: list[int] = []
    place.unpack(dataclasses.replace(KEEP, progress=told.append))
    with open(place.bundle, "rb") as file:
        assert sum(told) == sum(content.size for content in open_bundle(file).index.contents)
    told.clear()
    place.unpack(dataclasses.replace(KEEP, progress=told.append))
    assert told == []


# --- what is left alone ----------------------------------------------------------------------------------------------


def other_place(place: Place) -> Path:
    """A bundle of the same kernels, compiled from another directory: debug sections and IR differ."""
    other = trees.synthetic_inductor_root(place.base / "other", kernels=2, graphs=1, recorded="/elsewhere/entirely")
    bundler.pack([f"inductor={other}"], place.base / "other.tbundle")
    return place.base / "other.tbundle"


@pytest.mark.parametrize("options", [KEEP, REPLACE, FAIL], ids=lambda options: options.on_conflict.value)
def test_equivalent_kernels_are_left_alone_and_counted(options: EmitOptions, place: Place) -> None:
    # The loss: eight ranks that compiled the same kernels replace each other's files for ever.
    other = other_place(place)
    place.unpack()
    before = statuses(place.root)
    only = Selection(only=("kernel",), targets=HOPPER.targets)
    report = place.unpack(options, blob=other, selection=only)
    assert counts(report) == {"unchanged": 2, "equivalent": 2}
    assert report.conflicts == () and report.files_written == 0
    after = statuses(place.root)
    assert {path: row for path, row in after.items() if path != str(place.root)} == {
        path: row for path, row in before.items() if path != str(place.root)
    }


@pytest.mark.torch
def test_one_kernel_compiled_by_triton_in_two_places_is_equivalent(tmp_path: Path) -> None:
    # The same law on what a compiler really writes.
    trees_made = []
    for place in ("a", "a_much_longer/way/to/it"):
        shutil.copytree(programs.COMPILE_TRITON.parent, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
        cache = tmp_path / place / "cache"
        env = {"TRITON_CACHE_DIR": str(cache), "HOME": str(tmp_path), "TRITON_HOME": str(tmp_path)}
        arguments = ["--targets=cuda:90,hip:gfx942", "--kernels=add"]
        programs.run(tmp_path / place / programs.COMPILE_TRITON.name, arguments, env=env)
        trees_made.append(cache)
    here, there = trees_made
    bundler.pack([f"triton={there}"], tmp_path / "b")
    kernels = trees.kernel_directories(here)
    assert len(kernels) == 2 and {k.name for k in kernels} == {k.name for k in trees.kernel_directories(there)}
    for kernel in kernels:
        (binary,) = (path for path in kernel.iterdir() if path.suffix in (".cubin", ".hsaco"))
        assert binary.read_bytes() != (there / kernel.name / binary.name).read_bytes(), (
            "nothing is shown by equal files"
        )
    before = statuses(here)
    report = bundler.unpack(tmp_path / "b", into=here, selection=Selection(targets=()))
    assert counts(report) == {"unchanged": 2, "equivalent": 2}
    kernel_rows = {path for path in before if path != str(here)}
    assert all(statuses(here)[path] == before[path] for path in kernel_rows)


def test_runtime_profile_over_a_full_one_changes_nothing(place: Place) -> None:
    # The loss: IR that somebody wants to read is deleted by a bundle that lacks it.
    place.unpack()
    before = place.snapshot()
    report = place.unpack(REPLACE, blob=place.runtime())
    assert counts(report) == {"unchanged": TOTAL, "equivalent": 2} and report.files_written == 0
    assert place.snapshot() == before


@pytest.mark.parametrize("options", [KEEP, REPLACE, FAIL], ids=lambda options: options.on_conflict.value)
def test_full_profile_over_a_runtime_one_upgrades_it(options: EmitOptions, place: Place) -> None:
    place.unpack(blob=place.runtime())
    assert not list(place.root.rglob("*.ttir"))
    report = place.unpack(options)
    assert counts(report) == {"restored": 2, "upgraded": 2, "unchanged": TOTAL - 2}
    assert report.conflicts == ()
    assert len(list(place.root.rglob("*.ttir"))) == 2
    assert counts(place.unpack()) == {"unchanged": TOTAL}


def test_repair_wants_to_know_which_root(place: Place, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trees.synthetic_kernel(tmp_path / name, name)
    bundler.pack([f"a:triton={tmp_path / 'a'}", f"b:triton={tmp_path / 'b'}"], tmp_path / "two")
    with pytest.raises(UsageError, match="which are a:triton, b:triton: name one"):
        bundler.repair(tmp_path / "two", f"triton={tmp_path / 'a'}")
    (tmp_path / "a" / trees.default_key("a") / "a.cubin").write_bytes(b"")
    assert bundler.repair(tmp_path / "two", f"a:triton={tmp_path / 'a'}").repaired == 1


def test_repair_does_not_upgrade(place: Place) -> None:
    place.unpack(blob=place.runtime())
    before = place.snapshot()
    assert counts(bundler.repair(place.bundle, f"inductor={place.root}")) == {"unchanged": TOTAL}
    assert place.snapshot() == before


# --- conflicts -------------------------------------------------------------------------------------------------------


def differ(place: Place) -> None:
    """Install another build of one kernel (more files, another binary), and another text of one module."""
    place.unpack()
    kernel = place.kernel()
    name = place.group().name.removeprefix("__grp__").removesuffix(".json")
    shutil.rmtree(kernel)
    trees.synthetic_kernel(kernel.parent, name, key=kernel.name, seed=77)
    place.module().write_text("x = 77\n", encoding="utf-8")
    (kernel / "foreign").write_bytes(b"keep me")


def test_different_entries_are_kept_by_default_and_reported(place: Place) -> None:
    differ(place)
    before = place.snapshot()
    report = place.unpack()
    assert counts(report) == {"unchanged": TOTAL - 2, "kept": 2} and report.files_written == 0
    assert place.snapshot() == before
    paths = [f"inductor/{path.relative_to(place.root)}" for path in (place.module(), place.kernel())]
    assert sorted(report.conflicts, key=lambda c: c.entry) == [Conflict(path, "kept") for path in sorted(paths)]


@pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
def test_different_entries_are_replaced_whole_on_demand(exchange: bool, place: Place) -> None:
    # The loss: a binary of one build beside the metadata of another.
    place.unpack()
    expected = place.snapshot()
    shutil.rmtree(place.root)
    differ(place)
    if exchange:
        report = place.unpack(REPLACE, blob=place.runtime())
    else:
        with without_renameat2():
            report = place.unpack(REPLACE, blob=place.runtime())
    assert counts(report) == {"unchanged": TOTAL - 2, "equivalent": 1, "restored": 2}
    assert {conflict.action for conflict in report.conflicts} == {"replaced"} and len(report.conflicts) == 2
    left = {path.name for path in place.kernel().iterdir()}
    assert left == {place.group().name, place.member(".json").name, place.member(".cubin").name, "foreign"}
    assert (place.kernel() / "foreign").read_bytes() == b"keep me"
    assert place.member(".cubin").read_bytes() == expected[str(place.member(".cubin").relative_to(place.root))]
    assert bundler.verify_root(f"inductor={place.root}").ok
    assert report.files_written == 4


def test_different_entry_stops_everything_when_asked(place: Place) -> None:
    # The loss: "fail" that has replaced half of the tree by then.
    differ(place)
    shutil.rmtree(place.kernel(1))
    before = place.snapshot()
    with pytest.raises(EntryExistsError) as caught:
        place.unpack(FAIL)
    assert caught.value.exit_code == 9 and caught.value.path in (str(place.kernel()), str(place.module()))
    assert place.snapshot() == before and not list(place.root.glob(".tb-*"))


def test_replaced_directory_keeps_its_mode_and_foreign_directories_theirs(place: Place) -> None:
    # The loss: a directory that a group shares on purpose becomes the private one of who restored last.
    differ(place)
    kernel = place.kernel()
    (kernel / "sub").mkdir()
    (kernel / "sub" / "x").write_bytes(b"1")
    kernel.chmod(0o770)
    (kernel / "sub").chmod(0o2771)
    inode = (kernel / "foreign").stat().st_ino
    assert counts(place.unpack(REPLACE)) == {"unchanged": TOTAL - 2, "restored": 2}
    assert stat.S_IMODE(kernel.stat().st_mode) == 0o770
    assert stat.S_IMODE((kernel / "sub").stat().st_mode) == 0o2771 and (kernel / "sub" / "x").read_bytes() == b"1"
    assert (kernel / "foreign").stat().st_ino == inode


def test_file_system_without_modes_is_no_hindrance(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    differ(place)
    (place.kernel() / "sub").mkdir()

    def refuse(fd: int, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", refuse)
    assert counts(place.unpack(REPLACE)) == {"unchanged": TOTAL - 2, "restored": 2}
    assert (place.kernel() / "sub").is_dir()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_foreign_file_that_cannot_be_linked_stays_where_it_is(
    code: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a copy in its place, of another owner and mode, or an empty file in place of a pipe.
    differ(place)
    inode = (place.kernel() / "foreign").stat().st_ino

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(_atomic, "link", refuse)
    assert counts(place.unpack(REPLACE)) == {"unchanged": TOTAL - 2, "restored": 2}
    assert (place.kernel() / "foreign").stat().st_ino == inode
    assert counts(place.unpack()) == {"unchanged": TOTAL}


def test_foreign_things_that_appear_during_a_replacement_come_along(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: what a compiler has just written beside the kernel goes away with the old directory.
    differ(place)
    kernel = place.kernel()
    (kernel / "sub").mkdir()
    (kernel / "sub" / "early").write_bytes(b"e")
    (kernel / "gone").write_bytes(b"g")
    real = _atomic.exchange

    def busy(*arguments: Any) -> None:
        (kernel / "late").write_bytes(b"1")
        (kernel / "sub" / "late").write_bytes(b"2")
        (kernel / "new").mkdir()
        (kernel / "new" / "late").write_bytes(b"3")
        real(*arguments)
        (kernel / "gone").unlink()

    monkeypatch.setattr(_atomic, "exchange", busy)
    assert place.unpack(REPLACE).restored == 2
    found = {path.relative_to(kernel).as_posix(): path.read_bytes() for path in kernel.rglob("*") if path.is_file()}
    wanted = {"late": b"1", "sub/late": b"2", "sub/early": b"e", "new/late": b"3", "foreign": b"keep me"}
    assert {path: found.get(path) for path in wanted} == wanted
    assert "gone" not in found, "who removed it does not want it back"


# --- damage ----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Place], object]] = {
    "half a binary": lambda place: place.member(".cubin").write_bytes(place.member(".cubin").read_bytes()[:700]),
    "100 bytes of a binary": lambda place: place.member(".cubin").write_bytes(
        place.member(".cubin").read_bytes()[:100]
    ),
    "no binary": lambda place: place.member(".cubin").unlink(),
    "no metadata": lambda place: place.member(".json").unlink(),
    "no group file": lambda place: place.group().unlink(),
    "only one text": lambda place: [p.unlink() for p in place.kernel().iterdir() if p.suffix not in (".ttir", "")],
    "empty group file": lambda place: place.group().write_bytes(b""),
    "10 bytes of the group file": lambda place: place.group().write_bytes(place.group().read_bytes()[:10]),
    "group file of NULs": lambda place: place.group().write_bytes(bytes(place.group().stat().st_size)),
    "group file of null": lambda place: place.group().write_bytes(b'{"child_paths": null}'),
    "group file of a number": lambda place: place.group().write_bytes(b'{"child_paths": 5}'),
    "group file of a list": lambda place: place.group().write_bytes(b"[1]"),
    "group file with a NUL in its paths": lambda place: respell(place, lambda path: "/x\0" + path),
    "group file with half a surrogate": lambda place: respell(place, lambda path: "/\ud800" + path),
    "group file of another tree": lambda place: respell(place, lambda path: "/moved" + path),
    "group file that names two trees": lambda place: respell(place, lambda path: path, lambda path: "/moved" + path),
    "metadata of NULs": lambda place: place.member(".json").write_bytes(bytes(100)),
    "binary of another GPU": lambda place: retarget(place),
}


def respell(place: Place, *changes: Callable[[str], str]) -> None:
    group = json.loads(place.group().read_bytes())["child_paths"]
    moved = {name: changes[number % len(changes)](path) for number, (name, path) in enumerate(group.items())}
    place.group().write_text(json.dumps({"child_paths": moved}), encoding="utf-8")


def retarget(place: Place) -> None:
    metadata = json.loads(place.member(".json").read_bytes())
    metadata["target"]["arch"] = 80
    place.member(".json").write_text(json.dumps(metadata), encoding="utf-8")


@pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_kernel_is_repaired_whole_and_foreign_files_stay(how: str, exchange: bool, place: Place) -> None:
    # The loss: a power cut poisons one key, and the job crashes at that kernel until somebody deletes the cache.
    place.unpack()
    whole = place.snapshot()
    kernel = place.kernel()
    (kernel / ".nfs0001").write_bytes(b"held open")
    DAMAGE[how](place)
    (place.base / "rehearsal").mkdir()
    if exchange:
        report = place.unpack(FAIL)
    else:
        with without_renameat2():
            report = place.unpack(FAIL)
    assert counts(report) == {"repaired": 1, "unchanged": TOTAL - 1}
    assert place.snapshot() == {**whole, f"{kernel.relative_to(place.root)}/.nfs0001": b"held open"}


@pytest.mark.parametrize("how", ["half a binary", "no group file", "group file of NULs"])
def test_repair_replaces_what_is_damaged_and_nothing_else(how: str, place: Place) -> None:
    differ(place)
    shutil.rmtree(place.root / "fxgraph")
    DAMAGE[how](place)
    (vacant := place.kernel(-1)).joinpath("x").touch()
    for path in vacant.iterdir():
        path.unlink()
    report = bundler.repair(place.bundle, f"inductor={place.root}")
    assert counts(report) == {"repaired": 1, "kept": 1, "unchanged": TOTAL - 4}
    assert not (place.root / "fxgraph").exists() and list(vacant.iterdir()) == []


def test_damaged_files_of_every_unit_are_repaired(place: Place) -> None:
    place.unpack()
    whole = place.snapshot()
    damaged = [next(p for p in (place.root / d).rglob("*") if p.is_file()) for d in ("fxgraph", "aotautograd", "cache")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    place.module().write_bytes(bytes(100))
    assert counts(place.unpack()) == {"repaired": 4, "unchanged": TOTAL - 4}
    assert place.snapshot() == whole


@pytest.mark.parametrize("foreign", [False, True], ids=["empty", "with a foreign file"])
def test_vacant_kernel_directory_is_filled(foreign: bool, place: Place) -> None:
    # The loss: the directory that Triton makes when it looks a kernel up hides the kernel from every later restore.
    place.unpack()
    kernel = place.kernel()
    for path in kernel.iterdir():
        path.unlink()
    if foreign:
        (kernel / ".nfs0001").write_bytes(b"held open")
    report = place.unpack(FAIL)
    assert counts(report) == {"restored": 1, "unchanged": TOTAL - 1} and report.files_written == 8
    assert (kernel / ".nfs0001").exists() is foreign
    assert bundler.verify_root(f"inductor={place.root}").ok


def test_strange_bundle_is_compared_without_a_crash(tmp_path: Path) -> None:
    # The loss: metadata that is no JSON, in a bundle of somebody else's, ends the training process.
    kernel = trees.synthetic_kernel(tmp_path / "source", "add")
    bundler.pack([f"triton={tmp_path / 'source'}"], tmp_path / "good")
    bundler.unpack(tmp_path / "good", into=tmp_path / "root")
    rewrite(tmp_path / "good", tmp_path / "bad", {(kernel / "add.json").read_bytes(): b"{not JSON"})
    report = bundler.unpack(tmp_path / "bad", into=tmp_path / "root")
    assert counts(report) == {"kept": 1}


def rewrite(old: Path, new: Path, changes: dict[bytes, bytes], move: int = 0) -> None:
    """Write a bundle again with other bytes for some contents, and placeholders ``move`` bytes further on."""
    with open(old, "rb") as file:
        reader = open_bundle(file)
        sources = []
        for number, content in enumerate(reader.index.contents):
            data = reader.read(number)
            data = changes.get(data, data)
            changed = content._replace(digest=hashlib.sha256(data).digest(), size=len(data), copies=())
            sources.append(Source(changed, lambda data=data: [data]))
    entries = [
        entry._replace(
            artifacts=tuple(
                a._replace(relocation=a.relocation._replace(offsets=tuple(o + move for o in a.relocation.offsets)))
                if a.relocation
                else a
                for a in entry.artifacts
            ),
        )
        for entry in reader.index.entries
    ]
    with open(new, "wb") as out:
        write(out, dataclasses.replace(reader.index, entries=tuple(entries), contents=(), frames=()), sources)


# --- damaged bundles -------------------------------------------------------------------------------------------------


def flipped(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """A bundle of many frames with one byte of one frame flipped, and the number of entries that this damages."""
    monkeypatch.setattr(packing, "write", partial(write, block_size=8192))
    bundler.pack([f"inductor={place.source}"], place.base / "many")
    monkeypatch.undo()
    data = bytearray((place.base / "many").read_bytes())
    with open(place.base / "many", "rb") as file:
        reader = open_bundle(file)
        assert len(reader.index.frames) > 4
        at = reader.header.payload_offset + reader.index.frames[0].stored_size + 10
        damaged = {
            str(entry)
            for entry in reader.index.entries
            if 1 in reader.frames_of([artifact.content for artifact in entry.artifacts])
        }
    data[at] ^= 0xFF
    return bytes(data), len(damaged)


def test_damaged_bundle_is_refused_before_the_first_write(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: half a tree out of a download that was cut short.
    data, _ = flipped(place, monkeypatch)
    with pytest.raises(DigestMismatchError, match="frame 1"), crash_points() as calls:
        place.unpack(blob=data)
    assert calls == [] and place.snapshot() == {}
    for options in (KEEP, dataclasses.replace(KEEP, dry_run=True)):
        with pytest.raises(DigestMismatchError):
            place.unpack(options, blob=Pipe(data))
        assert place.snapshot() == {} and not list(place.root.glob(".tb-*"))


def test_damage_outside_of_what_is_wanted_is_not_looked_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data, damaged = flipped(place, monkeypatch)
    place.unpack()
    place.member(".cubin").write_bytes(b"")
    others = Selection(only=("fxgraph",), targets=())
    assert counts(place.unpack(blob=data, selection=others)) == {"unchanged": 1}
    assert damaged < TOTAL


def test_truncated_bundle_is_refused_from_a_file_and_from_a_pipe(place: Place) -> None:
    data = place.bundle.read_bytes()[:-20]
    for blob in (data, Pipe(data)):
        with pytest.raises(TruncatedError):
            place.unpack(blob=blob)
        assert place.snapshot() == {}


@pytest.mark.parametrize("how", ["bytes", "pipe"])
def test_salvage_restores_what_is_good_and_says_what_is_not(
    how: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: one bad sector costs a whole compile.
    data, damaged = flipped(place, monkeypatch)
    options = EmitOptions(salvage=True)
    rehearsed = place.unpack(dataclasses.replace(options, dry_run=True), blob=data if how == "bytes" else Pipe(data))
    report = place.unpack(options, blob=data if how == "bytes" else Pipe(data))
    assert len(report.damaged) == damaged > 0 and report.restored == TOTAL - damaged > 0
    assert all((row.file and "digest is" in row.reason) or "damaged" in row.reason for row in report.damaged)
    assert same(rehearsed, report)
    with open(place.bundle, "rb") as file:
        entries = {str(entry): len(entry.artifacts) for entry in open_bundle(file).index.entries}
    whole = {name for name in entries if name not in {row.entry for row in report.damaged}}
    assert len(place.snapshot()) == report.files_written == sum(entries[name] for name in whole)
    assert counts(place.unpack()) == {"restored": damaged, "unchanged": TOTAL - damaged}


def test_placeholder_that_is_not_there_is_refused(place: Place) -> None:
    # The loss: a path written into the middle of something else.
    rewrite(place.bundle, place.base / "moved", {}, move=1)
    for options in (KEEP, dataclasses.replace(KEEP, dry_run=True)):
        with pytest.raises(RelocationError, match="no placeholder"):
            place.unpack(options, blob=place.base / "moved")
            place.unpack()
            DAMAGE["no binary"](place)
            place.unpack(options, blob=place.base / "moved")
        assert not list(place.root.glob(".tb-*"))


@pytest.mark.parametrize("at", [0, 500, 5000])
def test_bundle_that_cannot_be_read_is_named_in_the_error(at: int, place: Place) -> None:
    # The loss: "cannot write the staged files", when it is the bundle's disk that is dying.
    pipe = Pipe(place.bundle.read_bytes(), fails_at=at)
    pipe.name = "the pipe"  # type: ignore[attr-defined]
    with pytest.raises(LocalIOError) as caught:
        place.unpack(blob=pipe)
    assert (caught.value.path, caught.value.errno, caught.value.action) == ("the pipe", errno.EIO, "read the bundle")
    assert place.snapshot() == {} and not list(place.root.glob(".tb-*"))


@pytest.mark.parametrize("what", ["missing", "directory"])
def test_bundle_that_cannot_be_opened_is_an_error_of_ours(what: str, place: Place) -> None:
    path = place.base / "nowhere" if what == "missing" else place.base
    with pytest.raises(LocalIOError) as caught:
        place.unpack(blob=path)
    assert caught.value.path == str(path) and caught.value.exit_code == 12


# --- dry run ---------------------------------------------------------------------------------------------------------


def same(one: UnpackReport, other: UnpackReport) -> bool:
    """Whether two reports say the same but for the time."""
    return dataclasses.replace(one, seconds=0) == dataclasses.replace(other, seconds=0)


STATES: dict[str, Callable[[Place], object]] = {
    "absent root": lambda place: None,
    "empty root": lambda place: place.root.mkdir(),
    "identical": lambda place: place.unpack(),
    "equivalent": lambda place: place.unpack(blob=other_place(place)),
    "runtime": lambda place: place.unpack(blob=place.runtime()),
    "different": differ,
    "vacant": lambda place: [place.unpack(), [path.unlink() for path in place.kernel().iterdir()]],
    **{name: lambda place, act=act: [place.unpack(), act(place)] for name, act in DAMAGE.items()},
}


@pytest.mark.parametrize(("how", "options"), [("path", KEEP), ("pipe", REPLACE)], ids=["path-keep", "pipe-replace"])
@pytest.mark.parametrize("state", STATES)
def test_dry_run_writes_nothing_and_says_what_the_restore_then_does(
    state: str, how: str, options: EmitOptions, place: Place
) -> None:
    STATES[state](place)
    before = statuses(place.root) if place.root.exists() else None
    with given(how, place.bundle) as blob, crash_points() as calls:
        rehearsed = place.unpack(dataclasses.replace(options, dry_run=True), blob=blob)
    assert calls == [] and (statuses(place.root) if place.root.exists() else None) == before
    with given(how, place.bundle) as blob:
        assert same(rehearsed, place.unpack(options, blob=blob))


def test_dry_run_refuses_what_the_restore_refuses(place: Place) -> None:
    differ(place)
    with pytest.raises(EntryExistsError):
        place.unpack(dataclasses.replace(FAIL, dry_run=True))


def test_dry_run_leaves_staging_of_the_dead_alone(place: Place) -> None:
    left = place.root / ".tb-0-0-1-1-0123456789abcdef"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    assert place.unpack(dataclasses.replace(KEEP, dry_run=True)).warnings == ()
    assert left.is_dir()


# --- selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("kernel", 2), ("inductor/triton/*", 3), ("triton/*", 3), ("*_relu_0", 1), ("fxgraph", 1), ("*", TOTAL)],
)
def test_only_restores_what_matches(pattern: str, count: int, place: Place) -> None:
    report = place.unpack(selection=Selection(only=(pattern,), targets=()))
    assert counts(report) == {"restored": count}


def test_only_that_matches_nothing_is_a_mistake(place: Place) -> None:
    with pytest.raises(UsageError, match="matches none of 11"):
        place.unpack(selection=Selection(only=("nothing",)))
    assert not place.root.exists()


def test_device_map_moves_the_kernels_of_a_device(place: Place) -> None:
    # The loss: artifacts of rank 0, which ranks 1 to 7 look for under their own number.
    report = place.unpack(selection=Selection(devices=((0, 3), (0, 4), (1, 0)), targets=()))
    assert counts(report) == {"restored": TOTAL + 3}
    kernels = [path.relative_to(place.root) for path in trees.kernel_directories(place.root)]
    assert sorted({path.parts[1] for path in kernels}) == ["3", "4"] and len(kernels) == 4
    assert bundler.verify_root(f"inductor={place.root}").ok, "group files name the directory that they lie in"


def test_device_map_that_sends_two_devices_to_one_is_refused(place: Place) -> None:
    (place.source / "triton" / "1").mkdir()
    kernel = trees.kernel_directories(place.source)[0]
    shutil.copytree(kernel, place.source / "triton" / "1" / kernel.name)
    bundler.pack([f"inductor={trees.rehome(place.source)}"], place.bundle)
    with pytest.raises(UsageError, match="sends two entries"):
        place.unpack(selection=Selection(devices=((0, 5), (1, 5)), targets=()))
    assert not place.root.exists()


def two_targets(base: Path) -> Path:
    trees.synthetic_kernel(base / "source", "add", target=("cuda", 90, 32))
    trees.synthetic_kernel(base / "source", "add", target=("hip", "gfx942", 64))
    bundler.pack([f"triton={base / 'source'}"], base / "b")
    return base / "b"


def test_entries_for_another_gpu_are_skipped_with_a_reason(tmp_path: Path) -> None:
    report = bundler.unpack(two_targets(tmp_path), into=tmp_path / "root", selection=HOPPER)
    assert counts(report) == {"restored": 1}
    (skipped,) = report.skipped
    assert "hip:gfx942" in skipped.reason and "cuda:90" in skipped.reason


def test_bundle_without_an_entry_for_this_gpu_is_refused_and_force_overrides(tmp_path: Path) -> None:
    # The loss: a restore that "succeeded", and a model that compiles for an hour.
    blob = two_targets(tmp_path)
    other = Selection(targets=(Target("cuda", "80"),))
    with pytest.raises(IncompatibleTargetError) as caught:
        bundler.unpack(blob, into=tmp_path / "root", selection=other)
    assert caught.value.exit_code == 8 and caught.value.bundle == ("cuda:90", "hip:gfx942")
    assert not (tmp_path / "root").exists()
    report = bundler.unpack(blob, into=tmp_path / "root", selection=dataclasses.replace(other, force=True))
    assert counts(report) == {"restored": 2} and report.skipped == ()


def test_without_a_gpu_everything_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "gpu_targets", tuple)
    assert bundler.unpack(two_targets(tmp_path), into=tmp_path / "root").restored == 2


def test_host_binary_that_cannot_run_here_is_skipped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a helper of another libc is loaded from the cache, and every launch fails.
    (place.source / "ab").mkdir(exist_ok=True)
    (place.source / "ab" / "cab.so").write_bytes(host_binary(1))
    bundler.pack([f"inductor={place.source}"], place.bundle)
    monkeypatch.setattr(host, "runs_here", lambda needs, isa: "it needs what is not here")
    report = place.unpack()
    assert counts(report) == {"restored": TOTAL - 1} and len(report.skipped) == 2
    assert {row.reason for row in report.skipped} == {"it needs what is not here"}
    assert not (place.root / "ab" / "cab.so").exists()
    forced = place.unpack(selection=Selection(force=True))
    assert counts(forced) == {"restored": 2, "unchanged": TOTAL - 1}


# --- several roots ---------------------------------------------------------------------------------------------------


def test_each_root_goes_to_its_place_and_a_failure_in_one_leaves_all_as_they_were(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    trees.synthetic_kernel(one, "add")
    trees.synthetic_vllm_root(two, kernels=1, graphs=1)
    bundler.pack([f"triton={one}", f"vllm={two}"], tmp_path / "b")
    (tmp_path / "blocked").write_bytes(b"")
    roots = [f"triton={tmp_path / 'r1'}", f"vllm={tmp_path / 'blocked'}"]
    with pytest.raises(LocalIOError):
        bundler.unpack(tmp_path / "b", roots, selection=HOPPER)
    assert trees.snapshot(tmp_path / "r1") == {} and not list((tmp_path / "r1").glob(".tb-*"))
    report = bundler.unpack(tmp_path / "b", into=tmp_path / "all", selection=HOPPER)
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["triton", "vllm"]
    assert report.env == {
        "TRITON_CACHE_DIR": str(tmp_path / "all" / "triton"),
        "VLLM_CACHE_ROOT": str(tmp_path / "all" / "vllm"),
    }


def test_error_of_a_full_disk_names_the_root_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: the wrong disk is cleaned up.
    for name in ("a", "b"):
        trees.synthetic_kernel(tmp_path / name, name, text=False)
    bundler.pack([f"a:triton={tmp_path / 'a'}", f"b:triton={tmp_path / 'b'}"], tmp_path / "bundle")
    real = _atomic.write

    def full(fd: int, data: Any) -> None:
        if "/into/b/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, data)

    monkeypatch.setattr(_atomic, "write", full)
    with pytest.raises(LocalIOError) as caught:
        bundler.unpack(tmp_path / "bundle", into=tmp_path / "into")
    assert caught.value.path == str(tmp_path / "into" / "b")
    size = sum(path.stat().st_size for path in (tmp_path / "b").rglob("*") if path.is_file())
    assert 0.9 * size < caught.value.needed <= size and caught.value.available > 0
    assert "(1 entries, bytes)" in caught.value.action


# --- modes and order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mask", "file", "directory"), [(0o002, 0o664, 0o775), (0o077, 0o600, 0o700)])
def test_modes_are_what_the_umask_gives_and_staging_is_private(
    mask: int, file: int, directory: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: the 0600 of temporary files in a cache that a group shares; or private files that the world reads.
    place.root.mkdir(mode=0o711)
    staging_modes = set()
    real = stage.staged_files

    def look(*arguments: Any, **options: Any) -> Any:
        staging_modes.update(stat.S_IMODE(path.stat().st_mode) for path in place.root.glob(".tb-*"))
        return real(*arguments, **options)

    monkeypatch.setattr(_atomic, "sync", lambda fd: look_at(place, staging_modes))
    old = os.umask(mask)
    try:
        place.unpack()
    finally:
        os.umask(old)
    assert staging_modes == {0o700}
    assert stat.S_IMODE(place.root.stat().st_mode) == 0o711
    modes = {path.is_dir(): set() for path in place.root.rglob("*")}
    for path in place.root.rglob("*"):
        modes[path.is_dir()].add(stat.S_IMODE(path.stat().st_mode))
    assert modes == {False: {file}, True: {directory}}


def look_at(place: Place, modes: set[int]) -> None:
    modes.update(stat.S_IMODE(path.stat().st_mode) for path in place.root.glob(".tb-*"))


@pytest.mark.parametrize("state", ["absent root", "different", "no binary"])
def test_durable_restore_syncs_files_before_and_directories_after_the_renames(state: str, place: Place) -> None:
    # The loss: a power cut after "restored", and files of zero bytes under the right names.
    STATES[state](place)
    with crash_points(to_disk=True) as calls:
        report = place.unpack(REPLACE)
    published = [n for n, call in enumerate(calls) if call.point in ("rename", "rename_new", "exchange")]
    synced = [(n, call.subject) for n, call in enumerate(calls) if call.point == "sync"]
    created = [call.subject for call in calls if call.point == "create"]
    before = [subject for n, subject in synced if n < published[0]]
    after = [subject for n, subject in synced if n > published[-1]]
    assert len(before) + len(after) == len(synced), "nothing is synced between the renames"
    files = [subject for subject in before if any(subject.endswith("/" + name) for name in created)]
    assert len(files) == len(created) == report.files_written
    # Files of their own leave the staging directory itself by the rename; what is published as a directory is synced.
    directories = {os.path.dirname(file) for file in files}
    assert {each for each in directories if not os.path.basename(each).startswith(".tb-")} <= set(before)
    kernels = {str(k.parent) for k in trees.kernel_directories(place.root)} if state != "different" else set()
    assert str(place.root) in after and kernels <= set(after)


def test_without_sync_nothing_is_synced(place: Place) -> None:
    with crash_points() as calls:
        place.unpack(EmitOptions(sync=False))
    assert "sync" not in {call.point for call in calls}


def test_directory_that_cannot_be_synced_is_an_error_and_what_was_published_stays(place: Place) -> None:
    with crash_points() as calls:
        place.unpack()
    shutil.rmtree(place.root)
    last = max(n for n, call in enumerate(calls) if call.point == "sync")
    with pytest.raises(LocalIOError) as caught, crash_points(last, error=errno.EIO):
        place.unpack()
    assert caught.value.action == "sync the directory" and caught.value.path.startswith(str(place.root))
    assert counts(place.unpack()) == {"unchanged": TOTAL}


# --- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"f_bavail": 0}, "bytes"),
        ({"f_favail": 3}, "inodes"),
        ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, ""),
        ({"f_blocks": 0, "f_bfree": 0, "f_bavail": 0, "f_files": 0, "f_favail": 0}, ""),
        ({"f_frsize": 0}, ""),
    ],
)
def test_room_is_judged_by_what_the_file_system_knows(
    changes: dict[str, int], refused: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a FUSE mount that says 0 of 0, to which nothing is ever restored.
    real = os.fstatvfs
    names = [name for name in dir(os.statvfs_result) if name.startswith("f_")]

    def told(fd: int) -> Any:
        status = real(fd)
        values = {name: getattr(status, name) for name in names}
        return type("Status", (), {**values, **changes})

    monkeypatch.setattr(os, "fstatvfs", told)
    if not refused:
        assert place.unpack().restored == TOTAL
        return
    with pytest.raises(LocalIOError) as caught:
        place.unpack()
    assert f"({refused})" in caught.value.action and caught.value.needed > caught.value.available
    assert place.snapshot() == {}


# --- somebody else, in the meantime ----------------------------------------------------------------------------------


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], function: str = "rename_new") -> None:
    """Let ``act`` happen right before the first call of a function of ``_atomic``."""
    real, done = getattr(_atomic, function), []

    def late(*arguments: Any) -> None:
        if not done:
            done.append(True)
            act()
        real(*arguments)

    monkeypatch.setattr(_atomic, function, late)


@pytest.mark.parametrize(
    ("state", "options", "wanted"),
    [
        ("identical", KEEP, {"unchanged": TOTAL}),
        ("equivalent", FAIL, {"unchanged": 4, "equivalent": 2, "restored": 8}),
        ("different", KEEP, {"unchanged": TOTAL - 2, "kept": 2}),
        ("different", REPLACE, {"unchanged": TOTAL - 2, "restored": 2}),
        ("different", FAIL, {"unchanged": TOTAL - 2, "kept": 2}),
        ("no binary", KEEP, {"unchanged": TOTAL - 1, "repaired": 1}),
        ("vacant", KEEP, {"unchanged": TOTAL - 1, "restored": 1}),
    ],
)
def test_what_others_install_in_the_meantime_is_compared_again(
    state: str, options: EmitOptions, wanted: dict[str, int], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: "was absent a second ago" as a licence to overwrite.
    prepared = copy.copy(place)
    prepared.root = place.base / "prepared"
    STATES[state](prepared)
    for group in prepared.root.rglob("__grp__*"):
        group.write_bytes(group.read_bytes().replace(str(prepared.root).encode(), str(place.root).encode()))

    def appear() -> None:
        shutil.copytree(prepared.root, place.root, dirs_exist_ok=True)

    if state == "equivalent":
        for path in [p for p in prepared.root.rglob("*") if p.is_file()]:
            if "triton/0" not in str(path) or path.suffix == ".so":
                path.unlink()
    meanwhile(monkeypatch, appear)
    report = place.unpack(options)
    got = counts(report)
    if state == "equivalent":
        assert got["equivalent"] == 2 and got.get("kept", 0) == 0
    else:
        assert got == wanted
    assert not list(place.root.glob(".tb-*"))


@pytest.mark.parametrize("target", ["kernel", "module"])
def test_damaged_entry_that_somebody_has_made_good_is_left_alone(
    target: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a kernel that was compiled again by now, and is in use, is replaced as damaged.
    place.unpack()
    path = place.member(".cubin") if target == "kernel" else place.module()
    good = path.read_bytes()
    path.write_bytes(b"")
    real, seen = stage.staged_files, []

    def late(job: Any) -> Any:
        seen.append(job)
        if len(seen) == 2:  # first to compare, then to publish
            path.write_bytes(good)
        return real(job)

    monkeypatch.setattr(stage, "staged_files", late)
    with crash_points(points=["exchange", "unlink"]) as calls:
        report = place.unpack()
    assert counts(report) == {"unchanged": TOTAL} and calls == []


@pytest.mark.parametrize("target", ["kernel", "module"])
def test_entry_that_vanishes_before_it_is_replaced_is_added(
    target: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.unpack()
    path = place.member(".cubin") if target == "kernel" else place.module()
    path.write_bytes(b"")
    real, seen = stage.staged_files, []

    def late(job: Any) -> Any:
        seen.append(job)
        files = real(job)
        if len(seen) == (1 if target == "kernel" else 2):
            shutil.rmtree(place.kernel()) if target == "kernel" else path.unlink()
        return files

    monkeypatch.setattr(stage, "staged_files", late)
    report = place.unpack()
    assert counts(report) == {"repaired": 1, "unchanged": TOTAL - 1}
    assert bundler.verify_root(f"inductor={place.root}").ok


def test_entry_that_appears_and_vanishes_is_published_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, said = _atomic.rename_new, []

    def occupied(source: str, source_fd: int, target: str, target_fd: int) -> None:
        if not said:
            said.append(target)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        real(source, source_fd, target, target_fd)

    monkeypatch.setattr(_atomic, "rename_new", occupied)
    assert counts(place.unpack()) == {"restored": TOTAL}


def test_member_that_appears_while_the_others_are_read_is_not_in_the_way(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.unpack()
    name, data = place.member(".cubin").name, place.member(".cubin").read_bytes()
    place.member(".cubin").unlink()
    real, done = InstalledRoot.files, []

    def late(self: InstalledRoot, directory: int, path: str) -> dict[str, bytes]:
        found = real(self, directory, path)
        if not done:
            done.append((place.root / path / name).write_bytes(data))
        return found

    monkeypatch.setattr(InstalledRoot, "files", late)
    assert counts(place.unpack()) == {"unchanged": TOTAL} and done


@pytest.mark.parametrize("function", ["staged_files", "exists"])
def test_staging_that_cannot_be_read_back_is_an_error_of_ours(
    function: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a dying disk is taken for a cleaner, and staged again ten times.
    place.unpack()
    DAMAGE["half a binary"](place)
    real, calls = stage.staged_files, []

    def late(job: Any) -> Any:
        calls.append(job)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(job)

    if function == "staged_files":
        monkeypatch.setattr(stage, "staged_files", late)
    else:
        monkeypatch.setattr(os, "fsync", lambda fd: None)
        meanwhile(monkeypatch, lambda: vanish_and_break(monkeypatch), "exchange")
    with pytest.raises(LocalIOError) as caught:
        place.unpack()
    assert caught.value.errno == errno.EIO
    assert bundler.unpack(place.bundle, into=place.root, selection=HOPPER).repaired == 1


def vanish_and_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that something is gone, and then break the disk: it cannot be told whether the staging is."""

    def broken(*arguments: object, **options: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "stat", broken)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def test_directory_that_appears_in_place_of_a_file_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(place.bundle, "rb") as file:
        first = open_bundle(file).index.entries[0]
    meanwhile(monkeypatch, lambda: (place.root / first.path).mkdir())
    with pytest.raises(LocalIOError) as caught:
        place.unpack()
    assert (caught.value.path, caught.value.errno) == (str(place.root / first.path), errno.EISDIR)
    assert not list(place.root.glob(".tb-*"))


def test_directory_that_is_removed_before_it_is_synced_is_no_error(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stage.sync_parents

    def remove_first(roots: Any) -> None:
        shutil.rmtree(place.root / "triton")
        real(roots)

    monkeypatch.setattr(stage, "sync_parents", remove_first)
    assert place.unpack().restored == TOTAL


def test_pickled_entries_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a bundle that runs code when it is restored.
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.system, (f"touch {tmp_path}/pwned",))

    entry = tmp_path / "source" / "fxgraph" / "ab" / "fab" / "k"
    entry.parent.mkdir(parents=True)
    entry.write_bytes(pickle.dumps(Bomb()))
    bundler.pack([f"inductor={tmp_path / 'source'}"], tmp_path / "b")
    for content in (None, b"", entry.read_bytes()[:20], pickle.dumps([Bomb(), 1])):
        if content is not None:
            (tmp_path / "root" / "fxgraph" / "ab" / "fab" / "k").write_bytes(content)
        bundler.unpack(tmp_path / "b", into=tmp_path / "root", options=REPLACE)
    assert not (tmp_path / "pwned").exists()
    assert (tmp_path / "root" / "fxgraph" / "ab" / "fab" / "k").read_bytes() == entry.read_bytes()
