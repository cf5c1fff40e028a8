"""The verb ``verify``: of a bundle, or of an installed root with no bundle at hand. Gathers every problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bundler import check
from bundler.collect import Collected, Draft, Options, collect
from bundler.digest import Digest
from bundler.errors import (
    DigestMismatchError,
    FormatError,
    IncompleteEntryError,
    RelocationError,
)
from bundler.formats import Reader
from bundler.installed import leads_to
from bundler.model import Artifact, Entry, Unit
from bundler.reading import Blob, opened, require_digest
from bundler.relocate import restore
from bundler.roots import RootLike, resolve

__all__ = ["EntryProblem", "VerifyReport", "verify", "verify_root"]


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """One thing that is wrong. ``entry`` is ``name/relative/path``; ``file`` is "" when it concerns the whole entry."""

    code: str
    entry: str
    file: str
    detail: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """``entries`` counts those that were looked at; ``content_digest`` is "" for a root.

    ``files_in_base`` counts files of a delta alone that lie in its base, or copy from there, and were not looked at.
    """

    ok: bool
    entries: int
    problems: tuple[EntryProblem, ...]
    content_digest: str = ""
    files_in_base: int = 0

    @property
    def exit_code(self) -> int:
        """What the command ends with: the code of the worst problem, 0 without any."""
        codes = {problem.code for problem in self.problems}
        if "digest" in codes:
            return DigestMismatchError.exit_code
        if "format" in codes:
            return FormatError.exit_code
        return IncompleteEntryError.exit_code if codes else 0


def verify(
    blob: Blob,
    *,
    base: Blob | None = None,
    expect_digest: str | Digest | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> VerifyReport:
    """Check a bundle: every digest, and that every file is what it claims to be.

    Args:
        blob: See ``unpack``. A delta alone is checked as far as it goes.
        base: The bundle that it is a delta of, which is then checked too.
        expect_digest: The content digest that it must have; that of the delta, where there is a base.
        progress: Told the bytes of contents as they are checked.

    Raises:
        FormatError, UnsafePathError: Header or index cannot be read, so there is nothing to gather.
        DigestMismatchError: The index was changed.
        OtherBundleError: The content digest is not the expected one.
        LocalIOError: The file cannot be read.
        UsageError: ``expect_digest`` is no digest, or ``base`` is given for what is no delta.
        WrongBaseError: ``base`` is not the bundle that the delta was made from.
    """
    with opened(blob, base=base, alone=True) as reader:
        if expect_digest is not None:
            require_digest(reader, expect_digest)
        problems = list(_bundle_problems(reader, progress))
        reader.finish()
        return VerifyReport(
            ok=not problems,
            entries=len(reader.index.entries),
            problems=tuple(problems),
            content_digest=str(reader.content_digest),
            files_in_base=sum(reader.index.needs_base(a.content) for e in reader.index.entries for a in e.artifacts),
        )


def _bundle_problems(reader: Reader, progress: Callable[[int], None]) -> Iterator[EntryProblem]:
    users: dict[int, list[tuple[Entry, Artifact]]] = {}
    for entry in reader.index.entries:
        for artifact in entry.artifacts:
            if reader.index.needs_base(artifact.content):
                continue
            users.setdefault(artifact.content, []).append((entry, artifact))
    said: dict[str, dict[str, check.Facts]] = {}  # what the files of each kernel say, by entry
    parts: list[bytes] = []
    for chunk in reader.deliver(users, salvage=True):
        progress(len(chunk.data))
        if reader.index.contents[chunk.content].size <= check.WHOLE_LIMIT:
            parts.append(bytes(chunk.data))
        if not chunk.last:
            continue
        known: dict[tuple[str, Unit], check.Facts] = {}  # what stands for many files is examined once
        for entry, artifact in users[chunk.content]:
            if chunk.error is not None:
                code = "digest" if isinstance(chunk.error, DigestMismatchError) else "format"
                yield EntryProblem(code, str(entry), artifact.name, str(chunk.error))
            elif parts:
                like = (artifact.name, entry.unit)
                facts = known[like] if like in known else _examine(entry, artifact, b"".join(parts))
                if entry.unit is not Unit.KERNEL and artifact.relocation is None:
                    known[like] = facts
                if entry.unit is Unit.KERNEL:
                    said.setdefault(str(entry), {})[artifact.name] = facts
                else:
                    yield from (_shown(str(entry), problem) for problem in facts.problems)
        parts.clear()
    for entry in reader.index.entries:
        if entry.unit is Unit.KERNEL and len(said.get(str(entry), ())) == len(entry.artifacts):
            yield from _kernel_problems(entry, said[str(entry)])


def _examine(entry: Entry, artifact: Artifact, data: bytes) -> check.Facts:
    """Examine a file as it would lie on disk; where does not matter, but that its placeholders can be written over."""
    if artifact.relocation is not None:
        try:
            data = restore(data, artifact.relocation, f"/{entry}" if entry.unit is Unit.KERNEL else "/")
        except RelocationError as error:
            return check.Facts((check.Problem("format", artifact.name, str(error)),))
    return check.examine(artifact.name, data, entry.unit, key=entry.key)


def _kernel_problems(entry: Entry, facts: dict[str, check.Facts]) -> Iterator[EntryProblem]:
    problems, target = check.judge(facts)
    yield from (_shown(str(entry), problem) for problem in problems)
    if not problems and target != entry.target:
        yield EntryProblem(
            "target_mismatch", str(entry), "", f"its files are for {target}, the index says {entry.target}"
        )


def _shown(entry: str, problem: check.Problem) -> EntryProblem:
    return EntryProblem(problem.code, entry, problem.file, problem.detail)


def verify_root(root: RootLike) -> VerifyReport:
    """Check an installed root: that each entry is whole, and that its group files and handle tables point home.

    Args:
        root: ``PATH``, ``KIND=PATH`` or ``NAME:KIND=PATH``.

    Raises:
        UsageError: An unknown kind.
        LocalIOError: The root cannot be read.
    """
    found = resolve([root])[0]
    collected = Collected()
    collect(found, Options(keep_bytes=0), collected)
    problems = [_shown(entry, problem) for entry, problem in collected.damaged]
    problems += [problem for draft in collected.drafts for problem in _points_away(draft, found.path)]
    entries = len(collected.drafts) + len({entry for entry, _ in collected.damaged})
    return VerifyReport(not problems, entries, tuple(problems))


def _points_away(draft: Draft, root: str) -> Iterator[EntryProblem]:
    home = os.path.join(root, draft.path) if draft.unit is Unit.KERNEL else root
    named = draft.recorded
    if named and not leads_to(named, home):
        detail = f"its paths lead to {named}, but it lies in {home}: every look-up misses"
        yield EntryProblem("points_away", f"{draft.root}/{draft.path}", "", detail)
