"""Publishing a staged entry: the one step of a restore that others can see, and it is a rename.

A kernel that Triton finds is replaced in one step where ``renameat2`` can exchange directories. Where it cannot, and
for one that Triton does not find, files are replaced in place: the group file goes first and comes back last, since a
kernel without its group file counts as absent.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum

from bundler import _atomic, check, stage
from bundler.compare import Verdict, build_files, compare_file, compare_kernel
from bundler.errors import LocalIOError, RelocationError
from bundler.installed import leads_to
from bundler.model import Unit
from bundler.relocate import parse_literal
from bundler.stage import Job

__all__ = ["Action", "StagingGoneError", "publish", "verdict"]

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OCCUPIED = frozenset({errno.EEXIST, errno.ENOTEMPTY})
# Foreign files that can have no second name (no hard links here, or not for files of others) stay where they are, and
# so does their directory; what these leave out, ``_atomic.unsupported`` has.
_NO_LINKS = frozenset({errno.EACCES, errno.EMLINK})
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
            return None if directory is None else _compare(job, ours, directory)[0]
    name = entry.artifacts[0].name
    parent = tree.directory(entry.directory)
    installed = tree.read(parent, name, entry.directory) if parent is not None else None
    if installed is not None:
        if entry.artifacts[0].relocation is not None and _leads_away(job, installed):
            return Verdict.DAMAGED
        return compare_file(name, entry.unit, ours[name], installed)
    mode = tree.mode(entry.path)
    if mode is not None and not stat.S_ISREG(mode):
        raise _in_the_way(job, entry.path)
    return None


def _leads_away(job: Job, installed: bytes) -> bool:
    """Whether an installed handle table names paths of another root, or none that can be read: look-ups miss."""
    try:
        root = parse_literal(installed, job.entry.directory).root
    except RelocationError:
        return True
    return bool(root) and not leads_to(root, job.root.tree.path)


def _compare(job: Job, ours: Mapping[str, bytes], directory: int) -> tuple[Verdict, dict[str, bytes]]:
    """Compare a kernel with what lies in an open directory, and return that, too."""
    home = job.root.tree.full(job.entry.path)
    theirs = job.root.tree.files(directory, job.entry.path)
    _refuse_in_the_way(job, directory, theirs)
    return compare_kernel(ours, theirs, os.path.basename(home), lambda named: leads_to(named, home)), theirs


def _staged_files(job: Job) -> dict[str, bytes]:
    try:
        return stage.staged_files(job)
    except FileNotFoundError:
        raise StagingGoneError from None


def _refuse_in_the_way(job: Job, directory: int, theirs: Collection[str]) -> None:
    """Refuse a directory, pipe or link under the name of a member: neither deleted (foreign) nor to be lived with."""
    for name in {artifact.name for artifact in job.entry.artifacts} & _names(directory) - set(theirs):
        if job.root.tree.read(directory, name, job.entry.path) is None:
            raise _in_the_way(job, f"{job.entry.path}/{name}")


def _in_the_way(job: Job, path: str) -> LocalIOError:
    return LocalIOError(job.root.tree.full(path), errno.EISDIR, "restore a file where something else lies")


def publish(job: Job, action: Action, seen: Verdict | None) -> Verdict | None:
    """Make the staged entry appear.

    Args:
        job: The entry.
        action: How.
        seen: The verdict that ``action`` was decided on.

    Returns:
        None when it is published; else how what somebody else installed in the meantime compares, and it is untouched.

    Raises:
        StagingGoneError: The staged files are not there any more.
        OSError: The file system refuses.
    """
    attempts = 0
    while True:
        attempts += 1
        try:
            parent = job.root.tree.directory(job.entry.path.rpartition("/")[0], make=True)
            if parent is None:
                raise FileNotFoundError(errno.ENOENT, "its parent is gone", job.root.tree.full(job.entry.path))
            return _publish_into(job, action, seen, parent)
        except FileNotFoundError:
            if not job.root.staging.exists(job.staged):
                raise StagingGoneError from None
            if attempts == _ATTEMPTS:
                raise
            if action is Action.REPLACE and job.root.tree.mode(job.entry.path) is None:
                action = Action.ADD
        # Triton's clean-up climbs into parents and removes those that are empty: make them again.
        job.root.tree.forget()


def _publish_into(job: Job, action: Action, seen: Verdict | None, parent: int) -> Verdict | None:
    staging, name = job.root.staging.fd, job.entry.path.rpartition("/")[2]
    now = seen
    if action is Action.ADD:
        try:
            _atomic.rename_new(job.staged, staging, name, parent)
        except OSError as error:
            if error.errno not in _OCCUPIED:
                raise
            return verdict(job, _staged_files(job)) or _vanished(job)
    elif job.entry.unit is Unit.KERNEL:
        now = _replace_kernel(job, seen, name, parent)
    else:
        now = verdict(job, _staged_files(job))
        if now is seen:
            _atomic.rename(job.staged, staging, name, parent)
    if now is not seen:
        return now or _vanished(job)
    job.root.changed.add(job.entry.path.rpartition("/")[0])
    return None


def _vanished(job: Job) -> Verdict:
    """What was in the way is gone again: the caller's next try will find its place free."""
    raise FileNotFoundError(errno.ENOENT, "it was there, and is gone", job.root.tree.full(job.entry.path))


