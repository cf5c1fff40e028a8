"""Entries -> cache directories: verified, staged, and renamed into place, each whole or not at all.

The order is what makes it safe, so all of it is in ``emit``:

1. *Probe*: what is installed and identical is left alone; a link on the way ends everything before the first write.
2. *Stage*: one pass over the payload writes every other entry below a staging directory in its root, digests checked.
3. *Compare*: where something is installed, the staged files decide whether it is equivalent, damaged or different.
4. *Publish*: one rename per entry. An absent entry appears; a damaged one is exchanged for a whole one.
5. *Clean up*: staging goes, whatever happened.

Nothing has appeared before step 4, and a kill at any instant leaves each entry absent or whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from enum import Enum

from bundler import _atomic, publish, stage, staging
from bundler.compare import Verdict
from bundler.errors import BundlerError, EntryExistsError, LocalIOError
from bundler.formats import Reader
from bundler.model import Artifact, Entry, Unit
from bundler.relocate import restore, unrestore
from bundler.roots import Root
from bundler.stage import Damage, Job
from bundler.staging import StagedRoot

__all__ = ["Conflict", "EmitOptions", "EmitReport", "OnConflict", "emit"]

_ATTEMPTS = 10  # times that entries are staged again after their staging was taken away


class OnConflict(str, Enum):
    """What to do where a different entry is installed."""

    KEEP = "keep"
    REPLACE = "replace"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """How to restore.

    Attributes:
        on_conflict: What to do where a different entry is installed.
        sync: Bring staged files and directories to the disk before and after they are published.
        salvage: Restore what is good of a damaged bundle.
        dry_run: Report what would be done, write nothing.
        repair_only: Replace what is damaged; leave absent and different entries alone.
        progress: Told the bytes of contents as they are staged.
    """

    on_conflict: OnConflict = OnConflict.KEEP
    sync: bool = True
    salvage: bool = False
    dry_run: bool = False
    repair_only: bool = False
    progress: Callable[[int], None] = lambda size: None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A different entry was installed; ``action`` is ``kept`` or ``replaced``."""

    entry: str
    action: str


@dataclass(slots=True)
class EmitReport:
    """What a restore did. Counts are of entries unless they say otherwise; ``upgraded`` is part of ``restored``."""

    restored: int = 0
    unchanged: int = 0
    equivalent: int = 0
    upgraded: int = 0
    repaired: int = 0
    kept: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    files_written: int = 0
    bytes_written: int = 0

    def add(self, other: EmitReport) -> None:
        """Add what another restore did."""
        for each in fields(EmitReport):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def emit(reader: Reader, entries: Sequence[Entry], roots: Mapping[str, Root], options: EmitOptions) -> EmitReport:
    """Restore ``entries`` into ``roots``.

    Args:
        reader: An open bundle; a pipe is read once.
        entries: Those of the bundle to restore; their paths may differ from the bundle's (device map).
        roots: Where each root goes, by its name in the bundle.
        options: See ``EmitOptions``.

    Raises:
        UnsafePathError: A link below a root on the way of an entry.
        LocalIOError: A root cannot be read or written, or has no room.
        FormatError, DigestMismatchError: The payload is damaged, and not ``salvage``.
        RelocationError: A placeholder is not where the index says.
        EntryExistsError: A different entry is installed, and ``on_conflict`` is ``fail``.

        Once an entry has appeared, only LocalIOError is raised, and UnsafePathError for a link that was put there
        since: what is published by then stays, whole.
    """
    report = EmitReport()
    with _opened(roots, entries, options, report) as opened:
        work = _Emission(reader, opened, options, report)
        jobs = work.probe(entries)
        if options.dry_run:
            work.rehearse(jobs)
        elif jobs:
            work.carry_out(jobs)
    return report


@contextmanager
def _opened(
    roots: Mapping[str, Root], entries: Iterable[Entry], options: EmitOptions, report: EmitReport
) -> Iterator[dict[str, StagedRoot]]:
    opened: dict[str, StagedRoot] = {}
    try:
        for name in sorted({entry.root for entry in entries}):
            path = roots[name].path
            make = not (options.dry_run or options.repair_only)
            opened[name] = StagedRoot(path, make=make, missing_ok=options.dry_run)
            if not options.dry_run:
                report.warnings += staging.sweep(opened[name].tree.fd, path)
        yield opened
    finally:
        for root in opened.values():
            report.warnings += root.discard()
            root.tree.close()


