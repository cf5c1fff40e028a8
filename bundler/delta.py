"""A tree less what a base bundle has of it: new and different entries, and what the base has and the tree lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bundler.builds import Build, alike
from bundler.collect import Collected, Draft, Options, takes
from bundler.errors import UsageError
from bundler.formats import Reader, collision
from bundler.model import Entry
from bundler.roots import Root

__all__ = ["Delta", "reduced"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What of a tree goes into a delta.

    Attributes:
        collected: New and different entries.
        same: How many entries the base has already, identical or equivalent.
        lost: Entries that the base has in these roots and the tree has not, as ``name/relative/path``; sorted.
    """

    collected: Collected
    same: int = 0
    lost: tuple[str, ...] = ()


def reduced(collected: Collected, base: Reader, roots: Sequence[Root], options: Options) -> Delta:
    """Leave out of what was collected what ``base`` has.

    Raises:
        UsageError: A root is of one kind here and of another in the base, or an entry cannot stand beside the base's.
        ChangedError: A file is not what it was when it was collected.
        FormatError, DigestMismatchError: The base is damaged.
    """
    _require_kinds(base, roots)
    there = {entry.identity: entry for entry in base.index.entries}
    drafts = [draft for draft in collected.drafts if not _has(base, there.get((draft.root, draft.path)), draft)]
    _require_room(base.index.entries, drafts)
    kept = Collected(
        drafts=drafts,
        skipped=collected.skipped,
        damaged=collected.damaged,
        bytes_in=sum(file.disk_size for draft in drafts for file in draft.files),
    )
    lost = sorted(_lost(base.index.entries, collected, roots, options))
    return Delta(kept, len(collected.drafts) - len(drafts), tuple(lost))


def _require_kinds(base: Reader, roots: Sequence[Root]) -> None:
    kinds = {record.name: record.kind for record in base.index.roots}
    for root in roots:
        if kinds.get(root.name, root.kind.name) != root.kind.name:
            raise UsageError(
                f"root {root.name!r} is of kind {root.kind.name} here and of kind {kinds[root.name]} in {base.name}: "
                "name it otherwise, as in NAME:KIND=PATH"
            )


def _has(base: Reader, entry: Entry | None, draft: Draft) -> bool:
    """Whether a launch loads from the base what it would load from the tree, and as many files are there."""
    if entry is None:
        return False
    theirs, mine = Build.of_entry(base, entry), Build.of_draft(draft)
    return len(mine.forms) <= len(theirs.forms) and alike(theirs, mine)


def _require_room(entries: Sequence[Entry], drafts: Sequence[Draft]) -> None:
    """Refuse what a restore of base and delta could not write side by side."""
    replaced = {(draft.root, draft.path) for draft in drafts}
    files = [(e.root, e.directory, a.name) for e in entries if e.identity not in replaced for a in e.artifacts]
    files += [(draft.root, draft.directory, file.name) for draft in drafts for file in draft.files]
    found = collision(files)
    if found:
        raise UsageError(f"{found}, in the tree and in the base: pack the tree whole, without a base")


def _lost(entries: Sequence[Entry], collected: Collected, roots: Sequence[Root], options: Options) -> Iterator[str]:
    """Yield what the base has and the tree has not; what was left out for a reason is not lost."""
    there = {(draft.root, draft.path) for draft in collected.drafts}
    skipped = {skipped.path for skipped in collected.skipped}
    named = {root.name: root for root in roots}
    for entry in entries:
        root = named.get(entry.root)
        if root is None or entry.identity in there or not skipped.isdisjoint(_above(str(entry))):
            continue
        if takes(root, entry.path, options):
            yield str(entry)


def _above(path: str) -> Iterator[str]:
    """Yield a path and each directory that it lies in."""
    while path:
        yield path
        path = path.rpartition("/")[0]
