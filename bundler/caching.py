"""The verbs of a CI job: ``restore`` before it, ``save`` after it, against a store.

A saved bundle grows: what is stored already stays, what the job made is added. It is replaced on the condition that
nobody replaced it meanwhile, else all is done again with what they stored; so of any number of savers none is lost,
and no entry is mixed of two. What is stored damaged is a miss for ``restore``, and replaced by ``save``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bundler.bundle import Selection, UnpackReport, select, unpack
from bundler.digest import Digest
from bundler.emit import EmitOptions
from bundler.errors import (
    BundlerError,
    DigestMismatchError,
    FormatError,
    IncompatibleTargetError,
    LocalIOError,
    NothingToPackError,
    ObjectExistsError,
    ObjectNotFoundError,
    RelocationError,
    StoreError,
    UnsafePathError,
    UnsupportedVersionError,
    UsageError,
)
from bundler.formats import Reader
from bundler.formats.limits import DEFAULT_LEVEL
from bundler.kinds import KINDS
from bundler.model import Entry, Profile, Skipped
from bundler.packing import check_level, pack
from bundler.reading import opened
from bundler.remote import ForeignObjectError, open_remote, opened_store, pull
from bundler.roots import Root, RootLike, environment, match_roots, present_roots, resolve
from bundler.stores import Mode, ReplacedError, Store, check_key
from bundler.stores.local import LocalStore
from bundler.union import Dropped, Kept, Union

__all__ = ["Dropped", "Kept", "RestoreReport", "SaveReport", "restore", "save"]

SAVE_ATTEMPTS = 100
"""How often a save begins again because somebody else saved meanwhile. Each time one of them is done."""

_DAMAGED = (FormatError, DigestMismatchError, RelocationError, UnsafePathError)
_EVERYTHING = Selection()
_DEFAULT = EmitOptions()
_SECOND = 1_000_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What ``restore`` did.

    Attributes:
        store: The store, as messages name it.
        key: The key that was asked for.
        hit: Whether a bundle was restored.
        matched_key: The key of that bundle.
        content_digest: Its content digest.
        bytes_in: Bytes that were read of it.
        seconds_saved: Seconds of compiling that it stands for, as far as its entries say.
        warnings: Why something was not restored.
        seconds: How long it took.
        unpacked: What was written; of a miss, nothing. Its ``env`` points at all roots that were given.
    """

    store: str
    key: str
    hit: bool
    matched_key: str | None
    content_digest: str | None
    bytes_in: int
    seconds_saved: float
    warnings: tuple[str, ...]
    seconds: float
    unpacked: UnpackReport


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What ``save`` did.

    Attributes:
        store: The store, as messages name it.
        key: The key.
        uploaded: Whether a bundle was stored.
        would_upload: Whether one would have been, but for ``readonly``.
        replaced_damaged: Whether what was stored is damaged, and was (or would be) replaced.
        entries: Entries that are stored under the key now.
        added: Entries that were added, or would be.
        upgraded: Stored entries that got the files which a runtime profile had left out.
        content_digest: Of what is stored now; None when nothing is.
        bytes_out: Bytes that were uploaded.
        bytes_stored: Bytes of what is stored now.
        conflicts: Entries that are stored in another build, which stayed.
        dropped: Entries that were left out to fit ``max_size``.
        skipped: What the roots hold and was not saved, and why.
        warnings: What else should be known.
        attempts: How often it was tried: more than once when others saved meanwhile.
        seconds: How long it took.
    """

    store: str
    key: str
    uploaded: bool
    would_upload: bool
    replaced_damaged: bool
    entries: int
    added: int
    upgraded: int
    content_digest: str | None
    bytes_out: int
    bytes_stored: int
    conflicts: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]
    skipped: tuple[Skipped, ...]
    warnings: tuple[str, ...]
    attempts: int
    seconds: float


@contextmanager
def _scratch_directory() -> Iterator[str]:
    """Make a directory for bundles on their way, and remove it."""
    try:
        place = tempfile.TemporaryDirectory(prefix="triton-bundler-", ignore_cleanup_errors=True)
    except OSError as error:
        raise LocalIOError.from_os_error(error, "make a temporary directory", tempfile.gettempdir()) from error
    with place as path:
        yield path


# -- restore -----------------------------------------------------------------------------------------------------------


def restore(
    store: Store | str,
    key: str,
    roots: Iterable[RootLike] = (),
    *,
    restore_keys: Sequence[str] = (),
    selection: Selection = _EVERYTHING,
    options: EmitOptions = _DEFAULT,
    environ: Mapping[str, str] | None = None,
) -> RestoreReport:
    """Restore the bundle of a key, or the newest of the first prefix that has one.

    A bundle that is damaged, or that is for another GPU, is passed over with a warning. Nothing of it is written.

    Args:
        store: A store, or its URL.
        key: Which bundle.
        roots: ``KIND=PATH`` or ``NAME:KIND=PATH``: what is restored, and where to; without any, all that the bundle has
            goes where this host keeps it.
        restore_keys: Beginnings of keys to fall back on, in this order.
        selection: Which entries.
        options: How; see ``EmitOptions``.
        environ: Environment variables that say where this host keeps each kind; the process's own by default.

    Raises:
        UsageError: A root or a prefix is wrong.
        StoreError: The store cannot be read, a key is refused, or the object under ``key`` is no bundle.
        EntryExistsError, LocalIOError: See ``unpack``.
    """
    started = time.monotonic()
    source = opened_store(store)
    check_key(source.url, key)
    if not all(restore_keys):
        raise UsageError("a prefix to fall back on is empty, which would take any bundle at all: leave it out")
    search = _Search(source, resolve(roots), selection, options, environ)
    found = search.run(key, restore_keys)
    return replace(found, seconds=round(time.monotonic() - started, 6))


class _Search:
    """One restore: candidates are tried until one fits."""

    def __init__(
        self,
        store: Store,
        roots: Sequence[Root],
        selection: Selection,
        options: EmitOptions,
        environ: Mapping[str, str] | None,
    ) -> None:
        self._store = store
        self._given = roots
        self._selection = selection
        self._options = options
        self._environ = environ
        self._warnings: list[str] = []

    def run(self, key: str, prefixes: Sequence[str]) -> RestoreReport:
        tried = set()
        for candidate in self._candidates(key, prefixes):
            if candidate in tried:
                continue
            tried.add(candidate)
            try:
                report = self._attempt(key, candidate)
            except ForeignObjectError as error:
                if candidate == key:
                    raise
                self._warn(candidate, error)
                continue
            except (*_DAMAGED, IncompatibleTargetError) as error:
                self._warn(candidate, error)
                continue
            if report is not None:
                return report
        if isinstance(self._store, LocalStore) and not os.path.isdir(self._store.root):
            self._warnings.append(f"{self._store.root} is not there (yet): the first save makes it; or is it a slip?")
        return self._report(key, _nothing(self._environment()))

    def _candidates(self, key: str, prefixes: Sequence[str]) -> Iterator[str]:
        """Yield the key, then what each prefix has, newest first; nothing is listed before it is needed."""
        yield key
        for prefix in prefixes:
            for info in sorted(self._store.list(prefix), key=lambda info: (-info.modified, info.key)):
                yield info.key

    def _attempt(self, key: str, candidate: str) -> RestoreReport | None:
        reader = open_remote(self._store, candidate)
        if reader is None:
            return None
        unknown = sorted({root.kind for root in reader.index.roots} - KINDS.keys())
        if unknown:
            self._warnings.append(
                f"{candidate}: it has roots of kind {', '.join(unknown)}, which a newer triton-bundler made: "
                "update this one; it was not restored"
            )
            return None
        if reader.index.base is not None:
            needed = Digest(reader.index.base.digest)
            self._warnings.append(f"{candidate}: it is a delta, and needs the bundle {needed}; it was not restored")
            return None
        select(reader, self._selection)  # the index tells a bundle for another GPU, before all of it is read
        with _scratch_directory() as place:
            path = os.path.join(place, "stored.tbundle")
            try:
                pulled = pull(self._store, candidate, path)
            except ObjectNotFoundError:
                return None
            unpacked, milliseconds = self._unpack(path, candidate)
        if unpacked is None:
            return None
        found = self._report(key, replace(unpacked, env={**self._environment(), **unpacked.env}))
        return replace(
            found,
            hit=True,
            matched_key=candidate,
            content_digest=pulled.content_digest,
            bytes_in=pulled.bytes_in,
            seconds_saved=milliseconds / 1000,
        )

    def _unpack(self, path: str, candidate: str) -> tuple[UnpackReport | None, int]:
        with opened(path) as reader:
            records, facts = reader.index.roots, reader.index.facts
        selection, places = self._selection, {}
        if self._given:
            places = match_roots(records, self._given)
            if not places:
                self._refuse_unclear()
                has, asked = (", ".join(root.name for root in roots) for roots in (records, self._given))
                self._warnings.append(f"{candidate}: it has the roots {has}, and none of {asked}; it was not restored")
                return None, 0
            left_out = sorted({record.name for record in records} - places.keys())
            if left_out:
                self._warnings.append(f"{candidate}: its roots {', '.join(left_out)} are not among those to restore")
            selection = replace(selection, roots=tuple(places))
        unpacked = unpack(
            path, list(places.values()), selection=selection, options=self._options, environ=self._environ
        )
        milliseconds = facts.get("compile_milliseconds", 0)
        return unpacked, milliseconds if isinstance(milliseconds, int) else 0

    def _refuse_unclear(self) -> None:
        for root in self._given:
            if root.bare and root.kind.name == "generic":
                raise UsageError(f"what {root.path} is for cannot be told before anything lies in it: write KIND=PATH")

    def _environment(self) -> dict[str, str]:
        return environment({root.name: root for root in self._given})

    def _warn(self, candidate: str, error: BundlerError) -> None:
        self._warnings.append(f"{candidate} was not restored: {error}")

    def _report(self, key: str, unpacked: UnpackReport) -> RestoreReport:
        warnings = (*self._warnings, *unpacked.warnings)
        return RestoreReport(self._store.url, key, False, None, None, 0, 0.0, warnings, 0.0, unpacked)


def _nothing(env: dict[str, str]) -> UnpackReport:
    return UnpackReport(0, 0, 0, 0, 0, 0, (), (), (), (), 0, 0, 0.0, env, {})


# -- save --------------------------------------------------------------------------------------------------------------


def save(
    store: Store | str,
    key: str,
    roots: Iterable[RootLike] = (),
    *,
    max_size: int | None = None,
    readonly: bool = False,
    level: int = DEFAULT_LEVEL,
    profile: Profile | str = Profile.FULL,
    winners_only: bool = False,
    exclude: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda size: None,
) -> SaveReport:
    """Add what lies in roots of this host to the bundle of a key.

    What is stored stays; where this host has another build of a stored entry, the stored one stays, too. When there is
    nothing new, nothing is uploaded.

    Args:
        store: A store, or its URL.
        key: Which bundle.
        roots: As for ``pack``; without any, those that this host has in the usual places. One that is not there is
            passed over with a warning.
        max_size: Bytes that the bundle may have; whole entries are left out, the least recently used first.
        readonly: Only say what would be done.
        level: zstd level, 1 to 22.
        profile: ``full``, or ``runtime`` for what a launch reads.
        winners_only: Leave out kernels that autotuning did not choose.
        exclude: Glob patterns on ``path`` or ``name/path``.
        environ: Environment variables that say where this host keeps each kind; the process's own by default.
        progress: Told the bytes of contents as they are packed.

    Raises:
        UsageError: A root or an option is wrong, or no entry fits into ``max_size``.
        StoreError: The store cannot be read or written, the key is refused, or the object under it is no bundle.
        UnsupportedVersionError: What is stored was written by a newer version; it was left alone.
        LocalIOError: A root cannot be read, or there is no room for temporary files.
    """
    started = time.monotonic()
    target = opened_store(store)
    check_key(target.url, key)
    check_level(level)
    if max_size is not None and max_size < 0:
        raise UsageError(f"a maximal size of {max_size} bytes is negative: give 0 or more")
    with _scratch_directory() as place:
        local = _Local(os.path.join(place, "local.tbundle"))
        found = local.find(roots, environ)
        if max_size is not None:
            local.note_times(found)  # packing reads the files, which is no use of them
        options = {"level": level, "profile": profile, "winners_only": winners_only, "exclude": exclude}
        local.pack(found, {**options, "progress": progress})
        report = _Save(target, key, local, place, max_size, readonly, level).run()
    return replace(report, seconds=round(time.monotonic() - started, 6))


@dataclass(slots=True)
class _Local:
    """What this host has: a bundle at ``path`` (unless ``empty``), and when its files were read and written (ns)."""

    path: str
    empty: bool = True
    skipped: tuple[Skipped, ...] = ()
    warnings: list[str] = field(default_factory=list)
    times: dict[str, tuple[int, int]] = field(default_factory=dict)

    def find(self, roots: Iterable[RootLike], environ: Mapping[str, str] | None) -> list[Root]:
        given = resolve(roots)
        found = [root for root in given if os.path.lexists(root.path)]
        for root in given:
            if root not in found:
                self.warnings.append(f"{root.path} is not there: nothing of it was saved")
        if not given:
            found = present_roots(environ)
            if not found:
                self.warnings.append("no cache lies in any of the usual places: nothing was saved; name a ROOT")
        return found

    def note_times(self, roots: Sequence[Root]) -> None:
        for root in roots:
            for directory, _, names in os.walk(root.path):
                inside = os.path.relpath(directory, root.path).replace(os.sep, "/")
                for name in names:
                    try:
                        status = os.lstat(os.path.join(directory, name))
                    except OSError:  # gone: packing will say so
                        continue
                    path = name if inside == "." else f"{inside}/{name}"
                    self.times[f"{root.name}/{path}"] = (status.st_atime_ns, status.st_mtime_ns)

    def pack(self, roots: Sequence[Root], options: dict[str, Any]) -> None:
        if not roots:
            return
        try:
            self.skipped = pack(roots, self.path, **options).skipped
            self.empty = False
        except NothingToPackError as error:
            self.warnings.append(f"nothing to save in {error.entry}: {error.missing}")

    def last_used(self, entry: Entry, recorded: int | None) -> int:
        """Return when an entry was last used, in seconds; ``recorded`` is what the store says of it, None if new."""
        below = f"{entry.root}/{entry.directory}/" if entry.directory else f"{entry.root}/"
        times = [self.times[below + a.name] for a in entry.artifacts if below + a.name in self.times]
        read = [accessed for accessed, modified in times if accessed > modified]
        if not read and recorded is not None:
            return recorded  # it was restored, and nobody looked at it
        return max(read or [modified for _, modified in times] or [0]) // _SECOND


@dataclass(slots=True)
class _Stored:
    """What the store has: a bundle at ``path``, or nothing to go by; and what to replace."""

    path: str | None
    mode: Mode
    damage: str = ""


class _Save:
    """One save, over its attempts."""

    def __init__(
        self,
        store: Store,
        key: str,
        local: _Local,
        place: str,
        max_size: int | None,
        readonly: bool,
        level: int,
    ) -> None:
        self._store = store
        self._key = key
        self._local = local
        self._place = place
        self._max_size = max_size
        self._readonly = readonly
        self._level = level

    def run(self) -> SaveReport:
        for failures in range(SAVE_ATTEMPTS):
            try:
                report = self._attempt(self._fetch())
            except (ObjectExistsError, ObjectNotFoundError, ReplacedError):
                # Somebody saved or removed it since we looked, or while it was read: again, with what is there now.
                self._store.retry.sleep(self._store.retry.pause(min(failures, 3)))
                continue
            return replace(report, attempts=failures + 1)
        raise StoreError(
            self._store.url, self._key, f"it was replaced by others {SAVE_ATTEMPTS} times while this was saving"
        )

    def _attempt(self, stored: _Stored) -> SaveReport:
        with ExitStack() as stack:
            before = stack.enter_context(opened(stored.path)) if stored.path else None
            mine = None if self._local.empty else stack.enter_context(opened(self._local.path))
            report = self._report(stored, before)
            if before is None and mine is None:
                return report
            union = Union(before, mine, self._local.last_used if self._max_size is not None else None)
            report = replace(report, conflicts=tuple(union.conflicts))
            fits = self._max_size is None or (before is not None and before.bundle_size <= self._max_size)
            if before is not None and fits and not union.is_new:
                return report
            path = os.path.join(self._place, "union.tbundle")
            digest = union.write(path, level=self._level, max_size=self._max_size)
            size = os.path.getsize(path)
            report = replace(report, added=len(union.added), upgraded=len(union.upgraded), dropped=tuple(union.dropped))
            if before is not None and digest == str(before.content_digest):
                return report
            report = replace(report, would_upload=True, replaced_damaged=bool(stored.damage))
            if self._readonly:
                return report
            self._store.put(self._key, path, mode=stored.mode)
            return replace(
                report,
                uploaded=True,
                entries=len(union.entries),
                content_digest=digest,
                bytes_out=size,
                bytes_stored=size,
            )

    def _fetch(self) -> _Stored:
        info = self._store.head(self._key)
        if info is None:
            return _Stored(None, "create")
        path = os.path.join(self._place, "stored.tbundle")
        try:
            pull(self._store, self._key, path)
            self._refuse_delta(path)
        except UnsupportedVersionError:
            raise  # it is somebody's, and not damaged
        except _DAMAGED as error:
            return _Stored(None, info.version, str(error))
        return _Stored(path, info.version)

    def _refuse_delta(self, path: str) -> None:
        """Leave alone what only makes sense together with another bundle: no union can be made of it."""
        with opened(path, alone=True) as reader:
            if reader.index.base is not None:
                reason = f"the object is a delta of the bundle {Digest(reader.index.base.digest)}; it was left alone"
                raise ForeignObjectError(self._store.url, self._key, reason)

    def _report(self, stored: _Stored, before: Reader | None) -> SaveReport:
        """Return the report of a save that does nothing."""
        warnings = list(self._local.warnings)
        if stored.damage:
            then = "there is nothing to replace it with" if self._local.empty else "it is replaced"
            then = "it would be replaced" if self._readonly and not self._local.empty else then
            warnings.append(f"the stored bundle is damaged, and {then}: {stored.damage}")
        return SaveReport(
            store=self._store.url,
            key=self._key,
            uploaded=False,
            would_upload=False,
            replaced_damaged=False,
            entries=len(before.index.entries) if before else 0,
            added=0,
            upgraded=0,
            content_digest=str(before.content_digest) if before else None,
            bytes_out=0,
            bytes_stored=before.bundle_size if before else 0,
            conflicts=(),
            dropped=(),
            skipped=self._local.skipped,
            warnings=tuple(warnings),
            attempts=1,
            seconds=0.0,
        )
