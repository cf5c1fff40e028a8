"""The verb ``diff``: two bundles, entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bundler import check
from bundler.compare import Verdict, compare_file, compare_kernel
from bundler.formats import Reader
from bundler.model import Entry, Index, Unit
from bundler.reading import Blob, opened
from bundler.relocate import restore

__all__ = ["Changed", "DiffReport", "compare_entries", "diff"]


@dataclass(frozen=True, slots=True)
class Changed:
    """An entry that both bundles hold, and the names of the files that are not the same bytes in both."""

    entry: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Entries by ``name/relative/path``. ``equivalent``: other bytes, but a launch loads the same."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[Changed, ...]
    equivalent: tuple[Changed, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs that a launch could see."""
        return not (self.added or self.removed or self.changed)


def diff(a: Blob, b: Blob) -> DiffReport:
    """Compare bundle ``b`` with bundle ``a``; ``added`` are entries that only ``b`` has.

    Raises:
        FormatError, DigestMismatchError, UnsafePathError, LocalIOError: One of them cannot be read.
    """
    with opened(a) as first, opened(b) as second:
        ours = {entry.identity: entry for entry in first.index.entries}
        theirs = {entry.identity: entry for entry in second.index.entries}
        changed: list[Changed] = []
        equivalent: list[Changed] = []
        for identity in sorted(ours.keys() & theirs.keys()):
            files = _differing(first.index, ours[identity], second.index, theirs[identity])
            if not files:
                continue
            verdict = compare_entries(first, ours[identity], second, theirs[identity])
            alike = verdict in (Verdict.IDENTICAL, Verdict.EQUIVALENT)
            (equivalent if alike else changed).append(Changed(str(ours[identity]), files))
        return DiffReport(
            added=tuple(str(theirs[identity]) for identity in sorted(theirs.keys() - ours.keys())),
            removed=tuple(str(ours[identity]) for identity in sorted(ours.keys() - theirs.keys())),
            changed=tuple(changed),
            equivalent=tuple(equivalent),
        )


def _forms(index: Index, entry: Entry) -> Mapping[str, object]:
    return {a.name: (index.contents[a.content].digest, a.relocation) for a in entry.artifacts}


def _differing(index: Index, entry: Entry, other_index: Index, other: Entry) -> tuple[str, ...]:
    forms, other_forms = _forms(index, entry), _forms(other_index, other)
    names = sorted(forms.keys() | other_forms.keys())
    return tuple(name for name in names if forms.get(name) != other_forms.get(name))


def compare_entries(first: Reader, entry: Entry, second: Reader, other: Entry) -> Verdict:
    """Compare two entries of one identity as a restore would, each as it would lie in one and the same place."""
    if entry.unit is not other.unit or entry.target != other.target:
        return Verdict.DIFFERENT
    ours, theirs = _files(first, entry), _files(second, other)
    if entry.unit is Unit.KERNEL:
        return compare_kernel(ours, theirs, entry.key)
    name = entry.artifacts[0].name
    return compare_file(name, entry.unit, ours[name], theirs[name])


def _files(reader: Reader, entry: Entry) -> dict[str, bytes]:
    files = {}
    for artifact in entry.artifacts:
        # Contents too large to parse are told apart by their digests alone.
        large = reader.index.contents[artifact.content].size > check.WHOLE_LIMIT
        data = reader.index.contents[artifact.content].digest if large else reader.read(artifact.content)
        if artifact.relocation is not None:
            data = restore(data, artifact.relocation, f"/{entry.directory or '.'}", name=f"{entry}/{artifact.name}")
        files[artifact.name] = data
    return files
