"""A root on disk, reached through directory descriptors so that no link below it is ever followed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bundler import _atomic
from bundler._opening import READ_FLAGS
from bundler.errors import BundlerError, LocalIOError, UnsafePathError

__all__ = ["InstalledRoot", "leads_to"]

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OPEN_DIRECTORIES = 64  # descriptors kept, so that siblings do not walk their path again
_CHUNK = 1 << 20  # bytes read at a time
_ATTEMPTS = 10  # times that a root is made again after somebody removed it
_ABSENT = -1  # in place of a descriptor


class InstalledRoot:
    """An open root. Paths are relative to it, with ``/``; "" is the root itself.

    Args:
        path: Absolute. The root itself may be a link, and is made when it is absent and ``make`` is given.
        make: See ``path``.
        missing_ok: Take an absent root for an empty one, which nothing can be written to.

    Raises:
        LocalIOError: It cannot be opened or made.
    """

    def __init__(self, path: str, *, make: bool, missing_ok: bool = False) -> None:
        self.path = path
        self._make = make
        self._missing_ok = missing_ok
        self._open: OrderedDict[str, int] = OrderedDict()
        self.fd = self._open_root()

    def _open_root(self) -> int:
        attempts = 0
        while True:
            try:
                return os.open(self.path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
            except OSError as error:
                if self._missing_ok and isinstance(error, FileNotFoundError):
                    return _ABSENT
                if not self._make or not isinstance(error, FileNotFoundError) or attempts == _ATTEMPTS:
                    raise LocalIOError.from_os_error(error, "open the root", self.path) from error
            attempts += 1  # once is enough, unless somebody removes it as it is made
            try:
                os.makedirs(self.path, exist_ok=True)
            except FileExistsError:  # a link that leads nowhere, or gone again: opening it tells
                pass
            except OSError as error:
                raise LocalIOError.from_os_error(error, "make the root", self.path) from error

    def reopen(self) -> None:
        """Open what lies at the path of the root now: the directory that was opened has been removed.

        Raises:
            LocalIOError: As when it was opened first.
        """
        fd = self._open_root()
        self.close()
        self.fd = fd

    def close(self) -> None:
        """Give back every descriptor."""
        self.forget()
        if self.fd != _ABSENT:
            os.close(self.fd)

    def forget(self) -> None:
        """Drop the descriptors of directories below the root: one of them was removed or replaced."""
        while self._open:
            os.close(self._open.popitem()[1])

    def full(self, path: str) -> str:
        """Return the absolute path of ``path``, for messages and for what is written into files."""
        return os.path.join(self.path, *path.split("/")) if path else self.path

    def directory(self, path: str, *, make: bool = False) -> int | None:
        """Return a descriptor of a directory, which stays ours; None when it is absent.

        Raises:
            UnsafePathError: A part of the path is a symbolic link.
            LocalIOError: A part of the path is a file, or cannot be opened or made.
        """
        if not path:
            return None if self.fd == _ABSENT else self.fd
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        parent_path, _, name = path.rpartition("/")
        parent = self.directory(parent_path, make=make)
        if parent is None:
            return None
        fd = self._enter(parent, name, path, make)
        if fd is not None:
            self._open[path] = fd
            if len(self._open) > _OPEN_DIRECTORIES:
                os.close(self._open.popitem(last=False)[1])
        return fd

    def _enter(self, parent: int, name: str, path: str, make: bool) -> int | None:
        try:
            if make:
                with suppress(FileExistsError):
                    _atomic.make_directory(name, parent)
            return os.open(name, _DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                self._refuse_link(parent, name, path)
            raise LocalIOError.from_os_error(error, "open the directory", self.full(path)) from error

    def _refuse_link(self, directory: int, name: str, path: str) -> None:
        with suppress(OSError):  # gone again: what the caller saw is then all that there is to say
            if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                raise UnsafePathError(self.full(path), "a symbolic link below the root, which no restore follows")

    def mode(self, path: str) -> int | None:
        """Return the type and mode of what lies at ``path``, not following a link there; None when nothing does."""
        parent_path, _, name = path.rpartition("/")
        parent = self.directory(parent_path)
        if parent is None:
            return None
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalIOError.from_os_error(error, "look at", self.full(path)) from error
        if stat.S_ISLNK(mode):
            raise UnsafePathError(self.full(path), "a symbolic link below the root, which no restore follows")
        return mode

    @contextmanager
    def entered(self, path: str) -> Iterator[int | None]:
        """Give a descriptor of a directory that is looked at once, such as a kernel's; None when it is absent.

        Raises:
            UnsafePathError: It is a symbolic link.
            LocalIOError: It is a file, or cannot be opened.
        """
        parent_path, _, name = path.rpartition("/")
        parent = self.directory(parent_path)
        fd = self._enter(parent, name, path, make=False) if parent is not None else None
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def read(self, directory: int, name: str, path: str, size: int = -1) -> bytes | None:
        """Return the bytes of a regular file; None when it is absent, no regular file, or not of ``size`` (if given).

        Raises:
            UnsafePathError: It is a symbolic link.
            LocalIOError: It cannot be read.
        """
        return self._take(directory, name, path, size, _read_to_end)

    def _take(self, directory: int, name: str, path: str, size: int, take: Callable[[int, int], bytes]) -> bytes | None:
        """Return what ``take`` makes of an open regular file and its size; see ``read``."""
        # No context manager, and no path before it is needed: this is what a restore with nothing to do is made of.
        try:
            fd = os.open(name, READ_FLAGS, dir_fd=directory)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or size not in (-1, status.st_size):
                    return None
                return take(fd, status.st_size)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._refuse_link(directory, name, f"{path}/{name}" if path else name)
            raise LocalIOError.from_os_error(error, "read the installed file", f"{self.full(path)}/{name}") from error

    def digest(self, directory: int, name: str, path: str, size: int) -> bytes | None:
        """Return the raw SHA-256 of a regular file of ``size`` bytes, read in chunks; None, and raises, as ``read``."""
        return self._take(directory, name, path, size, _digest_to_end)

    def files(self, directory: int, path: str) -> dict[str, bytes]:
        """Return the regular files of an open directory by name; links and other things in it are left out.

        Raises:
            LocalIOError: It cannot be listed, or a file cannot be read.
        """
        found: dict[str, bytes] = {}
        try:
            for name in sorted(os.listdir(directory)):
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                        data = self.read(directory, name, path)
                        if data is not None:
                            found[name] = data
        except BundlerError:
            raise
        except OSError as error:
            raise LocalIOError.from_os_error(error, "look at", self.full(path)) from error
        return found


def leads_to(path: str, home: str) -> bool:
    """Whether ``path``, as some file names it, is ``home``, which may be reached by several paths."""
    try:
        return path == home or os.path.realpath(path) == os.path.realpath(home)
    except ValueError:  # a NUL, or half of a surrogate pair: no path at all
        return False


def _digest_to_end(fd: int, size: int) -> bytes:
    if size < _CHUNK:
        return hashlib.sha256(_read_to_end(fd, size)).digest()
    hasher = hashlib.sha256()
    while chunk := os.read(fd, _CHUNK):
        hasher.update(chunk)
    return hasher.digest()


def _read_to_end(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    parts = [data]
    while part := os.read(fd, _CHUNK):
        parts.append(part)
    return b"".join(parts)
