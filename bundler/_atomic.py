"""System calls that change a tree, one function each: the only places where this package writes, syncs or renames.

Faults are injected here by replacing a function of this module, so callers use them as ``_atomic.rename(...)``. Names
are relative to a directory descriptor, so that no path is walked twice and no link in it is followed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import BinaryIO, TypeAlias

from bundler import _owner

__all__ = [
    "create",
    "exchange",
    "link",
    "make_directory",
    "rename",
    "rename_new",
    "replacing",
    "sync",
    "unlink",
    "unsupported",
    "vanished",
    "write",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

_NOREPLACE, _EXCHANGE = 1, 2  # RENAME_NOREPLACE and RENAME_EXCHANGE: linux/fs.h

# What renameat2 answers where it, or one of its flags, does not work: an old kernel, a file system without it, and
# overlayfs for a directory that lies in a lower layer.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM})


def vanished(error: OSError) -> bool:
    """Whether a call failed because something is not there any more; network file systems say that in two ways."""
    return error.errno in (errno.ENOENT, errno.ESTALE)


def unsupported(error: OSError) -> bool:
    """Whether a rename failed because its kind is not to be had here, so that a plainer one may still work."""
    return error.errno in _UNSUPPORTED


def create(name: str, directory: int) -> int:
    """Return a descriptor of a new file, which must not exist; its mode follows the umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=directory)


def write(fd: int, data: Buffer) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view) :]


def sync(fd: int) -> None:
    """Bring a file or directory to the disk, where the file system can: some cannot for directories (FUSE, CIFS)."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise


def make_directory(name: str, directory: int, mode: int = 0o777) -> None:
    """Make a directory; it must not exist."""
    os.mkdir(name, mode, dir_fd=directory)


def unlink(name: str, directory: int) -> None:
    """Remove a file."""
    os.unlink(name, dir_fd=directory)


def link(source: str, source_directory: int, target: str, target_directory: int) -> None:
    """Give a file (or a symbolic link itself) a second name."""
    os.link(source, target, src_dir_fd=source_directory, dst_dir_fd=target_directory, follow_symlinks=False)


def rename(source: str, source_directory: int, target: str, target_directory: int) -> None:
    """Rename; a file at the target, or an empty directory there when a directory is renamed, is replaced."""
    os.rename(source, target, src_dir_fd=source_directory, dst_dir_fd=target_directory)


def rename_new(source: str, source_directory: int, target: str, target_directory: int) -> None:
    """Rename to a name that must be free: EEXIST otherwise. Where that cannot be had in one step, look, then rename.

    Between look and rename another writer may publish. It then published the same identity, whole, and one of the two
    stays whole: a file is replaced, a directory that is not empty makes the rename fail with ENOTEMPTY.
    """
    try:
        _renameat2(source, source_directory, target, target_directory, _NOREPLACE)
    except OSError as error:
        if not unsupported(error):
            raise
        with suppress(FileNotFoundError):
            os.stat(target, dir_fd=target_directory, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target, src_dir_fd=source_directory, dst_dir_fd=target_directory)


def exchange(source: str, source_directory: int, target: str, target_directory: int) -> None:
    """Swap two names in one step. Fails as ``unsupported`` tells where the file system cannot."""
    _renameat2(source, source_directory, target, target_directory, _EXCHANGE)


def _renameat2(source: str, source_directory: int, target: str, target_directory: int, flags: int) -> None:
    function = _renameat2_function()
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), target)
    import ctypes  # loaded by now; some 5 ms, which what only reads or packs need not wait for

    if function(source_directory, os.fsencode(source), target_directory, os.fsencode(target), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


@cache
def _renameat2_function() -> Callable[[int, bytes, int, bytes, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # glibc 2.28, musl 1.2.5
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


@contextmanager
def replacing(path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file whole or not at all: a temporary file beside ``path`` takes its name when the block ends well.

    When two writers race, the one that ends last wins, and each reader sees one file whole.

    Raises:
        OSError: The file cannot be written; the old one, if any, is untouched.
    """
    parent, name = os.path.split(os.path.realpath(path))
    directory = os.open(parent, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    temporary = _owner.new_name() + ".tmp"
    try:
        _sweep(parent, directory)
        try:  # from before it is made: a signal may come as soon as it is there
            fd = create(temporary, directory)
            with os.fdopen(fd, "wb", buffering=1 << 20) as file:
                yield file
                file.flush()
                if durable:
                    sync(fd)
            rename(temporary, directory, name, directory)
        except BaseException:
            with suppress(OSError):
                unlink(temporary, directory)
            raise
        if durable:
            sync(directory)
    finally:
        os.close(directory)


def _sweep(parent: str, directory: int) -> None:
    """Remove temporary files of writers that were killed. One that cannot be removed is left for the next time."""
    for name in os.listdir(parent):
        if name.endswith(".tmp") and _owner.is_ours(name):
            with suppress(OSError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if _owner.is_abandoned(name, status.st_mtime):
                    unlink(name, directory)
