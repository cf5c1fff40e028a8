"""Publishing a staged entry: the one step of a restore that others can see, and it is a rename.

A kernel directory that is to be replaced is swapped in one step where ``renameat2`` can exchange. Where it cannot, the
group file goes first and comes back last, since a kernel without its group file counts as absent.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum

from bundler import _atomic, check, stage
from bundler.compare import Verdict, build_files, compare_file, compare_kernel
from bundler.model import Unit
from bundler.stage import Job

__all__ = ["Action", "StagingGoneError", "publish", "verdict"]

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OCCUPIED = frozenset({errno.EEXIST, errno.ENOTEMPTY})
_ATTEMPTS = 5  # times that a parent directory is made again after somebody removed it


class Action(Enum):
    """How an entry is published: where nothing is, or in place of what is there."""

    ADD = "add"
    REPLACE = "replace"


class StagingGoneError(Exception):
    """The staged files were taken away. Never leaves ``emit``."""


def verdict(job: Job, ours: Mapping[str, bytes]) -> Verdict | None:
    """Compare what is installed with ``ours``, the job's files as they would be published; None when nothing is there.

    Raises:
        UnsafePathError, LocalIOError: What is installed cannot be looked at.
    """
    tree, entry = job.root.tree, job.entry
    if entry.unit is Unit.KERNEL:
        with tree.entered(entry.path) as directory:
            if directory is None:
                return None
            home = tree.full(entry.path)
            return compare_kernel(
                ours,
                tree.files(directory, entry.path),
                os.path.basename(home),
                # A root may be reached by several paths; what counts is where they lead.
                lambda named: named == home or os.path.realpath(named) == os.path.realpath(home),
            )
    name = entry.artifacts[0].name
    parent = tree.directory(entry.directory)
    theirs = tree.read(parent, name, entry.directory) if parent is not None else None
    return None if theirs is None else compare_file(name, entry.unit, ours[name], theirs)


def publish(job: Job, action: Action) -> Verdict | None:
    """Make the staged entry appear.

    Returns:
        None when it is published; else how what somebody else installed in the meantime compares, and it is untouched.

    Raises:
        StagingGoneError: The staged files are not there any more.
        OSError: The file system refuses.
    """
    for attempt in range(_ATTEMPTS):
        parent = job.root.tree.directory(job.entry.path.rpartition("/")[0], make=True)
        try:
            if parent is not None:
                return _publish_into(job, action, parent)
        except FileNotFoundError:
            if not job.root.staging.exists(job.staged):
                raise StagingGoneError from None
            if attempt + 1 == _ATTEMPTS:
                raise
            if action is Action.REPLACE and job.root.tree.mode(job.entry.path) is None:
                action = Action.ADD
        # Triton's clean-up climbs into parents and removes those that are empty: make them again.
        job.root.tree.forget()
    raise FileNotFoundError(errno.ENOENT, "the parent directory keeps vanishing", job.root.tree.full(job.entry.path))


def _publish_into(job: Job, action: Action, parent: int) -> Verdict | None:
    name = job.entry.path.rpartition("/")[2]
    if action is Action.ADD:
        try:
            _atomic.rename_new(job.staged, job.root.staging.fd, name, parent)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            return verdict(job, stage.staged_files(job)) or _vanished(job)
    elif job.entry.unit is Unit.KERNEL:
        _replace_kernel(job, name, parent)
    else:
        _atomic.rename(job.staged, job.root.staging.fd, name, parent)
    job.root.changed.add(job.entry.path.rpartition("/")[0])
    return None


def _vanished(job: Job) -> Verdict:
    """What was in the way is gone again: the caller's next try will find its place free."""
    raise FileNotFoundError(errno.ENOENT, "it was there, and is gone", job.root.tree.full(job.entry.path))


# -- replacing a kernel directory --------------------------------------------------------------------------------------


def _replace_kernel(job: Job, name: str, parent: int) -> None:
    with _opened(job.root.staging.fd, job.staged) as new, _opened(parent, name) as old:
        theirs = job.root.tree.files(old, job.entry.path)
        build = build_files(theirs, [artifact.name for artifact in job.entry.artifacts])
        try:
            for foreign in _names(old) - build:
                _carry_over(foreign, old, new)
            _atomic.exchange(job.staged, job.root.staging.fd, name, parent)
        except OSError as error:
            if not _atomic.unsupported(error):
                raise
            _replace_in_place(job, new, old, build)
            return
        # ``old`` is the staged name now. What others put there between the look and the exchange comes along.
        for late in _names(old) - build - _names(new):
            with suppress(FileNotFoundError, FileExistsError):
                _atomic.rename_new(late, old, late, new)


def _replace_in_place(job: Job, new: int, old: int, build: set[str]) -> None:
    """Replace the files of a kernel one by one: absent as long as its group files are away."""
    ours = [artifact.name for artifact in job.entry.artifacts]
    for name in sorted(build, key=lambda name: not check.is_group(name)):
        if check.is_group(name) or name not in ours:
            with suppress(FileNotFoundError):
                _atomic.unlink(name, old)
    for name in sorted(ours, key=check.is_group):
        _atomic.rename(name, new, name, old)
    job.root.changed.add(job.entry.path)


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _names(directory: int) -> set[str]:
    return set(os.listdir(directory))


def _carry_over(name: str, source: int, target: int) -> None:
    """Give a foreign file, link or directory a second name in ``target``; a file that cannot be linked is copied."""
    try:
        mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            with suppress(FileExistsError):
                _atomic.make_directory(name, target, stat.S_IMODE(mode))
            with _opened(source, name) as inner_source, _opened(target, name) as inner_target:
                for inner in os.listdir(inner_source):
                    _carry_over(inner, inner_source, inner_target)
            return
        try:
            _atomic.link(name, source, name, target)
        except PermissionError:  # file systems without hard links, and files of others on hardened kernels
            _copy(name, source, target)
    except (FileNotFoundError, FileExistsError):  # gone since it was listed, or ours by now
        return


def _copy(name: str, source: int, target: int) -> None:
    reading = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=source)
    with os.fdopen(reading, "rb") as original, os.fdopen(_atomic.create(name, target), "wb") as copy:
        shutil.copyfileobj(original, copy)
