"""One bundle -> trees: the verbs ``unpack`` and ``repair``, and which entries of a bundle a host has a use for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bundler import host
from bundler.emit import Conflict, EmitOptions, EmitReport, emit
from bundler.errors import (
    IncompatibleTargetError,
    UnsafePathError,
    UsageError,
)
from bundler.formats import Reader
from bundler.kinds import KINDS, takes_file
from bundler.model import Entry, Index, Target, Unit
from bundler.reading import Blob, opened
from bundler.roots import Root, RootLike, environment, place_roots, resolve
from bundler.stage import Damage

__all__ = [
    "Selection",
    "SkippedEntry",
    "UnpackReport",
    "matches",
    "repair",
    "select",
    "unpack",
]

_DEFAULT = EmitOptions()


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """An entry of the bundle that this host has no use for, and why."""

    entry: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnpackReport:
    """What ``unpack`` did. Counts are of entries unless they say otherwise.

    ``equivalent`` is part of ``unchanged``, ``upgraded`` of ``restored``; ``env`` points at the roots, and ``roots``
    says where each of them went, by its name in the bundle.
    """

    restored: int
    unchanged: int
    equivalent: int
    upgraded: int
    repaired: int
    kept: int
    conflicts: tuple[Conflict, ...]
    damaged: tuple[Damage, ...]
    skipped: tuple[SkippedEntry, ...]
    warnings: tuple[str, ...]
    files_written: int
    bytes_written: int
    seconds: float
    env: dict[str, str]
    roots: dict[str, str]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries of a bundle are restored.

    Attributes:
        only: Glob patterns on ``name/path``, path, unit or kernel name; empty for all.
        targets: GPUs to restore for; None asks the host.
        devices: (device in the bundle, device here) for roots with a directory per device.
        force: Restore whatever the target, and host binaries that cannot run here.
        roots: Names of the roots to restore; None for all.
        python: Tag of the Python that byte code is restored for, such as ``cpython-311``; "" for any.
    """

    only: tuple[str, ...] = ()
    targets: tuple[Target, ...] | None = None
    devices: tuple[tuple[int, int], ...] = ()
    force: bool = False
    roots: tuple[str, ...] | None = None
    python: str = ""


def unpack(
    blob: Blob,
    roots: Iterable[RootLike] = (),
    *,
    base: Blob | None = None,
    into: str | os.PathLike[str] | None = None,
    selection: Selection = Selection(),
    options: EmitOptions = _DEFAULT,
    environ: Mapping[str, str] | None = None,
) -> UnpackReport:
    """Restore a bundle.

    Args:
        blob: A path, the bytes, or a binary file; one that cannot seek is read once, in order.
        base: For a delta, the bundle that it was made from: entries of both are restored, the delta's where both have
            one. Entries that the packed tree had lost are restored, too; nothing is ever deleted.
        roots: ``KIND=PATH`` or ``NAME:KIND=PATH`` for roots that do not go where this host keeps that kind.
        into: A single root: the path itself; several: a directory below it for each.
        selection: Which entries.
        options: How; see ``EmitOptions``.
        environ: Environment variables that say where this host keeps each kind; the process's own by default.

    Raises:
        UsageError: A root has no place, or nothing matches ``only``.
        MissingBaseError, WrongBaseError: A delta, and ``base`` is not the bundle that it was made from.
        IncompatibleTargetError: None of the kernels is for a GPU of this host.
        FormatError, DigestMismatchError, UnsafePathError, RelocationError, EntryExistsError, LocalIOError: As ``emit``.
    """
    started = time.monotonic()
    with opened(blob, base=base) as reader:
        entries, skipped = select(reader, selection)
        places = _places(reader.index, entries, [_rootlike(root) for root in roots], into, environ)
        report = emit(reader, entries, places, options)
    return _unpack_report(report, skipped, places, started)


def _rootlike(root: RootLike) -> str | Root:
    return root if isinstance(root, Root) else os.fspath(root)


def _places(
    index: Index,
    entries: Sequence[Entry],
    roots: Sequence[str | Root],
    into: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
) -> dict[str, Root]:
    used = {entry.root for entry in entries}
    return place_roots(index.roots, roots, os.fspath(into) if into is not None else None, environ, used=used)


def _unpack_report(
    report: EmitReport, skipped: Sequence[SkippedEntry], places: Mapping[str, Root], started: float
) -> UnpackReport:
    return UnpackReport(
        restored=report.restored,
        unchanged=report.unchanged,
        equivalent=report.equivalent,
        upgraded=report.upgraded,
        repaired=report.repaired,
        kept=report.kept,
        conflicts=tuple(report.conflicts),
        damaged=tuple(report.damaged),
        skipped=tuple(skipped),
        warnings=tuple(report.warnings),
        files_written=report.files_written,
        bytes_written=report.bytes_written,
        seconds=round(time.monotonic() - started, 6),
        env=environment(places),
        roots={name: root.path for name, root in sorted(places.items())},
    )


