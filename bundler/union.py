"""What a cumulative save stores: all that is stored already, and what a host has beyond it, in a size that is allowed.

Unlike ``merge``, it has two sides that are not equal: what is stored stays, whatever the other side has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from bundler.builds import Build, alike
from bundler.collect import Collected
from bundler.errors import UsageError
from bundler.formats import Reader
from bundler.merging import (
    LAST_USED,
    drafts_of,
    require_mergeable,
    united_facts,
    united_roots,
    united_skipped,
)
from bundler.model import Entry, Profile, Unit
from bundler.packing import output, write_collected

__all__ = ["Dropped", "Kept", "Union"]


_LASTING = {Unit.KERNEL: 1, Unit.AOTAUTOGRAD: 2, Unit.FXGRAPH: 2}


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry of this host that differs from the stored one, which was kept (``action``: ``kept``)."""

    entry: str
    action: str = "kept"


@dataclass(frozen=True, slots=True)
class Dropped:
    """An entry that was left out for its age: bytes of its files, and when it was last used (seconds; 0: unknown)."""

    entry: str
    size: int
    last_used: int


class Union:
    """Entries of two bundles that are open.

    Args:
        stored: The bundle that is stored; None when there is none.
        new: What is to be added; None when there is nothing.
        last_used: Tells when an entry of ``new`` was last used, from the entry and what is recorded of it (None for one
            that is not stored). None where nobody will ask.

    Attributes:
        entries: By identity, each with the bundle that it is read from.
        added: Entries that were not stored.
        upgraded: Stored entries that ``new`` has more files of.
        conflicts: Stored entries that ``new`` has other builds of.
        dropped: Entries that did not fit.

    Raises:
        UsageError: A root is of two kinds, or of an unknown one.
    """

    def __init__(
        self,
        stored: Reader | None,
        new: Reader | None,
        last_used: Callable[[Entry, int | None], int] | None = None,
    ) -> None:
        self._readers = [reader for reader in (stored, new) if reader is not None]
        require_mergeable(self._readers)
        self.entries: dict[tuple[str, str], tuple[Reader, Entry]] = {}
        self.added: set[tuple[str, str]] = set()
        self.upgraded: set[tuple[str, str]] = set()
        self.conflicts: list[Kept] = []
        self.dropped: list[Dropped] = []
        self._used: dict[tuple[str, str], int] = {}
        recorded = _recorded(stored)
        for reader in self._readers:
            for entry in reader.index.entries:
                known = recorded.get(str(entry), 0) if reader is stored or entry.identity in self.entries else None
                if reader is stored:
                    self.entries[entry.identity] = (reader, entry)
                else:
                    self._add(reader, entry)
                    known = last_used(entry, known) if last_used else known
                self._used[entry.identity] = known or 0

    def _add(self, new: Reader, entry: Entry) -> None:
        there = self.entries.get(entry.identity)
        if there is None:
            self.added.add(entry.identity)
            self.entries[entry.identity] = (new, entry)
            return
        stored, mine = Build.of_entry(*there), Build.of_entry(new, entry)
        if not alike(stored, mine):
            self.conflicts.append(Kept(str(entry)))
        elif len(mine.forms) > len(stored.forms):
            self.upgraded.add(entry.identity)
            self.entries[entry.identity] = (new, entry)

    @property
    def is_new(self) -> bool:
        """Whether there is anything that is not stored."""
        return bool(self.added or self.upgraded)

    def write(self, path: str, *, level: int, max_size: int | None) -> str:
        """Write all of it to ``path``, without as many of the least recently used entries as it takes to fit.

        Returns:
            The content digest.

        Raises:
            UsageError: No entry fits.
            LocalIOError: There is no room.
        """
        digest = self._write_once(path, level)
        if max_size is None:
            return digest
        order = sorted(self.entries, key=lambda identity: (self._used[identity], self._rank(identity), identity))
        while (size := os.path.getsize(path)) > max_size:
            # As many bytes of files as make up for what is too much, at the mean ratio of compression.
            excess = sum(map(self._size, order)) * (size - max_size) / size
            while order and excess > 0:
                identity = order.pop(0)
                excess -= max(1, self._size(identity))
                self._drop(identity)
            if not order:
                raise UsageError(
                    f"no entry fits into {max_size} bytes (the last ones take {size}): allow more, or save without a "
                    "maximal size; nothing was uploaded"
                )
            digest = self._write_once(path, level)
        return digest

    def _rank(self, identity: tuple[str, str]) -> int:
        """Of what was used at the same time, graphs go last: they are looked up first, and hold copies of kernels."""
        return _LASTING.get(self.entries[identity][1].unit, 0)

    def _size(self, identity: tuple[str, str]) -> int:
        reader, entry = self.entries[identity]
        return sum(reader.index.contents[artifact.content].size for artifact in entry.artifacts)

    def _drop(self, identity: tuple[str, str]) -> None:
        self.dropped.append(Dropped(str(self.entries[identity][1]), self._size(identity), self._used[identity]))
        del self.entries[identity]
        self.added.discard(identity)
        self.upgraded.discard(identity)

    def _write_once(self, path: str, level: int) -> str:
        drafts = []
        for reader in self._readers:
            drafts += drafts_of(reader, [entry for source, entry in self.entries.values() if source is reader])
        drafts.sort(key=lambda draft: (draft.root, draft.path))
        names = {draft.root for draft in drafts}
        facts = united_facts([reader.index.facts for reader in self._readers])
        facts.pop(LAST_USED, None)
        if self.dropped:
            facts.pop("compile_milliseconds", None)  # it stands for all that was compiled, and part of that is gone
        used = {str(entry): self._used[entry.identity] for _, entry in self.entries.values()}
        known = {name: used[name] for name in sorted(used) if used[name]}
        runtime = all(reader.index.profile is Profile.RUNTIME for reader in self._readers)
        with output(path) as (file, _):
            written = write_collected(
                file,
                [root for root in united_roots(self._readers) if root.name in names],
                Collected(drafts=drafts, skipped=united_skipped(self._readers)),
                profile=Profile.RUNTIME if runtime else Profile.FULL,
                level=level,
                facts={**facts, **({LAST_USED: known} if known else {})},
                spool_directory=os.path.dirname(path),
            )
        return str(written.content_digest)


def _recorded(stored: Reader | None) -> dict[str, int]:
    facts = stored.index.facts.get(LAST_USED) if stored else None
    rows = facts.items() if isinstance(facts, dict) else ()
    return {str(name): seconds for name, seconds in rows if isinstance(seconds, int)}