# -- replacing a kernel directory --------------------------------------------------------------------------------------


def _replace_kernel(job: Job, seen: Verdict | None, name: str, parent: int) -> Verdict | None:
    """Replace a directory if it still compares as it was seen; returns how it compares."""
    staging = job.root.staging.fd
    try:
        # An empty directory, which Triton makes when it looks a kernel up, gives way to this. What a compiler is just
        # about to put into it then finds the new one, in one step.
        _atomic.rename(job.staged, staging, name, parent)
        return seen
    except OSError as error:
        if not (error.errno in _OCCUPIED or _may_stay(error)):
            raise
    with _opened(staging, job.staged) as new, _opened(parent, name) as old:
        # Others may have replaced it since it was looked at, which was before all entries ahead of it were published.
        now, theirs = _compare(job, _staged_files(job), old)
        if now is not seen:
            return now
        job.root.changed.add(job.entry.path)
        build = build_files(theirs, [artifact.name for artifact in job.entry.artifacts])
        # What Triton does not find, a compiler may be at work on: it puts file after file by path, each by way of a
        # directory beside them, and would miss that in another directory.
        if not _is_found(job, theirs) or not _exchange_kernel(job, new, old, build, name, parent):
            _replace_in_place(job, new, old, build)
    return seen


def _is_found(job: Job, theirs: Mapping[str, bytes]) -> bool:
    """Whether Triton finds a kernel in a directory, be it sound or not: a group file, and all that it lists."""
    home = job.root.tree.full(job.entry.path)
    for name in filter(check.is_group, theirs):
        group = check.examine(name, theirs[name], Unit.KERNEL, key=os.path.basename(home)).group
        if group and leads_to(group.directory, home) and set(group.members) <= set(theirs):
            return True
    return False


def _exchange_kernel(job: Job, new: int, old: int, build: set[str], name: str, parent: int) -> bool:
    """Swap two directories in one step, what is foreign in both; False when that cannot be, and nothing is changed."""
    staging, carried = job.root.staging.fd, set[str]()
    try:
        _carry_over(old, new, build, carried, _atomic.link)
        _atomic.exchange(job.staged, staging, name, parent)
    except OSError as error:
        if not _may_stay(error):
            raise
        return False
    # What others put there between the look and the exchange comes along.
    with _opened(staging, job.staged) as replaced:
        _carry_over(replaced, new, build, carried, _atomic.rename_new)
    os.fchmod(new, stat.S_IMODE(os.fstat(old).st_mode))
    return True


def _may_stay(error: OSError) -> bool:
    """Whether a directory that cannot be replaced as a whole may still take other files."""
    return _atomic.unsupported(error) or error.errno in _NO_LINKS


def _replace_in_place(job: Job, new: int, old: int, build: set[str]) -> None:
    """Replace the files of a kernel one by one: absent as long as its group files are away."""
    ours = [artifact.name for artifact in job.entry.artifacts]
    for name in sorted(build, key=lambda name: not check.is_group(name)):
        if check.is_group(name) or name not in ours:
            with suppress(FileNotFoundError):
                _atomic.unlink(name, old)
    try:
        for name in sorted(ours, key=check.is_group):
            _atomic.rename(name, new, name, old)
    except FileNotFoundError:
        # What was moved by now is not staged any more, so this cannot be done again from here.
        raise StagingGoneError from None


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    fd = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _names(directory: int) -> set[str]:
    return set(os.listdir(directory))


def _carry_over(
    source: int,
    target: int,
    build: Collection[str],
    carried: set[str],
    give: Callable[[str, int, str, int], None],
    inside: str = "",
) -> None:
    """Take what is foreign in ``source`` into ``target``, too: files and links as they are, directories made anew.

    Args:
        source: The directory of a kernel, or one below it.
        target: What takes its place.
        build: Names that are not foreign.
        carried: Paths taken along so far. They are not taken again: who removed one since does not want it back.
        give: Links a file, or renames it.
        inside: Path of ``source`` in the kernel's directory, with a final ``/``; "" for that itself.
    """
    for name in os.listdir(source):
        path = inside + name
        if path in build:
            continue
        with suppress(FileNotFoundError, FileExistsError):  # gone since it was listed, or made by somebody else
            mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
            late = path not in carried
            carried.add(path)
            if not stat.S_ISDIR(mode):
                if late:
                    give(name, source, name, target)
                continue
            if late:
                with suppress(FileExistsError):
                    _atomic.make_directory(name, target, 0o700)
            with _opened(source, name) as below, _opened(target, name) as taken:
                _carry_over(below, taken, (), carried, give, path + "/")
                if late:
                    os.fchmod(taken, stat.S_IMODE(mode))