class _Emission:
    """One run of ``emit``; the methods stand in the order in which they are called."""

    def __init__(
        self, reader: Reader, roots: Mapping[str, StagedRoot], options: EmitOptions, report: EmitReport
    ) -> None:
        self._reader = reader
        self._roots = roots
        self._options = options
        self._report = report

    # 1. Probe

    def probe(self, entries: Sequence[Entry]) -> list[Job]:
        """Return a job for each entry that is not installed as the bundle has it."""
        contents = self._reader.index.contents
        jobs = []
        for number, entry in enumerate(entries):
            root = self._roots[entry.root]
            exists = self._is_installed(root, entry)
            if exists is None:
                self._report.unchanged += 1
            elif exists or not self._options.repair_only:
                size = sum(contents[artifact.content].size for artifact in entry.artifacts)
                jobs.append(Job(entry, root, str(number), exists, size))
        return jobs

    def _is_installed(self, root: StagedRoot, entry: Entry) -> bool | None:
        """Return None when the entry is installed and identical, else whether anything lies at its place."""
        tree = root.tree
        if entry.unit is Unit.KERNEL:
            with tree.entered(entry.path) as directory:
                if directory is None:
                    return False
                # Every file is looked at, so that a link in place of any of them is refused.
                same = [self._is_identical(root, entry, directory, artifact) for artifact in entry.artifacts]
                return None if all(same) else True
        mode = tree.mode(entry.path)
        if mode is None:
            return False
        if not stat.S_ISREG(mode):
            raise LocalIOError(tree.full(entry.path), errno.EISDIR, "restore a file where something else lies")
        parent = tree.directory(entry.directory)
        same_file = parent is not None and self._is_identical(root, entry, parent, entry.artifacts[0])
        return None if same_file else True

    def _is_identical(self, root: StagedRoot, entry: Entry, directory: int, artifact: Artifact) -> bool:
        content = self._reader.index.contents[artifact.content]
        if artifact.relocation is None:
            return root.tree.digest(directory, artifact.name, entry.directory, content.size) == content.digest
        data = root.tree.read(directory, artifact.name, entry.directory)
        base = stage.base_of(root.tree, entry, artifact.relocation)
        return data is not None and self._reader.is_content(
            artifact.content, unrestore(data, artifact.relocation, base)
        )

    def rehearse(self, jobs: Sequence[Job]) -> None:
        """Count what would be done, from the bundle and the installed files alone."""
        self._check_frames(jobs)
        held, broken = self._read_ahead(jobs)
        for job in jobs:
            damaged = [artifact for artifact in job.entry.artifacts if artifact.content in broken]
            if damaged:
                first = min(damaged, key=lambda artifact: artifact.content)
                self._report.damaged.append(Damage(str(job.entry), first.name, broken[first.content]))
                continue
            verdict = publish.verdict(job, self._ours(job, held)) if job.exists else None
            if verdict is Verdict.DIFFERENT and self._options.on_conflict is OnConflict.FAIL:
                raise EntryExistsError(job.root.tree.full(job.entry.path))
            self._count(job, verdict, self._action(verdict))

    def _read_ahead(self, jobs: Sequence[Job]) -> tuple[dict[int, bytearray], dict[int, str]]:
        """Return the contents that installed entries are compared with, and what is wrong with those that are damaged.

        One pass, so that a pipe will do. What is not compared is read too where nothing else tells that it is whole.
        """
        compared = {artifact.content for job in jobs if job.exists for artifact in job.entry.artifacts}
        told = self._reader.seekable and not self._options.salvage
        wanted = compared if told else _contents(jobs)
        held: dict[int, bytearray] = {number: bytearray() for number in compared}
        broken: dict[int, str] = {}
        for chunk in self._reader.deliver(wanted, salvage=self._options.salvage):
            if chunk.error is not None:
                broken[chunk.content] = str(chunk.error)
            elif chunk.content in held:
                held[chunk.content] += chunk.data
        self._reader.finish()
        return held, broken

    def _ours(self, job: Job, held: Mapping[int, bytearray]) -> dict[str, bytes]:
        files = {}
        for artifact in job.entry.artifacts:
            data = bytes(held[artifact.content])
            if artifact.relocation is not None:
                base = stage.base_of(job.root.tree, job.entry, artifact.relocation)
                data = restore(data, artifact.relocation, base, name=f"{job.entry}/{artifact.name}")
            files[artifact.name] = data
        return files

    def _check_frames(self, jobs: Sequence[Job]) -> None:
        """Find damage before the first file is staged, where the bundle can be read twice."""
        if self._reader.seekable and not self._options.salvage:
            self._reader.check_frames(self._reader.frames_of(_contents(jobs)))

    # 2. to 4.

    def carry_out(self, jobs: Sequence[Job]) -> None:
        """Stage, compare and publish."""
        self._check_room(jobs)
        self._check_frames(jobs)
        attempts = 0
        while jobs := self._attempt(jobs):
            attempts += 1
            if attempts == _ATTEMPTS or not self._reader.seekable:
                path = jobs[0].root.tree.path
                raise LocalIOError(
                    path, errno.ENOENT, "publish entries: something keeps removing the staging directory"
                )
        if self._options.sync:
            stage.sync_parents(self._roots.values())

    def _check_room(self, jobs: Sequence[Job]) -> None:
        """Refuse before the first write what cannot fit: bytes rounded up to blocks, and inodes."""
        for root in self._roots.values():
            mine = [job for job in jobs if job.root is root]
            try:
                status = os.fstatvfs(root.tree.fd)
            except OSError:  # then the writes will tell
                continue
            block = status.f_frsize or 4096
            needed = sum(-(-job.size // block) * block for job in mine)
            inodes = sum(len(job.entry.artifacts) + (job.entry.unit is Unit.KERNEL) for job in mine)
            for what, need, have in (
                # Some file systems make inodes as they need them, and some know nothing at all: both say 0 of 0.
                ("bytes", needed, status.f_bavail * block if status.f_blocks else needed),
                ("inodes", inodes, status.f_favail if status.f_files else inodes),
            ):
                if need > have:
                    raise LocalIOError(
                        root.tree.path, errno.ENOSPC, f"restore {len(mine)} entries ({what})", need, have
                    )

    def _attempt(self, jobs: Sequence[Job]) -> list[Job]:
        """Take ``jobs`` through steps 2 to 4; returns those whose staging was taken away by somebody."""
        try:
            staged, damaged = stage.stage(
                self._reader, jobs, salvage=self._options.salvage, progress=self._options.progress
            )
            self._reader.finish()
            if self._options.sync:
                stage.sync_staged(staged)
            verdicts = {id(job): publish.verdict(job, stage.staged_files(job)) for job in staged if job.exists}
        except BundlerError:
            raise
        except OSError as error:
            if not _atomic.vanished(error):
                raise _not_staged(error, jobs) from error
            self._discard(jobs)  # nothing is published yet
            return list(jobs)
        self._report.damaged += damaged
        for job in staged:
            if verdicts.get(id(job)) is Verdict.DIFFERENT and self._options.on_conflict is OnConflict.FAIL:
                raise EntryExistsError(job.root.tree.full(job.entry.path))
        lost = [job for job in staged if not self._settle(job, verdicts.get(id(job)))]
        self._discard(lost)
        return lost

    def _discard(self, jobs: Iterable[Job]) -> None:
        for root in {id(job.root): job.root for job in jobs}.values():
            self._report.warnings += root.discard()

    def _settle(self, job: Job, verdict: Verdict | None) -> bool:
        """Publish a staged job, or leave it; False when its staging is gone."""
        action = self._action(verdict)
        try:
            while action is not None:
                verdict_now = publish.publish(job, action, verdict)
                if verdict_now is None:
                    break
                # Somebody else installed the entry since it was looked at: decide again, on what lies there now.
                verdict, action = verdict_now, self._action(verdict_now)
        except publish.StagingGoneError:
            return False
        except OSError as error:
            if isinstance(error, BundlerError):
                raise
            raise LocalIOError.from_os_error(error, "publish the entry", job.root.tree.full(job.entry.path)) from error
        self._count(job, verdict, action)
        return True

    def _action(self, verdict: Verdict | None) -> publish.Action | None:
        """Return how a job is to be published; None when what is installed stays."""
        if verdict is None:
            return publish.Action.ADD
        wanted = {Verdict.DAMAGED}
        if not self._options.repair_only:
            wanted |= {Verdict.UPGRADE, Verdict.VACANT}
            if self._options.on_conflict is OnConflict.REPLACE:
                wanted.add(Verdict.DIFFERENT)
        return publish.Action.REPLACE if verdict in wanted else None

    def _count(self, job: Job, verdict: Verdict | None, action: publish.Action | None) -> None:
        report = self._report
        if action is not None:
            report.files_written += len(job.entry.artifacts)
            report.bytes_written += job.size
        if verdict is None or verdict is Verdict.VACANT:
            report.restored += action is not None
        elif verdict is Verdict.UPGRADE:
            report.restored += action is not None
            report.upgraded += action is not None
            report.unchanged += action is None
        elif verdict is Verdict.DAMAGED:
            report.repaired += 1
        elif verdict is Verdict.DIFFERENT:
            report.kept += action is None
            report.restored += action is not None
            report.conflicts.append(Conflict(str(job.entry), "replaced" if action else "kept"))
        else:
            report.unchanged += 1
            report.equivalent += verdict is Verdict.EQUIVALENT


def _contents(jobs: Iterable[Job]) -> set[int]:
    return {artifact.content for job in jobs for artifact in job.entry.artifacts}


def _not_staged(error: OSError, jobs: Sequence[Job]) -> LocalIOError:
    """Say why files could not be staged; what was needed, and is left, where room is the matter."""
    action = "write the staged files"
    failed = [job for job in jobs if job.root.tree.path == error.filename] or jobs
    path = failed[0].root.tree.path
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return LocalIOError.from_os_error(error, action, path)
    available = 0
    with suppress(OSError):
        status = os.statvfs(path)
        available = status.f_bavail * status.f_frsize
    needed = sum(job.size for job in failed)
    return LocalIOError(path, error.errno, f"{action} ({len(failed)} entries, bytes)", needed, available)
