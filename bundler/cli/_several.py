"""Several bundles restored by one command: all are checked, and their roots placed together, before the first write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bundler.cli._restored import total
from bundler.errors import UsageError

if TYPE_CHECKING:
    from bundler.bundle import Selection, UnpackReport
    from bundler.emit import EmitOptions
    from bundler.model import RootRecord
    from bundler.reading import Blob
    from bundler.roots import Root

__all__ = ["restore_several"]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A bundle that can be restored: its roots, and the names of those that something goes to."""

    source: Blob
    base: Blob | None
    records: tuple[RootRecord, ...]
    used: frozenset[str]


def restore_several(
    pairs: Sequence[tuple[Blob, Blob | None]],
    roots: Sequence[str],
    into: str | None,
    selection: Selection,
    options: EmitOptions,
) -> UnpackReport:
    """Restore bundles in their order, each delta with its base, and return the sum of what was done.

    ``roots`` and ``into`` are for the bundles together: two bundles with a root each are two roots. A bundle in which
    nothing matches ``--only`` is passed over, unless that holds for all of them.

    Raises:
        UsageError, IncompatibleTargetError, FormatError, DigestMismatchError, LocalIOError: Before anything is written.
        EntryExistsError: As the others where ``on_conflict`` is ``fail``, unless one bundle conflicts with another.
    """
    from bundler import host
    from bundler.bundle import unpack
    from bundler.emit import OnConflict
    from bundler.reading import kept_in_place

    if selection.targets is None:
        selection = replace(selection, targets=host.gpu_targets())  # asked once
    checked = [each for each in (_check(*pair, selection, options) for pair in pairs) if each is not None]
    if not checked:
        asked = " ".join(selection.only)
        raise UsageError(f"--only {asked} matches nothing in any bundle; `inspect --entries` lists what is in one")
    places = _place(checked, roots, into)

    def restore(each: _Checked, how: EmitOptions) -> UnpackReport:
        mine = [places[record.name] for record in each.records if record.name in places]
        with kept_in_place(each.source), kept_in_place(each.base):
            return unpack(each.source, mine, base=each.base, selection=selection, options=how)

    if options.on_conflict is OnConflict.FAIL and not options.dry_run:
        for each in checked:
            restore(each, replace(options, dry_run=True))
    return total([restore(each, options) for each in checked])


def _check(source: Blob, base: Blob | None, selection: Selection, options: EmitOptions) -> _Checked | None:
    from bundler.bundle import matches, select
    from bundler.reading import kept_in_place, opened

    with kept_in_place(source), kept_in_place(base), opened(source, base=base) as reader:
        if not any(matches(entry, selection.only) for entry in reader.index.entries):
            return None
        entries, _ = select(reader, selection)
        if not options.salvage:
            wanted = {artifact.content for entry in entries for artifact in entry.artifacts}
            reader.check_frames(reader.frames_of(wanted))
        return _Checked(source, base, reader.index.roots, frozenset(entry.root for entry in entries))


def _place(checked: Sequence[_Checked], roots: Sequence[str], into: str | None) -> dict[str, Root]:
    from bundler.roots import place_roots

    records: dict[str, RootRecord] = {}
    for each in checked:
        for record in each.records:
            known = records.setdefault(record.name, record)
            if known.kind != record.kind:
                raise UsageError(
                    f"root {record.name!r} is of kind {known.kind} in one bundle and of kind {record.kind} in another: "
                    "restore them one by one"
                )
    used = frozenset().union(*(each.used for each in checked))
    return place_roots([records[name] for name in sorted(records)], roots, into, used=used)
