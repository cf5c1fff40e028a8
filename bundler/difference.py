"""The verb ``diff``: two bundles, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

from bundler.builds import Build, compare
from bundler.compare import Verdict
from bundler.reading import Blob, opened

__all__ = ["Changed", "DiffReport", "diff"]


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
            one, other = Build.of_entry(first, ours[identity]), Build.of_entry(second, theirs[identity])
            files = _differing(one, other)
            if files:
                same = compare(one, other) in (Verdict.IDENTICAL, Verdict.EQUIVALENT)
                (equivalent if same else changed).append(Changed(str(ours[identity]), files))
        return DiffReport(
            added=tuple(str(theirs[identity]) for identity in sorted(theirs.keys() - ours.keys())),
            removed=tuple(str(ours[identity]) for identity in sorted(ours.keys() - theirs.keys())),
            changed=tuple(changed),
            equivalent=tuple(equivalent),
        )


def _differing(ours: Build, theirs: Build) -> tuple[str, ...]:
    names = sorted(ours.forms.keys() | theirs.forms.keys())
    return tuple(name for name in names if ours.forms.get(name) != theirs.forms.get(name))
