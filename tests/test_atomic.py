"""Laws of the system calls that change a tree, and of the file that is written whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from bundler import _atomic, _owner
from bundler.testing.faults import crash_points, without_renameat2

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX directory descriptors")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[int]:
    """A descriptor of ``tmp_path``."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["renameat2", "EXDEV", "EINVAL", "ENOSYS", "EPERM", "no function"])
def any_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With ``renameat2``, and wherever it does not work."""
    if request.param == "renameat2":
        yield request.param
    elif request.param == "no function":
        monkeypatch.setattr(_atomic, "_renameat2_function", lambda: None)
        yield request.param
    else:
        with without_renameat2(getattr(errno, request.param)):
            yield request.param


def test_created_file_must_be_new_and_no_link_is_followed(here: int, tmp_path: Path) -> None:
    os.close(_atomic.create("new", here))
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("new", "link"):
        with pytest.raises(FileExistsError):
            _atomic.create(name, here)
    assert not (tmp_path / "elsewhere").exists()


def test_write_goes_on_until_all_is_written(here: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a signal or a nearly full disk cuts a write short, and nobody looks at what it returned.
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    fd = _atomic.create("new", here)
    for data in (b"0123456789", bytearray(b"ab"), memoryview(b"xyz"), b""):
        _atomic.write(fd, data)
    os.close(fd)
    assert (tmp_path / "new").read_bytes() == b"0123456789abxyz"


def test_link_names_a_symbolic_link_itself(here: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    _atomic.link("link", here, "second", here)
    assert os.readlink(tmp_path / "second") == "nowhere"


@pytest.mark.parametrize(("code", "raises"), [("EINVAL", False), ("ENOSYS", False), ("EIO", True), ("ENOSPC", True)])
def test_sync_that_the_file_system_does_not_have_is_no_error(
    code: str, raises: bool, here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: everything is in place, and a mount that cannot sync directories makes a failure of it.
    def refuse(fd: int) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) if raises else nullcontext():
        _atomic.sync(here)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_rename_new_renames_to_a_free_name(any_kernel: str, kind: str, here: int, tmp_path: Path) -> None:
    _make(tmp_path / "a", kind)
    _atomic.rename_new("a", here, "b", here)
    assert sorted(os.listdir(tmp_path)) == ["b"]


@pytest.mark.parametrize("there", ["file", "directory", "empty directory", "link", "dangling link"])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_rename_new_replaces_nothing(any_kernel: str, kind: str, there: str, here: int, tmp_path: Path) -> None:
    # The loss: "it was absent a moment ago" as a licence to overwrite.
    _make(tmp_path / "a", kind)
    _make(tmp_path / "b", there)
    before = (tmp_path / "b").lstat()
    with pytest.raises(FileExistsError):
        _atomic.rename_new("a", here, "b", here)
    after = (tmp_path / "b").lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns) and (tmp_path / "a").exists()


def _make(path: Path, kind: str) -> None:
    if "link" in kind:
        path.symlink_to("nowhere" if "dangling" in kind else ".")
    elif "directory" in kind:
        path.mkdir()
        if "empty" not in kind:
            (path / "x").write_bytes(b"x")
    else:
        path.write_bytes(b"file")


def test_other_errors_of_rename_new_are_not_taken_for_a_missing_system_call(here: int) -> None:
    with pytest.raises(FileNotFoundError):
        _atomic.rename_new("nowhere", here, "b", here)


def test_exchange_swaps_in_one_step_or_says_that_it_cannot(any_kernel: str, here: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"from {name}").touch()
    if any_kernel == "renameat2":
        _atomic.exchange("a", here, "b", here)
        assert os.listdir(tmp_path / "a") == ["from b"] and os.listdir(tmp_path / "b") == ["from a"]
        with pytest.raises(FileNotFoundError) as caught:
            _atomic.exchange("a", here, "nowhere", here)
        assert not _atomic.unsupported(caught.value)
    else:
        with pytest.raises(OSError) as refused:
            _atomic.exchange("a", here, "b", here)
        assert _atomic.unsupported(refused.value)


@pytest.mark.parametrize("there", ["linux without it", "another system", "linux"])
def test_renameat2_is_looked_for_where_it_can_be(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _atomic._renameat2_function.cache_clear()
    if there == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
    elif there == "linux without it":
        monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: object())
    try:
        found = _atomic._renameat2_function()
        assert (found is not None) == (there == "linux" and sys.platform == "linux")
    finally:
        _atomic._renameat2_function.cache_clear()


# --- a file, whole or not at all -------------------------------------------------------------------------------------


def write(path: Path | str, data: bytes = b"new", *, durable: bool = True) -> None:
    with _atomic.replacing(str(path), durable=durable) as file:
        file.write(data)


def test_replacing_writes_a_new_file_or_replaces_one(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        write(tmp_path / "f", data)
        assert (tmp_path / "f").read_bytes() == data
        assert os.listdir(tmp_path) == ["f"]
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) & 0o600 == 0o600


def test_replacing_a_relative_path_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("f")
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_block_that_fails_leaves_the_old_file_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    # The loss: Ctrl-C in the middle of a save.
    (tmp_path / "f").write_bytes(b"old")

    with pytest.raises(error), _atomic.replacing(str(tmp_path / "f")) as file:
        file.write(b"half")
        raise error
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


def test_reader_of_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old bytes")
    with open(tmp_path / "f", "rb") as file:
        start = file.read(3)
        write(tmp_path / "f")
        assert start + file.read() == b"old bytes"


@pytest.mark.parametrize("durable", [True, False])
def test_durable_file_is_synced_before_the_rename_and_its_directory_after(durable: bool, tmp_path: Path) -> None:
    # The loss: a power cut after "written", and a bundle of zero bytes.
    with crash_points(to_disk=True) as calls:
        write(tmp_path / "f", durable=durable)
    points = [call.point for call in calls]
    assert points == (["create", "sync", "rename", "sync"] if durable else ["create", "rename"])
    assert [call.subject for call in calls if call.point == "sync"][-1:] == ([str(tmp_path)] if durable else [])


def test_temporary_files_of_the_dead_are_removed_and_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a directory full of what killed savers left, each as large as a bundle.
    dead, old, fresh = (f".tb-{boot}-1-1-1-0123456789abcdef.tmp" for boot in ("dead", "01d", "f00"))
    own = _owner.new_name() + ".tmp"
    staging = ".tb-01d-1-1-1-0123456789abcdef"  # a restore's, and a directory
    for name in (dead, old, fresh, own):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / staging).mkdir()
    (tmp_path / "foreign.tmp").write_bytes(b"keep")
    for name in (dead, old, staging):
        os.utime(tmp_path / name, (0, 0))
    write(tmp_path / "f")
    assert sorted(os.listdir(tmp_path)) == sorted(["f", fresh, own, staging, "foreign.tmp"])


def test_temporary_file_that_cannot_be_removed_is_no_hindrance(tmp_path: Path) -> None:
    old = ".tb-01d-1-1-1-0123456789abcdef.tmp"
    (tmp_path / old).write_bytes(b"half")
    os.utime(tmp_path / old, (0, 0))
    with crash_points(0, error=errno.EPERM, points=["unlink"]):
        write(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"new" and (tmp_path / old).exists()


@pytest.mark.parametrize(("at", "point"), [(0, "create"), (1, "sync"), (2, "rename")])
def test_failed_write_raises_and_leaves_the_old_file(at: int, point: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(OSError) as caught, crash_points(at, error=errno.EIO) as calls:
        write(tmp_path / "f")
    assert caught.value.errno == errno.EIO and calls[at].point == point
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]
