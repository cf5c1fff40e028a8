"""Disks that are full, read-only, out of inodes or over quota, and paths that cannot be: one clear error, nothing left.

File systems of that kind are mounted where this user may; without the right the tests skip, and say so.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import _owner, packing
from bundler.emit import EmitOptions
from bundler.errors import LocalIOError, UsageError
from bundler.formats import v1
from bundler.testing import trees
from bundler.testing.faults import crash_points, killed

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # forks, beside xdist
]

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """``mount(options, source=None)``: a new tmpfs, or ``source`` bound; unmounted in the end."""
    mounted: list[Path] = []

    def add(options: str, source: Path | None = None) -> Path:
        place = tmp_path / f"mount{len(mounted)}"
        place.mkdir()
        kind = ["--bind", str(source)] if source else ["-t", "tmpfs", "tmpfs"]
        done = subprocess.run(["mount", *kind, "-o", options, str(place)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"this user may not mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    if shutil.which("mount") is None:
        pytest.skip("no mount command")
    yield add
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter, which ``tmp_path`` is not."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two kernels and 80 KB."""
    base = tmp_path_factory.mktemp("small")
    for seed in (0, 1):
        trees.synthetic_kernel(base / "source", "add", seed=seed)
    bundler.pack([f"triton={base / 'source'}"], base / "bundle")
    return base / "bundle"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 2 MiB in 200 files that do not compress."""
    base = tmp_path_factory.mktemp("large")
    source = base / "source"
    source.mkdir()
    rng = random.Random(0)
    for number in range(200):
        (source / f"f{number}").write_bytes(rng.randbytes(10_486))
    bundler.pack([f"generic={source}"], base / "bundle")
    return base / "bundle"


def refused(bundle: Path, target: Path, code: int) -> LocalIOError:
    """The error of a restore that must fail, after the checks that hold for all of them."""
    before = listing(target)
    with pytest.raises(LocalIOError) as caught:
        bundler.unpack(bundle, into=target)
    error = caught.value
    assert error.errno == code, errno.errorcode.get(error.errno or 0)
    assert error.exit_code == 12
    assert str(error).startswith(error.path) and errno.errorcode[code] in str(error)
    assert listing(target) == before, "something was written, or staging was left"
    return error


def listing(place: Path) -> list[str]:
    return sorted(str(path) for path in place.rglob("*")) if os.path.isdir(place) else []


# --- room ------------------------------------------------------------------------------------------------------------


def test_restore_to_a_disk_that_is_too_small_is_refused_before_the_first_write(mount: Mount, large: Path) -> None:
    # The loss: a node's disk is filled to the brim, other jobs fail, and the cache is half there.
    target = mount("size=1m")
    with crash_points() as calls:
        error = refused(large, target, errno.ENOSPC)
    assert error.path == str(target)
    assert error.needed >= 200 * 10_486 > 1 << 20 >= error.available > 0
    assert f"{error.needed} needed, {error.available} available" in str(error)
    assert calls == []


def test_restore_without_inodes_is_refused_before_the_first_write(mount: Mount, large: Path) -> None:
    # The loss: a file-count quota is used up although bytes are free, and nobody knows by what.
    target = mount("size=100m,nr_inodes=50")
    with crash_points() as calls:
        error = refused(large, target, errno.ENOSPC)
    assert "(inodes)" in error.action and error.needed == 200 and error.available < 50
    assert calls == []


@pytest.mark.parametrize("options", ["size=1m", "size=100m,nr_inodes=50"])
def test_restore_that_finds_out_late_rolls_back(
    mount: Mount, large: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: the room was there when it was asked for, and another job took it; the target stays half filled.
    target = mount(options)
    (target / "theirs").write_bytes(b"keep")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fstatvfs", _unknown)
        error = refused(large, target, errno.ENOSPC)
    assert error.path == str(target) and error.needed == 200 * 10_486
    assert (target / "theirs").read_bytes() == b"keep"
    assert bundler.unpack(large, into=target.parent / "elsewhere").restored == 200


def _unknown(fd: int) -> os.statvfs_result:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_quota_that_ends_at_the_fifth_file_rolls_back_and_says_what_was_needed(small: Path, tmp_path: Path) -> None:
    # The loss: a home directory over its quota, with an errno and no number to ask the administrator for.
    target = tmp_path / "target"
    target.mkdir()
    with crash_points(4, error=errno.EDQUOT, points=["write"]):
        error = refused(small, target, errno.EDQUOT)
    source = trees.snapshot(small.parent / "source")
    assert error.path == str(target) and 0.9 * sum(map(len, source.values())) < error.needed
    assert "quota" in str(error)


def test_room_is_not_asked_for_what_is_there_already(mount: Mount, tmp_path: Path) -> None:
    # The loss: a warm node with a nearly full disk cannot start, although nothing is to be written.
    target = mount("size=1m")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "f").write_bytes(random.Random(0).randbytes(700_000))
    bundler.pack([f"generic={tmp_path / 'source'}"], tmp_path / "bundle")
    assert bundler.unpack(tmp_path / "bundle", into=target).restored == 1
    assert bundler.unpack(tmp_path / "bundle", into=target).unchanged == 1


# --- read-only, and not ours -----------------------------------------------------------------------------------------


def test_restore_to_a_read_only_file_system_is_refused(mount: Mount, small: Path) -> None:
    # The loss: an image layer that was meant to be writable, and an error that does not say so.
    error = refused(small, mount("ro"), errno.EROFS)
    assert "read-only" in str(error)


def test_restore_is_unchanged_on_a_read_only_file_system_that_has_everything(
    mount: Mount, small: Path, tmp_path: Path
) -> None:
    # The loss: a cache baked into a read-only image cannot be checked against its bundle at start.
    bundler.unpack(small, into=tmp_path / "target")
    target = mount("ro", tmp_path / "target")
    trees.rehome(tmp_path / "target")  # no-op but for what follows: the files name the place that they lie in
    for place in trees.kernel_directories(tmp_path / "target"):
        group = next(place.glob("__grp__*"))
        group.write_bytes(group.read_bytes().replace(str(tmp_path / "target").encode(), str(target).encode()))
    report = bundler.unpack(small, into=target)
    assert (report.unchanged, report.restored, report.files_written, report.warnings) == (2, 0, 0, ())


def test_bundle_is_read_from_a_read_only_mount(mount: Mount, small: Path, tmp_path: Path) -> None:
    # The loss: a bundle volume mounted read-only, as it should be, is of no use.
    shared = mount("ro,bind", small.parent)
    assert bundler.unpack(shared / small.name, into=tmp_path / "target").restored == 2
    assert bundler.verify(shared / small.name).ok


def test_leftovers_on_a_read_only_file_system_are_a_warning(mount: Mount, small: Path) -> None:
    # The loss: a clean-up that cannot be done stops a restore that has nothing to do.
    target = mount("size=10m")
    bundler.unpack(small, into=target)
    assert not killed(lambda: (target / _owner.new_name()).mkdir())  # by a process that is no more
    (left,) = target.glob(".tb-*")
    subprocess.run(["mount", "-o", "remount,ro", str(target)], check=True)
    report = bundler.unpack(small, into=target)
    assert (report.unchanged, report.files_written) == (2, 0)
    assert len(report.warnings) == 1 and str(left) in report.warnings[0]


def as_user(uid: int, work: Callable[[], object]) -> None:
    """Do ``work`` in a child of another user; its failures become ours."""

    def child() -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        work()

    if os.geteuid():
        pytest.skip("only root can become another user")
    assert not killed(child)


def test_restore_by_another_user_names_the_directory_that_is_not_theirs(small: Path, open_directory: Path) -> None:
    # The loss: an image whose cache belongs to root, started under a random user id.
    target = open_directory / "owned by root"
    target.mkdir(mode=0o755)
    blob = small.read_bytes()

    def restore() -> None:
        for place in (target, target / "new" / "deeper"):
            with pytest.raises(LocalIOError) as caught:
                bundler.unpack(blob, into=place)
            assert caught.value.errno == errno.EACCES and caught.value.exit_code == 12
            assert caught.value.path in (str(target), str(target / "new"))
            assert "can read and write" in str(caught.value)

    as_user(12345, restore)
    assert listing(target) == []


def test_restore_needs_neither_the_packer_nor_a_passwd_entry(small: Path, open_directory: Path) -> None:
    # The loss: files of root that a job cannot replace, or a look-up of a login name that is not there.
    blob = small.read_bytes()
    target = open_directory / "theirs"
    target.mkdir()
    os.chown(target, 54321, 54321) if os.geteuid() == 0 else None
    unpack = bundler.unpack  # loaded here: another user may not be able to read this checkout
    as_user(54321, lambda: unpack(blob, into=target))
    assert {path.stat().st_uid for path in target.rglob("*")} == {54321}
    report = bundler.unpack(blob, into=target)
    assert (report.unchanged, report.files_written) == (2, 0)


def test_foreign_directory_closed_to_writing_survives_a_replacement(small: Path, open_directory: Path) -> None:
    # The loss: a read-only directory beside the kernel makes every repair fail, or is copied without what is in it.
    blob = small.read_bytes()
    target = open_directory / "target"
    bundler.unpack(blob, into=target)
    kernel = trees.kernel_directories(target)[0]
    next(kernel.glob("*.cubin")).write_bytes(b"")
    (kernel / "closed").mkdir()
    (kernel / "closed" / "x").write_bytes(b"1")
    (kernel / "closed").chmod(0o555)
    for path in (target, *target.rglob("*")):
        os.chown(path, 12345, 12345)

    def repair() -> None:
        report = bundler.unpack(blob, into=target)
        assert (report.repaired, report.unchanged) == (1, 1)

    as_user(12345, repair)
    assert (kernel / "closed" / "x").read_bytes() == b"1"
    assert stat.S_IMODE((kernel / "closed").stat().st_mode) == 0o555
    assert bundler.verify_root(f"triton={target}").ok


# --- paths -----------------------------------------------------------------------------------------------------------


def test_restore_makes_the_parents_of_its_root(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "c"
    assert bundler.unpack(small, into=target).restored == 2
    assert bundler.verify_root(f"triton={target}").ok


def test_repair_of_a_root_that_is_not_there_is_refused(small: Path, tmp_path: Path) -> None:
    # The loss: a typing error in a path, and a report that says nothing needed repair.
    with pytest.raises(LocalIOError) as caught:
        bundler.repair(small, f"triton={tmp_path / 'nowhere'}")
    assert caught.value.errno == errno.ENOENT and caught.value.path == str(tmp_path / "nowhere")
    assert listing(tmp_path) == []


def test_root_that_is_a_file_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"keep")
    assert refused(small, tmp_path / "file", errno.ENOTDIR).path == str(tmp_path / "file")
    assert refused(small, tmp_path / "file" / "below", errno.ENOTDIR).path.startswith(str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"keep"
    with pytest.raises(LocalIOError):
        bundler.unpack(small, into=tmp_path / "file", options=EmitOptions(dry_run=True))


@pytest.mark.parametrize("below", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["name", "path"])
def test_path_that_is_too_long_is_refused(below: str, small: Path, tmp_path: Path) -> None:
    assert refused(small, tmp_path / below, errno.ENAMETOOLONG).path.startswith(str(tmp_path))
    assert listing(tmp_path) == [], "parents were made for a root that cannot be"


def test_path_of_3500_bytes_works(small: Path, tmp_path: Path) -> None:
    # The loss: nested scratch directories of batch systems, and a restore that joins paths of its own to them.
    target = tmp_path
    while len(os.fsencode(target)) < 3500 - 101:
        target /= "d" * 100
    target /= "d" * (3500 - len(os.fsencode(target)) - 1)
    assert len(os.fsencode(target)) == 3500
    assert bundler.unpack(small, into=target).restored == 2
    assert bundler.unpack(small, into=target).unchanged == 2
    kernel = trees.kernel_directories(target)[0]
    next(kernel.glob("*.cubin")).write_bytes(b"")
    report = bundler.unpack(small, into=target)
    assert (report.repaired, report.warnings) == (1, ())
    assert bundler.verify_root(f"triton={target}").ok
    assert sorted(path.name[:4] for path in target.iterdir()) == sorted(k.name[:4] for k in target.glob("[A-Z]*"))


@pytest.mark.parametrize(
    "name", ["with blanks", "quo'te\"s", "100%", "größe-カーネル", "back\\slash", "new\nline", "[REPLACE]", b"\xff\xfe"]
)
def test_root_of_any_name_works(name: str | bytes, small: Path, tmp_path: Path) -> None:
    # The loss: a user name with a blank or an umlaut, and group files that lead nowhere.
    target = tmp_path / os.fsdecode(name)
    assert bundler.unpack(small, into=target).restored == 2
    assert bundler.unpack(small, into=target).unchanged == 2
    assert bundler.verify_root(f"triton={target}").ok


# --- pack ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    trees.synthetic_kernel(tmp_path / "tree", "add")
    return tmp_path / "tree"


def unwritten(tree: Path, out: Path | str, code: int) -> LocalIOError:
    with pytest.raises(LocalIOError) as caught:
        bundler.pack([f"triton={tree}"], out)
    assert caught.value.errno == code, errno.errorcode.get(caught.value.errno or 0)
    assert caught.value.exit_code == 12
    return caught.value


def test_pack_to_a_full_disk_keeps_the_old_bundle(mount: Mount, large: Path, small: Path) -> None:
    # The loss: the good bundle of yesterday is overwritten with half of today's.
    target = mount("size=1m")
    shutil.copyfile(small, target / "b")
    with pytest.raises(LocalIOError) as caught:
        bundler.pack([f"generic={large.parent / 'source'}"], target / "b")
    assert caught.value.errno == errno.ENOSPC and caught.value.path == str(target / "b")
    assert listing(target) == [str(target / "b")]
    assert (target / "b").read_bytes() == small.read_bytes()


def test_pack_into_a_read_only_directory_is_refused(mount: Mount, tree: Path) -> None:
    target = mount("ro")
    assert unwritten(tree, target / "b", errno.EROFS).path.startswith(str(target))


def test_pack_without_a_parent_directory_is_refused(tree: Path, tmp_path: Path) -> None:
    assert unwritten(tree, tmp_path / "no" / "b", errno.ENOENT).path == str(tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_pack_onto_a_directory_is_refused(tree: Path, tmp_path: Path) -> None:
    # The loss: a directory with other bundles gives way to one.
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "keep").touch()
    assert unwritten(tree, tmp_path / "out", errno.EISDIR).path == str(tmp_path / "out")
    assert listing(tmp_path / "out") == [str(tmp_path / "out" / "keep")]


def test_pack_onto_a_link_writes_what_it_points_to(tree: Path, tmp_path: Path) -> None:
    # The loss: "latest" becomes a file of its own, and the place that it led to stays old.
    (tmp_path / "real").mkdir()
    link = tmp_path / "latest"
    link.symlink_to("real/bundle")
    for _ in ("dangling", "over a bundle"):
        bundler.pack([f"triton={tree}"], link)
        assert os.readlink(link) == "real/bundle"
        assert listing(tmp_path / "real") == [str(tmp_path / "real" / "bundle")]
        assert bundler.verify(tmp_path / "real" / "bundle").ok


def test_pack_to_a_device_replaces_nothing(tree: Path) -> None:
    # The loss: /dev/null becomes a file, as root.
    report = bundler.pack([f"triton={tree}"], "/dev/null")
    assert report.bytes_out > 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    if os.path.exists("/dev/full"):
        assert unwritten(tree, "/dev/full", errno.ENOSPC).path == "/dev/full"
        assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_pack_to_a_pipe_by_name_writes_into_it(tree: Path, tmp_path: Path) -> None:
    # The loss: a shell's >(...) is replaced by a file, and its reader waits for ever.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    bundler.pack([f"triton={tree}"], fifo)
    reader.join(10)
    assert bundler.verify(got[0]).ok
    assert stat.S_ISFIFO(fifo.stat().st_mode) and len(listing(tmp_path)) == len(listing(tree)) + 2


def test_pack_to_the_descriptor_of_a_pipe_keeps_no_file_beside_it(tree: Path) -> None:
    # The loss: as root, a temporary file was asked for in /proc/self/fd, and `-o /dev/stdout | ...` failed.
    read, write = os.pipe()
    with os.fdopen(read, "rb") as file:
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(file.read()))
        reader.start()
        try:
            bundler.pack([f"triton={tree}"], f"/dev/fd/{write}")
        finally:
            os.close(write)
        reader.join(10)
    assert bundler.verify(got[0]).ok


def test_pack_to_a_reader_that_is_gone_is_an_error_of_ours(tree: Path) -> None:
    # The loss: BrokenPipeError, which no caller of this package waits for.
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, ours.makefile("wb", buffering=0) as file, pytest.raises(LocalIOError) as caught:
        bundler.pack([f"triton={tree}"], file)
    assert caught.value.errno in (errno.EPIPE, errno.ECONNRESET)


def test_pack_without_room_for_its_temporary_file_is_an_error_of_ours(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    monkeypatch.setattr(v1, "_SPOOL_SIZE", 1)  # a large bundle does not fit into memory
    with open(tmp_path / "out", "wb") as file, pytest.raises(LocalIOError) as caught:
        bundler.pack([f"triton={tree}"], file)
    assert caught.value.errno == errno.ENOSPC


def test_entry_that_changes_under_pack_is_left_out_with_a_reason(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a bundle with bytes that fit no digest; or a pack that never ends beside a compile that goes on.
    trees.synthetic_kernel(tree, "mul")
    (steady, busy) = sorted(path.name for path in tree.iterdir())
    real, calls = packing.write_collected, []

    def changing(out: Any, roots: Any, collected: Any, **options: Any) -> Any:
        calls.append([draft.path for draft in collected.drafts])
        if busy in calls[-1]:
            raise packing.ChangedError("triton", busy)
        return real(out, roots, collected, **options)

    monkeypatch.setattr(packing, "write_collected", changing)
    report = bundler.pack([f"triton={tree}"], tmp_path / "b")
    assert calls == [[steady, busy], [steady, busy], [steady]]
    assert report.entries == 1 and [row.path for row in report.skipped] == [f"triton/{busy}"]
    assert [path.name for path in tmp_path.iterdir() if path != tree] == ["b"]


@pytest.mark.parametrize("level", [0, -1, 23])
def test_pack_that_cannot_be_writes_nothing(level: int, tree: Path, tmp_path: Path) -> None:
    for roots, options in ([f"triton={tree}"], {"level": level}), ([], {}):
        with pytest.raises(UsageError):
            bundler.pack(roots, tmp_path / "b", **options)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_old_bundle_is_intact_when_any_call_of_pack_fails(code: int, tree: Path, small: Path, tmp_path: Path) -> None:
    # The loss: a save that fails takes the cache of the whole team with it.
    out = tmp_path / "out" / "b"
    count = _pack_calls(tree, out)
    for at in range(count):
        shutil.copyfile(small, out)
        with pytest.raises(LocalIOError) as caught, crash_points(at, error=code) as calls:
            bundler.pack([f"triton={tree}"], out)
        assert caught.value.errno == code
        assert listing(out.parent) == [str(out)]
        assert out.read_bytes() == small.read_bytes() or (calls[at].point == "sync" and bundler.verify(out).ok)


def test_old_or_new_bundle_is_whole_after_a_kill_and_the_next_pack_sweeps(
    tree: Path, small: Path, tmp_path: Path
) -> None:
    # The loss: kill -TERM during the save; neither the old bundle nor the new one can be read.
    out = tmp_path / "out" / "b"
    count = _pack_calls(tree, out)
    new = bundler.inspect(out)["content_digest"]
    old = bundler.inspect(small)["content_digest"]
    for at in range(count):
        shutil.copyfile(small, out)
        assert killed(lambda at=at: _pack_and_die(tree, out, at))
        assert bundler.verify(out).ok and bundler.verify(out).content_digest in (old, new)
        left = [path for path in out.parent.iterdir() if path != out]
        assert all(path.name.startswith(".tb-") and path.suffix == ".tmp" for path in left) and len(left) < 2
        bundler.pack([f"triton={tree}"], out)
        assert listing(out.parent) == [str(out)]


def _pack_calls(tree: Path, out: Path) -> int:
    out.parent.mkdir()
    with crash_points() as calls:
        bundler.pack([f"triton={tree}"], out)
    assert {"create", "rename", "sync"} <= {call.point for call in calls}
    return len(calls)


def _pack_and_die(tree: Path, out: Path, at: int) -> None:
    with crash_points(at):
        bundler.pack([f"triton={tree}"], out)


def test_eight_packs_into_one_file_leave_one_of_the_eight(tmp_path: Path) -> None:
    # The loss: a temporary name that all ranks share, and a bundle of two halves.
    out = tmp_path / "out" / "b"
    out.parent.mkdir()
    for seed in range(8):
        trees.synthetic_kernel(tmp_path / str(seed), "add", seed=seed)
    children = [_started(lambda seed=seed: _pack_often(tmp_path / str(seed), out)) for seed in range(8)]
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    assert bundler.verify(out).ok
    assert listing(out.parent) == [str(out)]


def _pack_often(tree: Path, out: Path) -> None:
    for _ in range(5):
        bundler.pack([f"triton={tree}"], out)


def _started(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_bundle_has_the_mode_that_the_umask_gives(mask: int, mode: int, tree: Path, tmp_path: Path) -> None:
    # The loss: the 0600 of a temporary file makes a bundle that the group cannot read.
    with _umask(mask):
        bundler.pack([f"triton={tree}"], tmp_path / "b")
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == mode
