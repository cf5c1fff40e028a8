"""The bundle after a run: the union of what it held and of what the run added, never less.

The old file is read when the new one is written, not when the run began, so that of two runs that save to one file
neither loses what the other added. The new one takes its name by one rename; at any kill the old one is whole.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, cast

from bundler.errors import (
    DigestMismatchError,
    FormatError,
    LocalIOError,
    NotABundleError,
    NothingToPackError,
    RelocationError,
    UnsafePathError,
    UnsupportedVersionError,
)
from bundler.merging import OnMergeConflict, merge
from bundler.model import Unit
from bundler.packing import PackReport, pack
from bundler.reading import opened
from bundler.roots import Root
from bundler.watching import Identity, Seen

__all__ = ["Saved", "is_damage", "is_there", "save"]

_MUTABLE = frozenset({Unit.MODULE, Unit.FILE})
"""Units that a program goes on writing under one name (vLLM's handle table); what others hold, their name tells."""

_LOCK_SECONDS = 60.0
_LOCK_POLL = 0.05


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written: the digest of the bundle as it is now, entries that it did not hold before, and warnings."""

    content_digest: str
    added: int
    written: bool
    warnings: tuple[str, ...] = ()


def is_there(path: str) -> bool:
    """Whether a bundle lies at ``path``; a file of no bytes, as ``mktemp`` makes it, is none yet."""
    try:
        return os.stat(path).st_size > 0 or not os.path.isfile(path)
    except OSError:
        return False


def is_damage(error: Exception) -> bool:
    """Whether an error says that a bundle is past mending; not one of a newer version, and no file of another kind."""
    if isinstance(error, (NotABundleError, UnsupportedVersionError)):
        return False
    return isinstance(error, (FormatError, DigestMismatchError, RelocationError, UnsafePathError))


def save(
    path: str, roots: Mapping[str, Root], entries: Mapping[Identity, Seen], changed: Collection[Identity]
) -> Saved:
    """Add entries of roots to the bundle at ``path``; it is made when it is absent, and left alone when it has all.

    A bundle that is damaged is kept as ``path.damaged``, and a new one takes its place.

    Args:
        path: The bundle.
        roots: By name.
        entries: What the bundle is to hold, if it is whole.
        changed: Those of them that were made or written by the run.

    Raises:
        NotABundleError, UnsupportedVersionError: A file lies there that is not ours to replace.
        LocalIOError: A root cannot be read, or the bundle cannot be written; the old one is untouched.
    """
    with _turn(path) as warnings:
        old = _old(path)
        if isinstance(old, Exception):
            warnings.append(f"{old}; it is kept as {_keep_aside(path)}")
        if not isinstance(old, _Old):
            report = _pack(roots, entries.keys(), path)
            warnings += _left_out(report)
            return Saved(report.content_digest, report.entries, True, tuple(warnings))
        wanted = {
            identity
            for identity, seen in entries.items()
            if identity not in old.identities or (identity in changed and seen.unit in _MUTABLE)
        }
        if not wanted:
            return Saved(old.content_digest, 0, False, tuple(warnings))
        with _beside(path) as spool:
            try:
                packed = _pack(roots, wanted, spool)
            except NothingToPackError as error:  # none of it is whole
                return Saved(old.content_digest, 0, False, (*warnings, str(error)))
            spool.seek(0)
            merged = merge([path, spool], path, on_conflict=OnMergeConflict.LAST)
        added = merged.entries - len(old.identities)
        is_new = merged.content_digest != old.content_digest
        return Saved(merged.content_digest, added, is_new, (*warnings, *_left_out(packed)))


@dataclass(frozen=True, slots=True)
class _Old:
    content_digest: str
    identities: frozenset[Identity]


def _old(path: str) -> _Old | Exception | None:
    """Return what the bundle holds; None when there is none, and the error when it is damaged."""
    if not is_there(path):
        return None
    try:
        with opened(path) as reader:
            reader.check_frames()
            return _Old(str(reader.content_digest), frozenset(entry.identity for entry in reader.index.entries))
    except (FormatError, DigestMismatchError, UnsafePathError) as error:
        if not is_damage(error):
            raise
        return error


def _keep_aside(path: str) -> str:
    """Give a damaged bundle a second name; the first stays until the new one takes it."""
    aside = f"{path}.damaged"
    try:
        with suppress(FileNotFoundError):
            os.unlink(aside)
        try:
            os.link(path, aside)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            shutil.copyfile(path, aside)  # a file system without hard links
    except OSError as error:
        raise LocalIOError.from_os_error(error, "keep the damaged bundle aside", aside) from error
    return aside


def _pack(roots: Mapping[str, Root], identities: Iterable[Identity], out: str | BinaryIO) -> PackReport:
    wanted = frozenset(identities)
    mine = [root for name, root in roots.items() if any(identity[0] == name for identity in wanted)]
    if not mine:
        raise NothingToPackError(", ".join(root.path for root in roots.values()), "the run left no cache entry")
    return pack(mine, out, only=wanted)


def _left_out(report: PackReport) -> list[str]:
    return [f"left out of the bundle: {skipped.path}: {skipped.reason}" for skipped in report.skipped]


@contextmanager
def _beside(path: str) -> Iterator[BinaryIO]:
    """Give a file without a name in the directory of the bundle, where there is room for it."""
    directory = os.path.dirname(os.path.realpath(path))
    try:
        spool = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed below; an error in the block is not its)
    except OSError as error:
        raise LocalIOError.from_os_error(error, "write the bundle", path) from error
    with spool:
        yield cast(BinaryIO, spool)


@contextmanager
def _turn(path: str) -> Iterator[list[str]]:
    """Wait for other runs that save into the same directory; gives a list for warnings.

    A lock that cannot be had costs what another run adds at the same moment, and nothing that was there before.
    """
    import fcntl

    directory = os.path.dirname(os.path.realpath(path))
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise LocalIOError.from_os_error(error, "write the bundle", path) from error
    warnings: list[str] = []
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL)
                    continue
                warnings.append(
                    f"another run has been saving into {directory} for {_LOCK_SECONDS:.0f} s: not waited for"
                )
            except OSError:  # ENOLCK, EBADF: network file systems
                pass
            break
        yield warnings
    finally:
        os.close(fd)
