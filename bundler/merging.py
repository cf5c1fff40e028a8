"""The verb ``merge``: the union of several bundles, by whole entries.

Entries of one identity that are identical or equivalent are kept once. Which one does not depend on the order of the
bundles: the one with more members, then the one with the lowest digest. Different ones are a conflict, and files of two
builds are never mixed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

from bundler.builds import Build, alike
from bundler.collect import Collected, Draft, File
from bundler.errors import ConflictError, UsageError
from bundler.formats import Reader
from bundler.formats.limits import DEFAULT_LEVEL
from bundler.kinds import KINDS, known_kind
from bundler.model import Content, Entry, Index, Profile, Skipped, Unit
from bundler.packing import BundleReport, check_level, output, write_collected
from bundler.reading import Blob, opened, paired
from bundler.roots import Root

__all__ = [
    "LAST_USED",
    "MergeConflict",
    "MergeReport",
    "OnMergeConflict",
    "drafts_of",
    "merge",
    "require_mergeable",
    "united_facts",
    "united_roots",
    "united_skipped",
]


LAST_USED = "last_used"
"""Fact that says when entries were last used: ``name/path`` -> seconds since the epoch, as far as it is known."""

REFUSED = "refused"
"""Action on a conflict that nobody chose an action for."""


class OnMergeConflict(str, Enum):
    """Which of several different entries is kept: the first bundle's, the last one's, or the one of lowest digest."""

    FIRST = "first"
    LAST = "last"
    LOWEST = "lowest"


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Bundles that hold different entries of one identity, and whose was kept (``action``: ``first``, ...)."""

    entry: str
    sources: tuple[str, ...]
    action: str


@dataclass(frozen=True, slots=True)
class MergeReport(BundleReport):
    """What ``merge`` did; ``candidates`` are FX graph cache keys with several entries, by ``name/key``."""

    conflicts: tuple[MergeConflict, ...]
    candidates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An entry and where it stands."""

    order: int
    reader: Reader
    entry: Entry

    @property
    def preference(self) -> tuple[int, list[tuple[str, bytes]]]:
        """More members first; then by digests, which do not depend on the order of the bundles."""
        contents = self.reader.index.contents
        return (
            -len(self.entry.artifacts),
            [(artifact.name, contents[artifact.content].digest) for artifact in self.entry.artifacts],
        )


def merge(
    blobs: Sequence[Blob],
    out: str | os.PathLike[str] | BinaryIO,
    *,
    on_conflict: OnMergeConflict | str | None = None,
    level: int = DEFAULT_LEVEL,
    progress: Callable[[int], None] = lambda size: None,
) -> MergeReport:
    """Write the union of several bundles.

    Args:
        blobs: Paths, bytes, or files that can seek; at least one. A delta and its base are one bundle.
        out: A path, which is replaced whole or not at all; or a binary file.
        on_conflict: Which of different entries is kept; None refuses.
        level: zstd level, 1 to 22.
        progress: Told the bytes of contents as they are written.

    Raises:
        UsageError: No bundle, a pipe, roots of one name and two kinds, or a delta without its base.
        WrongBaseError: A delta, and none of the others is its base.
        ConflictError: Different entries of one identity, and ``on_conflict`` is None.
        FormatError, DigestMismatchError, UnsafePathError, LocalIOError: A bundle cannot be read, ``out`` not written.
    """
    started = time.monotonic()
    policy = _policy(on_conflict)
    check_level(level)
    with ExitStack() as stack:
        readers = [stack.enter_context(opened(blob, base=base)) for blob, base in paired(blobs)]
        require_mergeable(readers)
        chosen, conflicts = _choose(readers, policy)
        collected = Collected(drafts=[_draft(candidate) for candidate in chosen], skipped=united_skipped(readers))
        collected.bytes_in = sum(file.size for draft in collected.drafts for file in draft.files)
        runtime = all(reader.index.profile is Profile.RUNTIME for reader in readers)
        with output(out) as (file, name):
            written = write_collected(
                file,
                united_roots(readers),
                collected,
                profile=Profile.RUNTIME if runtime else Profile.FULL,
                level=level,
                facts=united_facts([reader.index.facts for reader in readers]),
                progress=progress,
            )
    return MergeReport(
        bundle=name,
        content_digest=str(written.content_digest),
        entries=len(written.index.entries),
        files=sum(len(entry.artifacts) for entry in written.index.entries),
        bytes_in=sum(reader.bundle_size for reader in readers),
        bytes_out=written.size,
        skipped=tuple(collected.skipped),
        seconds=round(time.monotonic() - started, 6),
        conflicts=tuple(conflicts),
        candidates=_several_graphs(written.index),
    )


def require_mergeable(readers: Sequence[Reader]) -> None:
    """Refuse bundles that cannot be united.

    Raises:
        UsageError: None are given, one is a pipe, or a root is of an unknown kind, or of two kinds.
    """
    if not readers:
        raise UsageError("no bundle given: name at least one")
    kinds: dict[str, str] = {}
    for reader in readers:
        if not reader.seekable:
            raise UsageError(f"{reader.name} is a pipe, and merge reads a bundle more than once: save it to a file")
        for root in reader.index.roots:
            known_kind(root.kind, root.name)
            if kinds.setdefault(root.name, root.kind) != root.kind:
                raise UsageError(
                    f"root {root.name!r} is of kind {kinds[root.name]} and of kind {root.kind}: rename one"
                )


def _policy(word: OnMergeConflict | str | None) -> OnMergeConflict | None:
    try:
        return None if word is None else OnMergeConflict(word)
    except ValueError:
        known = ", ".join(policy.value for policy in OnMergeConflict)
        raise UsageError(f"on_conflict {word!r} is unknown: known are {known}") from None


def _choose(readers: Sequence[Reader], policy: OnMergeConflict | None) -> tuple[list[_Candidate], list[MergeConflict]]:
    candidates: dict[tuple[str, str], list[_Candidate]] = {}
    for order, reader in enumerate(readers):
        for entry in reader.index.entries:
            candidates.setdefault(entry.identity, []).append(_Candidate(order, reader, entry))
    chosen, conflicts = [], []
    for identity in sorted(candidates):
        builds = _builds(candidates[identity])
        kept = builds[0]
        if len(builds) > 1:
            names = tuple(candidate.reader.name for candidate in sorted(builds, key=lambda build: build.order))
            kept = _pick(builds, policy or OnMergeConflict.FIRST)
            conflicts.append(MergeConflict(str(kept.entry), names, policy.value if policy else REFUSED))
        chosen.append(kept)
    if conflicts and policy is None:
        raise ConflictError(conflicts[0].entry, conflicts[0].sources, tuple(asdict(each) for each in conflicts))
    return chosen, conflicts


def _builds(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Return one candidate per build, the preferred build first. Equivalent ones are one build."""
    builds: list[_Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: (candidate.preference, candidate.order)):
        if not any(_alike(build, candidate) for build in builds):
            builds.append(candidate)
    return builds


