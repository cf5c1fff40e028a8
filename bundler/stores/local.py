"""A directory as a store: an object is a file, its key the path below the root.

A new object is written to a staging directory inside the root and takes its name by rename, so that no reader ever sees
a part of it. Names are reached through directory descriptors, and no symbolic link below the root is followed.

Writers of one store take turns, for the microseconds between looking at the object and renaming over it. Two locks are
taken, since neither is enough: ``flock`` is released by the kernel however a process ends, but does nothing on some
network file systems; a file made with ``O_EXCL`` works on all of them, but stays behind when its maker is killed. What
stays behind is removed at once when its maker is provably dead, else when it was watched for a while without change.
Readers take no lock.

A version is the time of modification, the size and the inode. The time is set to be later than that of the object that
is replaced, as finely as the file system stores it, so that no version comes twice.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bundler import _atomic, _owner
from bundler._opening import open_unseen
from bundler.errors import StoreError
from bundler.kinds import STAGING_PREFIX
from bundler.stores._base import Body, Mode, ObjectInfo, PreconditionError, Store, Version
from bundler.stores._keys import key_problem
from bundler.stores._retry import Retry, TransientError

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LocalStore"]

_STAGING = STAGING_PREFIX + "staging"
_FLOCK, _BUSY = "lock", "busy"

LOCK_TIMEOUT = 30.0
"""Seconds that a writer waits for its turn; a turn takes microseconds, on network storage some milliseconds."""

LOCK_WATCHED = 10.0
"""Seconds after which the lock of an unknown owner that did not change is taken to be left behind."""

_POLL = 0.005  # seconds between two looks at a lock

_NO_FLOCK = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.EACCES})
_TRANSIENT = frozenset({errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY})
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


class LocalStore(Store):
    """A directory; it is made by the first ``put``, and one that is missing holds nothing.

    Args:
        root: The directory.
        sync: Bring each object to the disk before it is visible.
        retry: When to try again.
    """

    def __init__(self, root: str | os.PathLike[str], *, sync: bool = True, retry: Retry | None = None) -> None:
        self.root = os.path.abspath(os.fspath(root))
        super().__init__("file://" + self.root, retry=retry)
        self._sync = sync

    def touch(self, key: str) -> None:
        """Set the access time of an object; where that is not allowed, nothing happens."""
        if key_problem(key):
            return
        with suppress(OSError, StoreError, TransientError), self._opened(key) as (fd, status):
            os.utime(fd, ns=(time.time_ns(), status.st_mtime_ns))

    # -- reading -------------------------------------------------------------------------------------------------------

    def _get_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        with self._errors(key, "read"), self._opened(key) as (fd, status):
            parts, at = [], start
            while at < start + size and (part := os.pread(fd, start + size - at, at)):
                parts.append(part)
                at += len(part)
            return b"".join(parts), _info(key, status)

    def _head(self, key: str) -> ObjectInfo:
        with self._errors(key, "look at"), self._directory(key) as (directory, name):
            return _info(key, self._status(key, name, directory))

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors(prefix, "list"):
            try:
                root = os.open(self.root, _DIRECTORY)
            except FileNotFoundError:
                return iter(())
            try:
                return iter(list(self._walk(root, "", prefix)))
            finally:
                os.close(root)

    def _walk(self, directory: int, path: str, prefix: str) -> Iterator[ObjectInfo]:
        with os.scandir(directory) as scan:
            names = [(each.name, each.is_dir(follow_symlinks=False)) for each in scan]
        for name, is_directory in names:
            key = path + name
            common = min(len(key), len(prefix))
            if key_problem(key) or key[:common] != prefix[:common]:
                continue  # staging, what no key can name, and what the prefix leaves out
            with suppress(FileNotFoundError):
                if is_directory:
                    below = os.open(name, _DIRECTORY | _NOFOLLOW, dir_fd=directory)
                    try:
                        yield from self._walk(below, key + "/", prefix)
                    finally:
                        os.close(below)
                    continue
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield _info(key, status)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _put(self, key: str, body: Body, mode: Mode) -> Version:
        with self._errors(key, "write"):
            self._make_root(key)
            with self._staging() as staging, self._directory(key, make=True) as (directory, name):
                temporary = _owner.new_name() + ".tmp"
                fd = _atomic.create(temporary, staging)
                try:
                    for chunk in body.chunks():
                        _atomic.write(fd, chunk)
                    if self._sync:
                        _atomic.sync(fd)
                    with self._turn(key, staging):
                        version = self._publish(key, fd, temporary, staging, name, directory, mode)
                except BaseException:
                    with suppress(OSError):
                        _atomic.unlink(temporary, staging)
                    raise
                finally:
                    os.close(fd)
                if self._sync:
                    _atomic.sync(directory)
                return version

    def _make_root(self, key: str) -> None:
        try:
            os.makedirs(self.root, exist_ok=True)
        except FileNotFoundError as error:  # as /proc answers: trying again would not help
            raise StoreError(self.url, key, f"the directory cannot be made: {error.strerror}") from error

    def _publish(
        self, key: str, fd: int, temporary: str, staging: int, name: str, directory: int, mode: Mode
    ) -> Version:
        try:
            there: os.stat_result | None = self._status(key, name, directory)
        except FileNotFoundError:
            there = None
        if mode == "create" and there is not None:
            raise PreconditionError(key)
        if isinstance(mode, Version) and (there is None or _version(there) != mode):
            raise PreconditionError(key)
        _stamp(fd, there.st_mtime_ns if there is not None else 0)
        version = _version(os.fstat(fd))
        try:
            if mode == "create":
                _atomic.rename_new(temporary, staging, name, directory)
            else:
                _atomic.rename(temporary, staging, name, directory)
        except FileExistsError:
            raise PreconditionError(key) from None
        return version

    def _delete(self, key: str) -> None:
        with self._errors(key, "remove"), self._directory(key) as (directory, name):
            self._status(key, name, directory)  # what is no object is not removed
            with self._staging() as staging, self._turn(key, staging):
                _atomic.unlink(name, directory)
            if self._sync:
                _atomic.sync(directory)

    def _proves(self, version: Version, body: Body) -> bool | None:
        return True  # each write was answered by the kernel, and the size was compared

    # -- names ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _directory(self, key: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory of an object, one part of the key after the other."""
        *parents, name = key.split("/")
        fd = os.open(self.root, _DIRECTORY)
        try:
            for parent in parents:
                if make:
                    with suppress(FileExistsError):
                        _atomic.make_directory(parent, fd)
                try:
                    below = os.open(parent, _DIRECTORY | _NOFOLLOW, dir_fd=fd)
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                        raise
                    self._refuse_link(key, parent, fd)
                    if not make:
                        raise FileNotFoundError(key) from None
                    reason = f"{parent!r} is an object, so nothing can be below it in a directory: choose another key"
                    raise StoreError(self.url, key, reason) from error
                os.close(fd)
                fd = below
            yield fd, name
        finally:
            os.close(fd)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        with self._directory(key) as (directory, name):
            self._status(key, name, directory)
            fd = open_unseen(name, os.O_RDONLY | os.O_CLOEXEC | _NOFOLLOW, directory)
            try:
                yield fd, os.fstat(fd)
            finally:
                os.close(fd)

    def _status(self, key: str, name: str, directory: int) -> os.stat_result:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        self._refuse_link(key, name, directory, status)
        if stat.S_ISDIR(status.st_mode):
            raise _IsDirectoryError(key)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(self.url, key, "it is no regular file: remove it, or choose another key")
        return status

    def _refuse_link(self, key: str, name: str, directory: int, status: os.stat_result | None = None) -> None:
        status = status or os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise StoreError(self.url, key, f"{name!r} is a symbolic link, which is not followed: remove it")

    @contextmanager
    def _errors(self, key: str, action: str) -> Iterator[None]:
        """Say what failed in words; an object that is not there stays FileNotFoundError."""
        try:
            yield
        except _IsDirectoryError as error:
            if action != "write":
                raise FileNotFoundError(key) from None
            raise StoreError(self.url, key, "it is a directory of other objects: choose another key") from error
        except StoreError:
            raise
        except FileNotFoundError as error:
            if action in ("write", "list"):  # somebody removes directories below us
                raise TransientError(f"cannot {action}: {error.strerror}") from error
            raise
        except OSError as error:
            code = error.errno or 0
            reason = f"cannot {action}: {errno.errorcode.get(code, code)} ({os.strerror(code)})"
            if code in _TRANSIENT:
                raise TransientError(reason) from error
            raise StoreError(self.url, key, reason) from error

    # -- taking turns --------------------------------------------------------------------------------------------------

    @contextmanager
    def _staging(self) -> Iterator[int]:
        """Open the staging directory, without what writers left there that were killed."""
        root = os.open(self.root, _DIRECTORY)
        try:
            with suppress(FileExistsError):
                _atomic.make_directory(_STAGING, root)
            fd = os.open(_STAGING, _DIRECTORY | _NOFOLLOW, dir_fd=root)
        finally:
            os.close(root)
        try:
            self._sweep(fd)
            yield fd
        finally:
            os.close(fd)

    @staticmethod
    def _sweep(staging: int) -> None:
        for name in os.listdir(staging):
            if name.endswith(".tmp") and _owner.is_ours(name):
                with suppress(OSError):
                    if _owner.is_abandoned(name, os.stat(name, dir_fd=staging, follow_symlinks=False).st_mtime):
                        _atomic.unlink(name, staging)

    @contextmanager
    def _turn(self, key: str, staging: int) -> Iterator[None]:
        until = self.retry.clock() + LOCK_TIMEOUT
        flock = os.open(_FLOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | _NOFOLLOW, 0o666, dir_fd=staging)
        try:
            while not _flock(flock):
                self._wait(until)
            owner = self._claim(staging, until)
            try:
                yield
            finally:
                self._release(staging, owner)
        finally:
            os.close(flock)

    def _wait(self, until: float) -> None:
        if self.retry.clock() > until:
            raise TransientError(f"another writer held the lock for {LOCK_TIMEOUT:.0f} seconds")
        time.sleep(_POLL)

    def _claim(self, staging: int, until: float) -> str:
        owner = _owner.new_name()
        seen, since = "", self.retry.clock()
        while True:
            try:
                fd = _atomic.create(_BUSY, staging)
            except FileExistsError:
                holder, modified = _holder(staging)
                if holder != seen:
                    seen, since = holder, self.retry.clock()
                watched = self.retry.clock() - since > LOCK_WATCHED and not _owner_lives(holder, modified)
                if watched or (holder and _owner.is_abandoned(holder, modified)):
                    _break(staging, holder)
                else:
                    self._wait(until)
                continue
            try:
                _atomic.write(fd, owner.encode("ascii"))
            finally:
                os.close(fd)
            return owner

    @staticmethod
    def _release(staging: int, owner: str) -> None:
        with suppress(OSError):
            if _holder(staging)[0] == owner:
                _atomic.unlink(_BUSY, staging)


