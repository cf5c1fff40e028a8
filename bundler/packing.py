"""Trees -> one bundle: the verb ``pack``, and the writing of entries wherever they come from."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar

from bundler import _atomic, host
from bundler.collect import ChangedError, Collected, Options, collect, shown
from bundler.delta import Delta, reduced
from bundler.errors import (
    BundlerError,
    FormatError,
    LocalIOError,
    NothingToPackError,
    RequirementError,
    SkippedError,
    UsageError,
)
from bundler.formats import Reader, Written, check_delta, write
from bundler.formats.limits import DEFAULT_LEVEL, MAX_LEVEL
from bundler.model import BaseRecord, Index, Profile, RootRecord, Skipped, Unit
from bundler.payload import lay_out
from bundler.reading import Blob, opened
from bundler.roots import Root, RootLike, resolve
from bundler.winners import drop_losers

__all__ = [
    "BundleReport",
    "PackReport",
    "check_level",
    "output",
    "pack",
    "retried",
    "write_collected",
]

T = TypeVar("T")

_MAX_SKIPPED = 1000  # rows in the index; all are in the report


@dataclass(frozen=True, slots=True)
class BundleReport:
    """What any verb that writes a bundle tells of it. Sizes in bytes; ``seconds`` is how long all of it took."""

    bundle: str
    content_digest: str
    entries: int
    files: int
    bytes_in: int
    bytes_out: int
    skipped: tuple[Skipped, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class PackReport(BundleReport):
    """What ``pack`` did; ``bytes_in`` counts the files that were taken, as they lie on disk.

    Of a delta, ``base`` is the content digest of the bundle that it needs, ``in_base`` counts the entries of the tree
    that are there already, and ``lost`` names those that are there and no longer in the tree.
    """

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
    options = Options(profile=Profile.read(profile), exclude=tuple(exclude), only=chosen)

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
        delta, written, name = retried(lambda options: attempt(options, older), options)
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


def retried(attempt: Callable[[Options], T], options: Options) -> T:
    """Return what ``attempt`` returns; again when a file is not what it was, the second time without its entry."""
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
