"""Laws of staging: private, recognised, and gone when its owner is."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundler import _owner, staging
from bundler.errors import LocalIOError
from bundler.staging import StagedRoot, Staging, sweep
from bundler.testing.faults import killed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def dead(directory: Path) -> Path:
    """Staging of a process that is no more, with a file in it."""
    assert not killed(lambda: (directory / _owner.new_name()).mkdir())
    (made,) = (path for path in directory.iterdir() if _owner.is_ours(path.name))
    (made / "0").mkdir()
    (made / "0" / "k.cubin").write_bytes(b"half")
    return made


def from_elsewhere(directory: Path, age: float) -> Path:
    """Staging that another boot of the host made."""
    made = directory / ".tb-5eed-1-1-1-0123456789abcdef"
    made.mkdir()
    os.utime(made, (time.time() - age,) * 2)
    return made


def test_staging_is_made_when_it_is_first_asked_for_and_goes_with_all_in_it(tmp_path: Path) -> None:
    root = StagedRoot(str(tmp_path / "root"), make=True)
    assert os.listdir(tmp_path / "root") == [] and root.discard() == []
    place = Path(root.staging.path)
    assert place.parent == tmp_path / "root" and root.staging is root.staging
    (place / "0" / "deep").mkdir(parents=True)
    (place / "0" / "deep" / "x").touch()
    assert root.staging.exists("0") and not root.staging.exists("1")
    assert root.discard() == [] and os.listdir(tmp_path / "root") == []
    root.tree.close()


def test_staging_is_private_whatever_the_umask(tmp_path: Path, fd: int) -> None:
    # The loss: others look at, or change, what is not verified yet.
    old = os.umask(0)
    try:
        made = Staging(fd, str(tmp_path))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700
    assert made.remove() is None


def test_staging_that_cannot_be_made_is_an_error_that_names_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, directory: int, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)

    root = StagedRoot(str(tmp_path), make=True)
    monkeypatch.setattr(staging._atomic, "make_directory", refuse)
    with pytest.raises(LocalIOError) as caught:
        root.staging  # noqa: B018
    assert (caught.value.path, caught.value.errno) == (str(tmp_path), errno.EROFS)
    root.tree.close()


@pytest.mark.parametrize("stays", [False, True])
def test_staging_that_cannot_be_opened_is_not_left_behind(
    stays: bool, tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: too many open files, and a directory that nobody removes as long as this process lives.
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        if stays:
            patch.setattr(os, "rmdir", refuse)
        with pytest.raises(OSError) as caught:
            Staging(fd, str(tmp_path))
    assert caught.value.errno == errno.EMFILE
    assert bool(os.listdir(tmp_path)) is stays


def test_staging_that_cannot_be_removed_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: everything is in place, and the job dies of a busy directory.
    root = StagedRoot(str(tmp_path), make=True)
    path = root.staging.path

    def busy(*arguments: object, **options: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rmdir", busy)
    (warning,) = root.discard()
    assert path in warning and "can be deleted" in warning
    assert root.discard() == []
    root.tree.close()


@pytest.mark.parametrize("how", ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "no module"])
def test_lock_that_cannot_be_had_is_no_hindrance(
    how: str, tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))

    left = dead(tmp_path)
    if how == "no module":
        # The module as it is loaded on Windows.
        monkeypatch.setitem(sys.modules, "fcntl", None)
        spec = importlib.util.spec_from_file_location("staging_without_locks", staging.__file__)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        monkeypatch.setattr(fcntl, "flock", refuse)
        module = staging
    made = module.Staging(fd, str(tmp_path))
    assert module.sweep(fd, str(tmp_path)) == [] and not left.exists()
    assert made.remove() is None


# --- sweeping --------------------------------------------------------------------------------------------------------


def test_staging_of_the_dead_goes_at_once(tmp_path: Path, fd: int) -> None:
    left = dead(tmp_path)
    assert sweep(fd, str(tmp_path)) == []
    assert not left.exists()


def test_staging_of_the_living_stays(tmp_path: Path, fd: int) -> None:
    own = Staging(fd, str(tmp_path))
    os.utime(own.path, (0, 0))
    assert sweep(fd, str(tmp_path)) == []
    assert os.path.isdir(own.path)
    own.remove()


@pytest.mark.parametrize(("hours", "goes"), [(0, False), (23.9, False), (24.1, True)])
def test_staging_of_another_boot_goes_after_a_day(hours: float, goes: bool, tmp_path: Path, fd: int) -> None:
    left = from_elsewhere(tmp_path, hours * 3600)
    assert sweep(fd, str(tmp_path)) == []
    assert left.exists() is not goes


def test_staging_under_a_lock_stays_however_old(tmp_path: Path, fd: int) -> None:
    # The loss: a writer on another host of a shared disk, whose clock is a day behind.
    left = from_elsewhere(tmp_path, 30 * 24 * 3600)
    holder = os.open(left, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert sweep(fd, str(tmp_path)) == [] and left.exists()
    os.close(holder)
    assert sweep(fd, str(tmp_path)) == [] and not left.exists()


def test_lock_is_held_as_long_as_the_work_goes_on(tmp_path: Path, fd: int) -> None:
    made = Staging(fd, str(tmp_path))
    other = os.open(made.path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    made.remove()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_swept_directory_is_locked_until_it_is_gone(tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: of many who sweep one directory, all but one complain that it is still there.
    left = dead(tmp_path)
    real, held = staging._remove_tree, []

    def remove(path: str) -> str | None:
        other = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(path)
        finally:
            os.close(other)
        return real(path)

    monkeypatch.setattr(staging, "_remove_tree", remove)
    sweep(fd, str(tmp_path))
    assert held == [str(left)] and not left.exists()


def test_nothing_else_is_swept(tmp_path: Path, fd: int) -> None:
    # The loss: "clean-up" of what was never ours.
    keep = ["tmp.pid_1_x", ".tb-", ".tb-other", "ab", ".tb-5eed-1-1-1-0123456789abcde"]
    for name in keep:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    file = ".tb-5eed-1-1-1-0123456789abcdef"
    (tmp_path / file).write_bytes(b"not a directory")
    os.utime(tmp_path / file, (0, 0))
    assert sweep(fd, str(tmp_path)) == []
    assert sorted(os.listdir(tmp_path)) == sorted([*keep, file])


def test_leftover_that_cannot_be_removed_is_a_warning(tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = dead(tmp_path)

    def busy(*arguments: object, **options: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rmdir", busy)
    (warning,) = sweep(fd, str(tmp_path))
    assert str(left) in warning


@pytest.mark.parametrize("function", ["listdir", "stat", "open"])
def test_leftovers_that_cannot_be_looked_at_are_left(
    function: str, tmp_path: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: a root that may be written to but not listed, and a restore that stops there.
    left = dead(tmp_path)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refuse)
        warnings = sweep(fd, str(tmp_path))
    assert left.exists()
    assert len(warnings) == (function == "listdir") and all(str(tmp_path) in warning for warning in warnings)