def select(reader: Reader, selection: Selection) -> tuple[list[Entry], list[SkippedEntry]]:
    """Return the entries to restore, and those that this host has no use for.

    Raises:
        UsageError: ``only`` matches nothing.
        UnsafePathError: Something else than byte code in a root of it.
        IncompatibleTargetError: There are targets, and none fits.
    """
    wanted = {root.name for root in reader.index.roots} if selection.roots is None else set(selection.roots)
    entries = [e for e in reader.index.entries if e.root in wanted and matches(e, selection.only)]
    _refuse_strangers(reader.index, entries)
    if selection.only and not entries:
        asked, count = " ".join(selection.only), len(reader.index.entries)
        raise UsageError(f"--only {asked} matches none of {count} entries; `inspect --entries` lists them")
    entries, skipped = _fitting(reader.index, entries, selection)
    # A kind that this package does not know is refused where its place is asked for.
    numbered = {root.name: KINDS[root.kind].devices for root in reader.index.roots if root.kind in KINDS}
    mapped = [copy for e in entries for copy in _on_devices(e, numbered.get(e.root, ""), selection.devices)]
    _refuse_collisions(mapped)
    return mapped, skipped


def matches(entry: Entry, only: Sequence[str]) -> bool:
    """Whether an entry is one of those that ``Selection.only`` asks for."""
    forms = (str(entry), entry.path, entry.unit.value, entry.name)
    return not only or any(fnmatchcase(form, pattern) for form in forms for pattern in only)


def _fitting(index: Index, entries: Sequence[Entry], selection: Selection) -> tuple[list[Entry], list[SkippedEntry]]:
    if selection.force:
        return list(entries), []
    hosts = host.gpu_targets() if selection.targets is None else selection.targets
    targets = sorted({entry.target for entry in entries if entry.target})
    if hosts and targets and not any(target.fits(other) for target in targets for other in hosts):
        raise IncompatibleTargetError(tuple(map(str, targets)), tuple(map(str, hosts)))
    known = host.recorded_isa(index.facts)
    fitting, skipped = [], []
    for entry in entries:
        if entry.unit is Unit.HOST_BINARY:
            reason = host.runs_here(entry.needs, known)
        else:
            reason = host.imported_by(entry.needs, selection.python)
        if entry.target and hosts and not any(entry.target.fits(other) for other in hosts):
            reason = f"it is for {entry.target}, and the GPU here is {', '.join(map(str, hosts))}"
        if reason:
            skipped.append(SkippedEntry(str(entry), reason))
        else:
            fitting.append(entry)
    return fitting, skipped


def _refuse_strangers(index: Index, entries: Sequence[Entry]) -> None:
    """No packer puts anything but byte code into a root of it, which may lie in a directory of the user's own."""
    kinds = {root.name: KINDS[root.kind] for root in index.roots if root.kind in KINDS}
    for entry in entries:
        kind = kinds.get(entry.root)
        if kind and kind.filled and (entry.unit is not Unit.FILE or not takes_file(kind, entry.path)):
            raise UnsafePathError(str(entry), f"nothing of this name belongs into a root of kind {kind.name}")


def _on_devices(entry: Entry, directory: str, devices: Sequence[tuple[int, int]]) -> list[Entry]:
    """Return the entry under each device that it is mapped to; itself when it is mapped to none."""
    parts = entry.path.split("/")
    if not directory or len(parts) < 3 or parts[0] != directory:
        return [entry]
    there = [str(here) for source, here in devices if str(source) == parts[1]]
    return [entry._replace(path="/".join([directory, device, *parts[2:]])) for device in there] or [entry]


def _refuse_collisions(entries: Sequence[Entry]) -> None:
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if entry.identity in seen:
            raise UsageError(f"the device map sends two entries to {entry}: map their devices apart")
        seen.add(entry.identity)


def repair(blob: Blob, root: RootLike, *, options: EmitOptions = _DEFAULT) -> UnpackReport:
    """Replace the entries of an installed root that are damaged with those of a bundle; nothing is added.

    Args:
        blob: See ``unpack``.
        root: ``KIND=PATH`` or ``NAME:KIND=PATH``.
        options: See ``EmitOptions``; ``repair_only`` is set.

    Raises:
        UsageError: The bundle has no such root.
        FormatError, DigestMismatchError, UnsafePathError, RelocationError, LocalIOError: See ``emit``.
    """
    started = time.monotonic()
    with opened(blob) as reader:
        records = reader.index.roots
        found = resolve([root])
        names = sorted(f"{record.name}:{record.kind}" for record in records)
        of_kind = [record for record in records if record.kind == found[0].kind.name]
        wanted = [record for record in of_kind if record.name == found[0].name] or of_kind
        if len(wanted) != 1:
            raise UsageError(
                f"root {found[0].name!r} of kind {found[0].kind.name} fits none of the bundle's roots, which are "
                f"{', '.join(names)}: name one of them, as in NAME:KIND=PATH"
            )
        places = {wanted[0].name: replace(found[0], name=wanted[0].name)}
        entries = [entry for entry in reader.index.entries if entry.root == wanted[0].name]
        report = emit(reader, entries, places, replace(options, repair_only=True))
    return _unpack_report(report, (), places, started)