def _alike(build: _Candidate, candidate: _Candidate) -> bool:
    if build.preference == candidate.preference:
        return True
    return alike(Build.of_entry(build.reader, build.entry), Build.of_entry(candidate.reader, candidate.entry))


def _pick(builds: Sequence[_Candidate], policy: OnMergeConflict) -> _Candidate:
    if policy is OnMergeConflict.LOWEST:
        return min(builds, key=lambda build: build.preference[1])
    by_order = sorted(builds, key=lambda build: build.order)
    return by_order[0] if policy is OnMergeConflict.FIRST else by_order[-1]


def drafts_of(reader: Reader, entries: Iterable[Entry]) -> list[Draft]:
    """Return entries of an open bundle as drafts, to be written into another; contents are read when needed."""
    return [_draft(_Candidate(0, reader, entry)) for entry in entries]


def _draft(candidate: _Candidate) -> Draft:
    entry, reader = candidate.entry, candidate.reader
    contents = reader.index.contents
    files = []
    for artifact in entry.artifacts:
        content = contents[artifact.content]
        files.append(
            File(
                artifact.name,
                content.digest,
                content.size,
                content.size,
                partial(_read, reader, artifact.content),
                artifact.relocation,
                long=tuple(_copies(contents, content)),
            )
        )
    return Draft(entry.root, entry.path, entry.unit, files, entry.target, entry.needs)


def _read(reader: Reader, number: int) -> Iterator[bytes]:
    for chunk in reader.deliver([number]):
        yield bytes(chunk.data)


def _copies(contents: Sequence[Content], content: Content) -> Iterator[tuple[int, int, bytes]]:
    offset = 0
    for gap, source in content.copies:
        offset += gap
        yield offset, contents[source].size, contents[source].digest
        offset += contents[source].size


def united_roots(readers: Sequence[Reader]) -> list[Root]:
    """Return the roots without the paths of the hosts that packed them."""
    kinds = {root.name: root.kind for reader in readers for root in reader.index.roots}
    return [Root(name, KINDS[kind], "") for name, kind in sorted(kinds.items())]


def united_skipped(readers: Sequence[Reader]) -> list[Skipped]:
    """Return what the bundles say was not packed, once."""
    rows = {(skipped.path, skipped.reason) for reader in readers for skipped in reader.index.skipped}
    return [Skipped(path, reason) for path, reason in sorted(rows)]


def united_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Unite what several hosts say: equal values once, others as a sorted list of all. Host paths are dropped."""
    united: dict[str, Any] = {}
    for key in sorted({key for each in facts for key in each} - {"recorded_roots"}):
        values = [each[key] for each in facts if key in each and not _is_host_path(each[key])]
        if values:
            united[key] = _unite(key, values)
    return united


def _is_host_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


def _unite(key: str, values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if key == LAST_USED and all(isinstance(value, dict) for value in values):
        return {name: max(value[name] for value in values if name in value) for name in sorted({*chain(*values)})}
    if key == "compile_milliseconds":
        return max(values)  # the bundles may stand for the same compiles
    if all(isinstance(value, dict) for value in values):
        return united_facts(values)
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    distinct = {repr(item): item for item in flat}
    return [distinct[text] for text in sorted(distinct)]


def _several_graphs(index: Index) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in index.entries:
        if entry.unit is Unit.FXGRAPH:
            counts[f"{entry.root}/{entry.key}"] = counts.get(f"{entry.root}/{entry.key}", 0) + 1
    return {key: count for key, count in sorted(counts.items()) if count > 1}
