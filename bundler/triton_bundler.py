"""The life cycle of kernels in one compile: ``begin_compile``, ``put``, ``collect``; ``read_and_emit`` on a hit.

This is what runs inside a training process, so it differs from the rest of the library in one point: a bundle that is
missing, damaged, foreign or unwritable is one warning with the reason and a counter, never an exception. Pass
``strict=True`` to see the exceptions.

Threads: one lock guards the open scopes and the counters, and is never held while a file is read or written. A scope
belongs to the thread that began it. A ``put`` from a thread without a scope (a compile worker's callback) goes to every
open scope: a kernel too many costs bytes, a kernel too few costs a compile.

Every order of calls has an outcome:

======================================  ================================================================================
call                                    outcome
======================================  ================================================================================
``begin_compile`` twice                 the first scope is dropped (a compile that failed half way), counted
``put`` without any open scope          ignored, counted
``collect`` twice, or without a scope   None: there is nothing to store
switched off at ``begin_compile``       no scope is opened: every ``put`` until the next begin is ignored
switched off at ``collect``             the scope is dropped, None
switched off at ``read_and_emit``       None, nothing is written
======================================  ================================================================================
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bundler.collect import ChangedError, Collected, Draft, Options, collect_kernels
from bundler.emit import EmitOptions, EmitReport, OnConflict, emit
from bundler.errors import BundlerError, LocalIOError, UsageError
from bundler.formats import Reader
from bundler.kinds import KINDS
from bundler.model import Index, Profile
from bundler.packing import read_profile, write_collected
from bundler.reading import opened
from bundler.ready import is_ready
from bundler.roots import Root
from bundler.winners import drop_losers

__all__ = ["SWITCH", "TritonBundler", "compile_seconds", "is_switched_on", "saved_seconds"]

log = logging.getLogger("bundler")

SWITCH = "TRITON_BUNDLER"
"""Environment variable that switches everything off when it is ``0``."""

_FAST_LEVEL = 1  # zstd level: collect runs inside the compile, and solid blocks compress well at any level


def is_switched_on() -> bool:
    """Whether the environment allows this package to act in a training process."""
    return os.environ.get(SWITCH) != "0"


@dataclass(slots=True)
class _Scope:
    """One compile: kernels in the order of their ``put``, each with the compile time that it stands for.

    ``places`` has the directory that each lay in when it was put: a library may point the cache elsewhere later on.
    """

    kernels: dict[tuple[int, str], float] = field(default_factory=dict)
    places: dict[tuple[int, str], str] = field(default_factory=dict)
    winners: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Counters:
    """Counts since the object was made. Sizes in bytes."""

    kernels_put: int = 0
    put_outside: int = 0
    scopes_abandoned: int = 0
    kernels_collected: int = 0
    kernels_skipped: int = 0
    bytes_collected: int = 0
    collect_seconds: float = 0.0
    collect_failures: int = 0
    kernels_emitted: int = 0
    kernels_unchanged: int = 0
    kernels_repaired: int = 0
    kernels_kept: int = 0
    bytes_emitted: int = 0
    emit_seconds: float = 0.0
    emit_failures: int = 0
    compile_seconds_saved: float = 0.0


class TritonBundler:
    """Collects the kernels of a compile into one blob, and emits them on a cache hit. No torch, no Triton.

    Args:
        cache_dir: The root. A kernel is looked for in ``triton/<device>/KEY``, ``<device>/KEY`` and ``KEY`` below it,
            and goes back to the same place below the root of whoever emits it.
        directories: Given a device, the directory that holds its kernel directories. Each device is then a root of its
            own, named by its ordinal, and ``cache_dir`` is not used; devices may share a directory.
        profile: ``full``, or ``runtime`` for what a launch reads.
        level: zstd level of the blob.
        enabled: Asked at each step whether to act at all.
        strict: Raise ``BundlerError`` in place of a warning.

    Example:
        >>> bundler = TritonBundler("/nonexistent")
        >>> bundler.begin_compile()
        >>> bundler.collect() is None  # nothing was put
        True
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str],
        *,
        directories: Callable[[int], str] | None = None,
        profile: Profile | str = Profile.FULL,
        level: int = _FAST_LEVEL,
        enabled: Callable[[], bool] = is_switched_on,
        strict: bool = False,
    ) -> None:
        self._root = Root("triton", KINDS["triton"], os.path.abspath(os.fspath(cache_dir)))
        self._directories = directories
        self._profile = read_profile(profile)
        self._level = level
        self._enabled = enabled
        self._strict = strict
        self._lock = threading.Lock()
        self._scopes: dict[int, _Scope] = {}  # by thread
        self._counters = _Counters()
        self._warned: set[str] = set()

    def begin_compile(self) -> None:
        """Open the scope of one compile for this thread."""
        if not self._enabled():
            self.end_compile()
            return
        with self._lock:
            self._counters.scopes_abandoned += threading.get_ident() in self._scopes
            self._scopes[threading.get_ident()] = _Scope()

    def end_compile(self) -> None:
        """Close the scope without a blob; no-op without one."""
        with self._lock:
            self._scopes.pop(threading.get_ident(), None)

    def put(self, path_key: str, device: int = 0, *, compile_seconds: float = 0.0) -> None:
        """Remember a kernel that this compile made or used.

        Args:
            path_key: Name of its directory (52 characters of base32), not the kernel hash.
            device: Ordinal on this host.
            compile_seconds: Seconds that its compile took, when they are known.
        """
        place = os.path.abspath(self._directories(device)) if self._directories else ""
        with self._lock:
            scopes = self._scopes_here()
            self._counters.put_outside += not scopes
            self._counters.kernels_put += any((device, path_key) not in scope.kernels for scope in scopes)
            for scope in scopes:
                known = scope.kernels.get((device, path_key), 0.0)
                scope.kernels[device, path_key] = max(known, compile_seconds)
                scope.places.setdefault((device, path_key), place)

    def put_winner(self, path_key: str) -> None:
        """Remember that autotuning chose this kernel among those of its module; the others are then left out."""
        with self._lock:
            for scope in self._scopes_here():
                scope.winners.add(path_key)

    def require(self, path_key: str) -> None:
        """Keep this kernel whatever autotuning chose: something that travels beside the blob names it."""
        with self._lock:
            for scope in self._scopes_here():
                scope.required.add(path_key)

    @property
    def compiling(self) -> bool:
        """Whether this thread has an open scope."""
        with self._lock:
            return threading.get_ident() in self._scopes

    def _scopes_here(self) -> list[_Scope]:
        own = self._scopes.get(threading.get_ident())
        return [own] if own is not None else list(self._scopes.values())

    def collect(self, *, look: Callable[[Index], None] = lambda index: None) -> bytes | None:
        """End the scope and return its kernels as one bundle; None when there is nothing to store.

        A kernel that is not whole is left out, with a warning. Twice in a row gives None the second time.

        Args:
            look: Shown the index of the blob, when there is one.
        """
        with self._lock:
            scope = self._scopes.pop(threading.get_ident(), None)
        if scope is None or not scope.kernels or not self._enabled():
            return None
        started = time.perf_counter()
        blob: bytes | None = None
        kernels = skipped = failure = 0
        try:
            blob, kernels, skipped = self._pack(scope, look)
        except BundlerError as error:
            failure = 1
            self._warn("collect", error)
        with self._lock:
            counters = self._counters
            counters.collect_failures += failure
            counters.kernels_collected += kernels
            counters.kernels_skipped += skipped
            counters.bytes_collected += len(blob or b"")
            counters.collect_seconds += time.perf_counter() - started
        return blob

    def _pack(self, scope: _Scope, look: Callable[[Index], None]) -> tuple[bytes | None, int, int]:
        # Winners are told from losers by what their IR says of its source.
        launch_only = self._profile is Profile.RUNTIME and not scope.winners
        options = Options(profile=self._profile, launch_only=launch_only)
        places = self._sources(scope)
        roots = list({root.name: root for root in places}.values())
        changed: set[tuple[str, str]] = set()
        while True:
            collected = Collected()
            for root, paths in places.items():
                collect_kernels(root, paths, options, collected)
            for skipped in collected.skipped:
                self._warn_once(f"left out of the bundle: {skipped.path}: {skipped.reason}")
            left_out = len(collected.skipped)
            collected.drafts = _without_losers(collected.drafts, scope)
            if not collected.drafts:
                return None, 0, left_out
            saved = sum(scope.kernels.values())
            facts = {"compile_milliseconds": round(saved * 1000)} if saved else {}
            out = io.BytesIO()
            try:
                written = write_collected(out, roots, collected, profile=self._profile, level=self._level, facts=facts)
            except ChangedError as error:
                identity = (error.root, error.path)
                if identity in changed:
                    options = replace(options, banned=options.banned | {identity})
                changed.add(identity)
                continue
            except OSError as error:  # no room for the temporary file
                place = tempfile.tempdir or "temporary file"
                raise LocalIOError.from_os_error(error, "write the blob", place) from error
            look(written.index)
            return out.getvalue(), len(collected.drafts), left_out

    def _sources(self, scope: _Scope) -> dict[Root, list[str]]:
        """Return where to look for the kernels of a scope: roots, and paths inside them."""
        if self._directories is None:
            return {self._root: [self._path(device, key) for device, key in scope.kernels]}
        sources: dict[Root, list[str]] = {}
        for (device, key), place in scope.places.items():
            sources.setdefault(Root(str(device), KINDS["triton"], place), []).append(key)
        return sources

    def _places(self, index: Index) -> dict[str, Root]:
        """Return where the roots of a blob go on this host.

        Raises:
            UsageError: A root is not named by a device, and there is a directory for each device.
        """
        if self._directories is None:
            return {record.name: self._root for record in index.roots}
        places = {}
        for name in (record.name for record in index.roots):
            if not (name.isascii() and name.isdecimal() and len(name) < 4):
                raise UsageError(f"root {name!r} of the bundle is no device: it was not made by this life cycle")
            places[name] = Root(name, KINDS["triton"], os.path.abspath(self._directories(int(name))))
        return places

    def _path(self, device: int, key: str) -> str:
        for path in (f"triton/{device}/{key}", f"{device}/{key}"):
            if os.path.isdir(os.path.join(self._root.path, *path.split("/"))):
                return path
        return key

    def read_and_emit(
        self, blob: bytes | None, *, look: Callable[[Index], None] = lambda index: None
    ) -> EmitReport | None:
        """Make the kernels of a blob appear, each whole or not at all; None when that failed or is switched off.

        Entries that are there and the same cost a comparison; damaged ones are replaced; different ones are kept.
        Nothing is brought to the disk by force: what a crash damages is found and repaired on the next hit.

        Args:
            blob: What ``collect`` returned, here or elsewhere; None, when there was nothing to store, is a miss.
            look: Shown its index, when that can be read.
        """
        if blob is None or not self._enabled():
            return None
        started = time.perf_counter()
        report: EmitReport | None = None
        saved, failure = 0.0, 0
        try:
            with opened(blob) as reader:
                look(reader.index)
                report = _emit(reader, self._places(reader.index))
                saved = compile_seconds(reader.index)
        except BundlerError as error:
            failure = 1
            self._warn("emit", error)
        for warning in report.warnings if report else ():
            self._warn_once(warning)
        if report is not None and report.repaired:
            # Something damages this cache, and without us each of these would have been a miss or a failed load.
            count = f"{report.repaired} kernel{'s' if report.repaired > 1 else ''}"
            self._warn_once(f"{count} in the cache found damaged, and replaced from the bundle: look at the disk")
        with self._lock:
            self._count_emit(report, saved, failure, time.perf_counter() - started)
        return report

    def _count_emit(self, report: EmitReport | None, saved: float, failure: int, seconds: float) -> None:
        counters = self._counters
        counters.emit_failures += failure
        counters.emit_seconds += seconds
        if report is not None:
            counters.kernels_emitted += report.restored
            counters.kernels_unchanged += report.unchanged
            counters.kernels_repaired += report.repaired
            counters.kernels_kept += report.kept
            counters.bytes_emitted += report.bytes_written
            counters.compile_seconds_saved += saved_seconds(saved, report)

    def stats(self) -> dict[str, Any]:
        """Return the counters: kernels, bytes, seconds of collect and emit, compile seconds saved."""
        with self._lock:
            counters = self._counters
            return {name: getattr(counters, name) for name in counters.__slots__}

    def _warn(self, step: str, error: BundlerError) -> None:
        if self._strict:
            raise error
        self._warn_once(f"{step} failed, the kernels are compiled instead: {error}")

    def _warn_once(self, message: str) -> None:
        with self._lock:
            known = message in self._warned
            self._warned.add(message)
        if not known:
            log.warning("%s", message)


