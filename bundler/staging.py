"""Staging directories: where entries wait, inside the root they are for, until all of them are verified.

A staging directory lies in the root itself, because a rename must not cross file systems. It has a short name, is
closed to others (0700), and tells its owner by that name and by a lock. Nothing depends on the lock: where it cannot
be had, leftovers are recognised by the owner alone.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress

from bundler import _atomic, _owner
from bundler.errors import LocalIOError
from bundler.installed import InstalledRoot

__all__ = ["StagedRoot", "Staging", "sweep"]

_ATTEMPTS = 10  # times that a staging directory is made again after somebody removed it, or its root

try:
    import fcntl
except ImportError:  # Windows: no lock, and no restore either
    fcntl = None  # type: ignore[assignment]


class Staging:
    """A fresh staging directory below an open root.

    Args:
        root: Descriptor of the root; borrowed.
        path: Path of the root, for removal and messages.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, root: int, path: str) -> None:
        self.name = _owner.new_name()
        self.path = os.path.join(path, self.name)
        try:
            _atomic.make_directory(self.name, root, 0o700)
            self.fd = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
            _lock(self.fd)
        except BaseException:
            # No descriptor left, or a signal: as long as this process lives, nobody else removes what it made.
            with suppress(OSError):
                os.rmdir(self.name, dir_fd=root)
            raise

    def exists(self, name: str) -> bool:
        """Whether ``name`` is still staged: a cleaner may have taken the whole directory for old."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def remove(self) -> str | None:
        """Remove it with all that is in it; returns the reason when that fails, and never raises."""
        os.close(self.fd)
        try:
            return _remove_tree(self.path)
        except BaseException:  # a signal: it ends the process, and not the clean-up
            _remove_tree(self.path)
            raise


class StagedRoot:
    """An installed root with a staging directory, which is made when it is first asked for.

    ``changed`` collects the directories in which something was renamed, relative to the root.
    """

    def __init__(self, path: str, *, make: bool, missing_ok: bool = False) -> None:
        self.tree = InstalledRoot(path, make=make, missing_ok=missing_ok)
        self.changed: set[str] = set()
        self._staging: Staging | None = None

    @property
    def staging(self) -> Staging:
        """The staging directory.

        Raises:
            LocalIOError: It cannot be made.
        """
        if self._staging is None:
            self._staging = self._new_staging()
        return self._staging

    def _new_staging(self) -> Staging:
        attempts = 0
        while True:
            attempts += 1
            try:
                return Staging(self.tree.fd, self.tree.path)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or attempts == _ATTEMPTS:
                    raise LocalIOError.from_os_error(error, "make a staging directory", self.tree.path) from error
            self.tree.reopen()  # somebody removed the root itself since it was opened

    def discard(self) -> list[str]:
        """Remove the staging directory; returns warnings, and never raises."""
        gone, self._staging = self._staging, None
        self.tree.forget()
        warning = gone.remove() if gone else None
        return [warning] if warning else []


def sweep(root: int, path: str) -> list[str]:
    """Remove what killed writers left in a root; returns a warning for each that could not be removed.

    Staging goes at once when its owner is provably dead and its lock is free, else when it is a day old.
    """
    warnings = []
    try:
        names = [name for name in os.listdir(root) if _owner.is_ours(name)]
    except OSError as error:
        return [f"could not look for leftovers in {path}: {error.strerror}"]
    for name in names:
        with suppress(OSError):  # gone already, or not ours to look at
            status = os.stat(name, dir_fd=root, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) or not _owner.is_abandoned(name, status.st_mtime):
                continue
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
            try:
                # The lock is held until it is gone, so that of many who sweep one removes, and nobody complains.
                reason = _remove_tree(os.path.join(path, name)) if _lock(fd) else None
            finally:
                os.close(fd)
            if reason:
                warnings.append(reason)
    return warnings


def _lock(fd: int) -> bool:
    """Take the lock of a staging directory; False only when another holds it. A lock that fails is no lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP: network file systems
        return True
    return True


def _remove_tree(path: str) -> str | None:
    shutil.rmtree(path, ignore_errors=True)
    return f"left {path} behind; it can be deleted" if os.path.lexists(path) else None
