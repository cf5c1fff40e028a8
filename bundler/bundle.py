"""The verbs that make bundles and restore them: ``pack``, ``unpack``, ``repair``."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, TypeAlias, TypeVar

from bundler import _atomic, host
from bundler.collect import ChangedError, Collected, Options, collect, shown
from bundler.delta import Delta, reduced
from bundler.emit import Conflict, EmitOptions, EmitReport, emit
from bundler.errors import (
    BundlerError,
    FormatError,
    IncompatibleTargetError,
    LocalIOError,
    NothingToPackError,
    RequirementError,
    SkippedError,
    UnsafePathError,
    UsageError,
)
from bundler.formats import Reader, Written, check_delta, write
from bundler.formats.limits import DEFAULT_LEVEL, MAX_LEVEL
from bundler.kinds import KINDS, takes_file
from bundler.model import BaseRecord, Entry, Index, Profile, RootRecord, Skipped, Target, Unit
from bundler.payload import lay_out
from bundler.reading import Blob, opened
from bundler.roots import Root, environment, place_roots, resolve
from bundler.stage import Damage
from bundler.winners import drop_losers

__all__ = [
    "PackReport",
    "RootLike",
    "Selection",
    "SkippedEntry",
    "UnpackReport",
    "check_level",
    "output",
    "pack",
    "read_profile",
    "repair",
    "unpack",
    "write_collected",
]

T = TypeVar("T")
RootLike: TypeAlias = "str | os.PathLike[str] | Root"

_DEFAULT = EmitOptions()
_MAX_SKIPPED = 1000  # rows in the index; all are in the report


@dataclass(frozen=True, slots=True)
class PackReport:
    """What ``pack`` did. Sizes in bytes; ``bytes_in`` counts the files that were taken, as they lie on disk.

    Of a delta, ``base`` is the content digest of the bundle that it needs, ``in_base`` counts the entries of the tree
    that are there already, and ``lost`` names those that are there and no longer in the tree.
    """

    bundle: str
    content_digest: str
    entries: int
    files: int
    bytes_in: int
    bytes_out: int
    skipped: tuple[Skipped, ...]
    seconds: float
    base: str | None = None
    in_base: int = 0
    lost: tuple[str, ...] = ()


def check_level(level: int) -> None:
    """Refuse what is no zstd level.

    Raises:
        UsageError: Below 1 or above 22.
    """
    if not 1 <= level <= MAX_LEVEL:
        raise UsageError(f"level {level} is out of range: zstd has 1 to {MAX_LEVEL}")


def read_profile(word: Profile | str) -> Profile:
    """Read ``full`` or ``runtime``.

    Raises:
        UsageError: Another word.
    """
    try:
        return Profile(word)
    except ValueError:
        raise UsageError(f"profile {word!r} is unknown: known are {', '.join(Profile)}") from None


def pack(
    roots: Iterable[RootLike],
    out: str | os.PathLike[str] | BinaryIO,
    *,
    profile: Profile | str = Profile.FULL,
    level: int = DEFAULT_LEVEL,
    strict: bool = False,
    winners_only: bool = False,
    exclude: Sequence[str] = (),
    only: Collection[tuple[str, str]] | None = None,
    require: Collection[Unit] = (),
    facts: Mapping[str, Any] | None = None,
    base: Blob | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> PackReport:
    """Pack cache roots into one bundle.

    Args:
        roots: ``PATH``, ``KIND=PATH`` or ``NAME:KIND=PATH`` each.
        out: A path, which is replaced whole or not at all; or a binary file that is written to.
        profile: ``full``, or ``runtime`` for what a launch reads.
        level: zstd level, 1 to 22.
        strict: Refuse when anything is skipped.
        winners_only: Leave out kernels that autotuning did not choose.
        exclude: Glob patterns on ``path`` or ``name/path``.
        only: Identities, (root name, path inside the root), of the entries to take; all of them by default.
        require: Units of which there must be an entry.
        facts: More facts about this host or run, JSON values without floats.
        base: A whole bundle. Only what it has not is then written, as a delta that is restored together with it.
        progress: Told the bytes of contents as they are written.

    Raises:
        UsageError: A root or an option is wrong, or ``base`` is no whole bundle, or is ``out``.
        LocalIOError: A root cannot be read, or ``out`` cannot be written.
        NothingToPackError: No entry in any root.
        RequirementError: No entry of a unit of ``require``.
        SkippedError: Something was skipped, and ``strict``.
        FormatError, DigestMismatchError: A ``mega=FILE`` root is damaged.
    """
    started = time.monotonic()
    check_level(level)
    found = resolve(roots)
    if not found:
        raise UsageError("no root given: name at least one, as PATH, KIND=PATH or NAME:KIND=PATH")
    chosen = None if only is None else frozenset(only)
    options = Options(profile=read_profile(profile), exclude=tuple(exclude), only=chosen)

    def attempt(options: Options, older: Reader | None) -> tuple[Delta, Written, str]:
        collected = _collect(found, options, winners_only=winners_only)
        _require_entries(found, collected, require, strict=strict)
        delta = reduced(collected, older, found, options) if older else Delta(collected)
        with output(out) as (file, name):
            written = write_collected(
                file,
                found,
                delta.collected,
                profile=options.profile,
                level=level,
                facts=_facts(delta.collected, facts or {}),
                base=older,
                lost=delta.lost,
                spool_directory=_spool_directory(out),
                progress=progress,
            )
        return delta, written, name

    with _base(base, out) as older:
        delta, written, name = _retried(lambda options: attempt(options, older), options)
    return PackReport(
        bundle=name,
        content_digest=str(written.content_digest),
        entries=len(written.index.entries),
        files=sum(len(entry.artifacts) for entry in written.index.entries),
        bytes_in=delta.collected.bytes_in,
        bytes_out=written.size,
        skipped=tuple(delta.collected.skipped),
        seconds=round(time.monotonic() - started, 6),
        base=str(older.content_digest) if older else None,
        in_base=delta.same,
        lost=delta.lost,
    )


def _retried(attempt: Callable[[Options], T], options: Options) -> T:
    """Begin again when a file is not what it was a moment ago; the second time without its entry."""
    changed: set[tuple[str, str]] = set()
    while True:
        try:
            return attempt(options)
        except ChangedError as error:
            identity = (error.root, error.path)
            if identity in changed:
                options = replace(options, banned=options.banned | {identity})
            changed.add(identity)


@contextmanager
def _base(base: Blob | None, out: str | os.PathLike[str] | BinaryIO) -> Iterator[Reader | None]:
    """Open the base of a delta, if there is to be one; a delta of a damaged base could never be restored."""
    if base is None:
        yield None
        return
    if isinstance(base, (str, os.PathLike)) and isinstance(out, (str, os.PathLike)) and _is_same(base, out):
        raise UsageError(f"{os.fspath(out)} is the base itself: write the delta beside it, since a restore takes both")
    with opened(base) as reader:
        if not reader.seekable:
            raise UsageError(f"{reader.name} is a pipe, and a base is read more than once: save it to a file")
        reader.check_frames()
        yield reader


def _is_same(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # one of them is not there (yet)
        return False


def _collect(roots: Sequence[Root], options: Options, *, winners_only: bool) -> Collected:
    collected = Collected()
    for root in roots:
        if root.mega:
            from bundler.mega import collect_mega  # with the format of another

            collect_mega(root, options, collected)
        else:
            collect(root, options, collected)
    if winners_only:
        collected.drafts, losers = drop_losers(collected.drafts)
        collected.skipped += losers
        collected.bytes_in = sum(file.disk_size for draft in collected.drafts for file in draft.files)
    return collected


def _require_entries(roots: Sequence[Root], collected: Collected, require: Collection[Unit], *, strict: bool) -> None:
    there = {draft.unit for draft in collected.drafts}
    if not collected.drafts:
        reason = (
            f"no entry is whole ({len(collected.skipped)} skipped)" if collected.skipped else "no cache entry is there"
        )
        raise NothingToPackError(", ".join(root.path for root in roots), reason)
    if not there.issuperset(require):
        missing = sorted(unit.value for unit in set(require) - there)
        raise RequirementError(", ".join(root.path for root in roots), ", ".join(missing))
    if strict and collected.skipped:
        first = collected.skipped[0]
        raise SkippedError(first.path, first.reason, len(collected.skipped))


@contextmanager
def output(out: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[BinaryIO, str]]:
    """Open ``out`` for writing; what is no regular file (a pipe, a device) is written to, not replaced."""
    path = os.fspath(out) if isinstance(out, (str, os.PathLike)) else ""
    name = path or str(getattr(out, "name", "-"))
    try:
        if not isinstance(out, (str, os.PathLike)):
            yield out, name
        elif _is_special(path):
            with open(path, "wb") as file:
                yield file, name
        else:
            with _atomic.replacing(path) as file:
                yield file, name
    except BundlerError:  # some are OSErrors too, and say more than this would
        raise
    except OSError as error:
        raise LocalIOError.from_os_error(error, "write the bundle", name) from error


def _is_special(path: str) -> bool:
    """Whether something lies at ``path`` that is no regular file: a pipe, a device, a directory."""
    return os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode)


def write_collected(
    out: BinaryIO,
    roots: Sequence[Root],
    collected: Collected,
    *,
    profile: Profile,
    level: int,
    facts: Mapping[str, Any],
    base: Reader | None = None,
    lost: tuple[str, ...] = (),
    spool_directory: str | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> Written:
    """Write what was collected as a bundle, or as a delta of ``base``; ``facts`` are recorded as they are.

    Raises:
        ChangedError: A file is not what it was when it was collected; nothing was written to ``out``.
    """
    recorded = _recorded_roots(roots, collected)
    payload = lay_out(collected, recorded, base.index.contents if base else ())

    def annotate(index: Index) -> Index:
        index = payload.annotate(index)
        if base is not None:
            _require_restorable(base, index)
        return index

    index = Index(
        profile=profile,
        roots=tuple(RootRecord(root.name, root.kind.name, shown(root.path)) for root in roots),
        entries=payload.entries,
        contents=(),
        frames=(),
        facts={**({"recorded_roots": recorded} if recorded else {}), **facts},
        skipped=tuple(collected.skipped[:_MAX_SKIPPED]),
        base=BaseRecord(base.content_digest.value, payload.in_base, lost) if base else None,
    )
    return write(
        out,
        index,
        payload.sources,
        level=level,
        spool_directory=spool_directory,
        annotate=annotate,
        progress=progress,
    )


def _require_restorable(base: Reader, index: Index) -> None:
    """Refuse a delta that could be written, and never be restored."""
    try:
        check_delta(base, index, sum(frame.stored_size for frame in index.frames))
    except FormatError as error:
        raise UsageError(
            f"the delta and {base.name} could not be restored together ({error.what}): pack whole"
        ) from error


def _recorded_roots(roots: Sequence[Root], collected: Collected) -> dict[str, str]:
    """Return where each root lay when its files were written: what its kernels name, else where it lies now."""
    recorded = {root.name: shown(root.path) for root in roots if root.path}
    for draft in collected.drafts:
        ending = "/" + draft.path
        if draft.unit is Unit.KERNEL and draft.recorded.endswith(ending):
            recorded[draft.root] = shown(draft.recorded.removesuffix(ending))
    return recorded


def _facts(collected: Collected, more: Mapping[str, Any]) -> dict[str, Any]:
    facts = host.facts()
    if collected.compile_ns:
        facts["compile_milliseconds"] = collected.compile_ns // 1_000_000
    if not any(draft.unit is Unit.HOST_BINARY for draft in collected.drafts):
        facts.pop("cpu_isa", None)  # they say what host binaries may use; without any they say nothing
    return {**facts, **more}


def _spool_directory(out: str | os.PathLike[str] | BinaryIO) -> str | None:
    """Return the directory of the output, where there is room for it; None for a pipe, a device or an open file."""
    if not isinstance(out, (str, os.PathLike)) or _is_special(os.fspath(out)):
        return None  # /dev and /proc, where devices and pipes lie, are no place for a file
    directory = os.path.dirname(os.path.realpath(out))
    return directory if os.access(directory, os.W_OK) else None


# -- unpack ------------------------------------------------------------------------------------------------------------


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
    isa = index.facts.get("cpu_isa")
    known = [str(flag) for flag in isa] if isinstance(isa, list) else []
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
    return [replace(entry, path="/".join([directory, device, *parts[2:]])) for device in there] or [entry]


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