def compile_seconds(index: Index) -> float:
    """Return the seconds that the kernels of a blob took to compile, as far as they are known."""
    milliseconds = index.facts.get("compile_milliseconds")
    return milliseconds / 1000 if isinstance(milliseconds, int) else 0.0


def saved_seconds(stood_for: float, report: EmitReport) -> float:
    """Return the seconds of compiling that a restore saved: the share of the kernels that were not there before.

    Args:
        stood_for: Seconds that all kernels of the blob took to compile.
        report: What was done with them.
    """
    written = report.restored + report.repaired
    return stood_for * written / max(1, written + report.unchanged + report.kept)


def _without_losers(drafts: list[Draft], scope: _Scope) -> list[Draft]:
    """Leave out what autotuning did not choose, on purpose and without a warning; what is required stays."""
    _, losers = drop_losers(drafts, scope.winners)
    lost = {skipped.path for skipped in losers}
    return [
        draft
        for draft in drafts
        if f"{draft.root}/{draft.path}" not in lost or draft.path.rpartition("/")[2] in scope.required
    ]


def _emit(reader: Reader, places: dict[str, Root]) -> EmitReport:
    """Emit the entries that are not installed. Where all of them are, equal or equivalent, nothing is staged."""
    index = reader.index
    entries = [entry for entry in index.entries if not is_ready(entry, index.contents, places[entry.root].path)]
    options = EmitOptions(on_conflict=OnConflict.KEEP, sync=False)
    report = EmitReport(restored=len(entries))
    if any(os.path.lexists(os.path.join(places[entry.root].path, entry.path)) for entry in entries):
        report = emit(reader, entries, places, replace(options, dry_run=True))
    if report.restored or report.repaired:
        report = emit(reader, entries, places, options)
    report.unchanged += len(index.entries) - len(entries)
    return report