class _IsDirectoryError(OSError):
    """A directory stands where an object would."""


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _version(status), status.st_mtime, max(status.st_atime, status.st_mtime))


def _version(status: os.stat_result) -> Version:
    return Version(f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}")


def _stamp(fd: int, after: int) -> None:
    """Set the time of modification to now, or later: it must differ from ``after`` as the file system stores it."""
    now = max(time.time_ns(), after + 1)
    for step in (0, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000):  # nanoseconds; FAT stores every other second
        os.utime(fd, ns=(now + step, now + step))
        if os.fstat(fd).st_mtime_ns > after:
            return


def _flock(fd: int) -> bool:
    """Take the lock if it is free. Where there are no such locks, say that it is ours: the other one decides."""
    if fcntl is None:  # pragma: no cover - Windows
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
    return True


def _holder(staging: int) -> tuple[str, float]:
    """Return who made the lock file, and when; "" for one that is just being made, or gone."""
    try:
        fd = os.open(_BUSY, os.O_RDONLY | os.O_CLOEXEC | _NOFOLLOW, dir_fd=staging)
    except FileNotFoundError:
        return "", 0.0
    try:
        return os.read(fd, 200).decode("ascii", "replace"), os.fstat(fd).st_mtime
    finally:
        os.close(fd)


def _owner_lives(holder: str, modified: float) -> bool:
    """Whether the holder is a process of this host that runs: however long it takes, it is not pushed aside."""
    # With a time of long ago, only an owner that can be seen to live is not taken for gone.
    return _owner.is_ours(holder) and not _owner.is_abandoned(holder, 0.0)


def _break(staging: int, holder: str) -> None:
    """Remove a lock that was left behind; should it be another one by now, give that back."""
    aside = _owner.new_name() + ".tmp"
    with suppress(FileNotFoundError):
        _atomic.rename(_BUSY, staging, aside, staging)
        fd = os.open(aside, os.O_RDONLY | os.O_CLOEXEC | _NOFOLLOW, dir_fd=staging)
        try:
            found = os.read(fd, 200).decode("ascii", "replace")
        finally:
            os.close(fd)
        if found != holder:
            with suppress(OSError):
                _atomic.link(aside, staging, _BUSY, staging)
        _atomic.unlink(aside, staging)
