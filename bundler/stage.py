"""Staging the files of entries: the second step of a restore. What is staged is verified, and seen by nobody yet."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from bundler import _atomic
from bundler.errors import LocalIOError
from bundler.formats import Chunk, Reader
from bundler.installed import InstalledRoot
from bundler.model import Artifact, Base, Entry, Relocation, Unit
from bundler.relocate import restore
from bundler.staging import StagedRoot

__all__ = ["Damage", "Job", "base_of", "stage", "staged_files", "sync_parents", "sync_staged"]

_SYNC_THREADS = 8  # fsync waits for the disk, and a journal commits many of them at once
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC if hasattr(os, "O_NOFOLLOW") else 0

Buffer: TypeAlias = bytes | bytearray | memoryview


class Job(NamedTuple):
    """One entry on its way.

    Attributes:
        entry: What is restored.
        root: Where to.
        staged: Its name in the staging directory of the root: a directory for a kernel, else a file.
        exists: Whether anything lies at its place already.
        size: Bytes of its files.
    """

    entry: Entry
    root: StagedRoot
    staged: str
    exists: bool
    size: int

    def place(self, name: str) -> str:
        """Return where a file of the entry lies, relative to the staging directory."""
        return f"{self.staged}/{name}" if self.entry.unit is Unit.KERNEL else self.staged


@dataclass(frozen=True, slots=True)
class Damage:
    """An entry of the bundle that could not be read whole."""

    entry: str
    file: str
    reason: str


def base_of(tree: InstalledRoot, entry: Entry, relocation: Relocation) -> str:
    """Return the absolute directory that the placeholders of a file stand for."""
    return tree.full(entry.directory) if relocation.base is Base.ENTRY else tree.path


def stage(
    reader: Reader, jobs: Sequence[Job], *, salvage: bool, progress: Callable[[int], None]
) -> tuple[list[Job], list[Damage]]:
    """Write the files of every job below its staging directory, in one pass over the payload.

    Returns:
        The jobs that are whole, and what is damaged of the others (only with ``salvage``).

    Raises:
        OSError: A file cannot be written; ENOENT when the staging directory is gone.
        FormatError, DigestMismatchError, RelocationError: See ``emit``.
    """
    users: dict[int, list[tuple[Job, Artifact]]] = {}
    for job in jobs:
        if job.entry.unit is Unit.KERNEL:
            with _blamed(job):
                _atomic.make_directory(job.staged, job.root.staging.fd)
        for artifact in job.entry.artifacts:
            users.setdefault(artifact.content, []).append((job, artifact))
    damage: dict[str, Damage] = {}
    held: list[Buffer] = []
    begun = False  # whether chunks of the content under way were written already
    for chunk in reader.deliver(users, salvage=salvage):
        mine = users[chunk.content]
        if chunk.error is not None:
            for job, artifact in mine:
                damage.setdefault(job.staged, Damage(str(job.entry), artifact.name, str(chunk.error)))
        else:
            _stage_chunk(chunk, mine, held, begun=begun)
            progress(len(chunk.data))
        begun = not chunk.last
        if chunk.last:
            held.clear()
    damaged = [damage[job.staged] for job in jobs if job.staged in damage]
    return [job for job in jobs if job.staged not in damage], damaged


def _stage_chunk(chunk: Chunk, users: Iterable[tuple[Job, Artifact]], held: list[Buffer], *, begun: bool) -> None:
    """Append a chunk to every file that has the content; a file with placeholders is written when it is complete."""
    relocated = []
    for job, artifact in users:
        if artifact.relocation is None:
            _append(job, artifact.name, chunk.data, begun=begun)
        else:
            relocated.append((job, artifact, artifact.relocation))
    if relocated:
        held.append(bytes(chunk.data))
    if relocated and chunk.last:
        data = b"".join(held)
        for job, artifact, relocation in relocated:
            base = base_of(job.root.tree, job.entry, relocation)
            text = restore(data, relocation, base, name=f"{job.entry}/{artifact.name}")
            _append(job, artifact.name, text, begun=False)


def _append(job: Job, name: str, data: Buffer, *, begun: bool) -> None:
    directory, path = job.root.staging.fd, job.place(name)
    try:
        fd = (
            os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS, dir_fd=directory)
            if begun
            else _atomic.create(path, directory)
        )
        try:
            _atomic.write(fd, data)
        finally:
            os.close(fd)
    except OSError as error:
        _blame(error, job)
        raise


@contextmanager
def _blamed(job: Job) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _blame(error, job)
        raise


def _blame(error: OSError, job: Job) -> None:
    """Let an error name the root that is written to: a failing write names nothing, and there may be several roots."""
    error.filename = job.root.tree.path


def staged_files(job: Job) -> dict[str, bytes]:
    """Return the staged files of a job by name, placeholders written over."""
    found = {}
    for artifact in job.entry.artifacts:
        fd = os.open(job.place(artifact.name), os.O_RDONLY | _FLAGS, dir_fd=job.root.staging.fd)
        with os.fdopen(fd, "rb") as file:
            found[artifact.name] = file.read()
    return found


def sync_staged(jobs: Iterable[Job]) -> None:
    """Bring the staged files, then their directories, to the disk."""
    files, directories = [], []
    for job in jobs:
        files += [(job, job.place(artifact.name)) for artifact in job.entry.artifacts]
        if job.entry.unit is Unit.KERNEL:
            directories.append((job, job.staged))
    from concurrent.futures import ThreadPoolExecutor  # with logging and queues: not for those who do not sync

    pool = ThreadPoolExecutor(_SYNC_THREADS)
    try:
        for _ in chain(pool.map(_sync, files), pool.map(_sync, directories)):
            pass  # a failed one raises here
    finally:
        # After a failure or a signal what waits is not begun, and what is under way has descriptors that are in use.
        pool.shutdown(cancel_futures=True)


def _sync(staged: tuple[Job, str]) -> None:
    job, place = staged
    with _blamed(job):
        fd = os.open(place, os.O_RDONLY | _FLAGS, dir_fd=job.root.staging.fd)
        try:
            _atomic.sync(fd)
        finally:
            os.close(fd)


def sync_parents(roots: Iterable[StagedRoot]) -> None:
    """Bring the directories in which entries were published to the disk, and those above them.

    Raises:
        LocalIOError: The disk refuses; what was published stays.
    """
    for root in roots:
        root.tree.forget()  # a descriptor may be that of a directory which was removed and made again
        above = {"/".join(path.split("/")[:depth]) for path in root.changed for depth in range(path.count("/") + 1)}
        for path in sorted(root.changed | above):
            fd = root.tree.directory(path)
            try:
                if fd is not None:  # else somebody removed it since
                    _atomic.sync(fd)
            except OSError as error:
                raise LocalIOError.from_os_error(error, "sync the directory", root.tree.full(path)) from error
