"""The life cycle of kernels in one compile: ``begin_compile``, ``put``, ``collect``; ``read_and_emit`` on a hit.

This is what runs inside a training process, so it differs from the rest of the library in one point: a bundle that is
missing, damaged, foreign or unwritable is one warning with the reason and a counter, never an exception. Pass
``strict=True`` to see the exceptions.

Threads: one lock guards the open scopes and the counters, and is never held while a file is read or written. A scope
belongs to the thread that began it. A ``put`` from a thread without a scope (a compile worker's callback) goes to every
open scope: a kernel too many costs bytes, a kernel too few costs a compile.

Host binaries (see ``bundler.host_binaries``) travel with the kernels that they launch, never alone, and are counted
apart. Kernels come first: whatever keeps a host binary from being restored costs one call of a C compiler. A process
asks once for a helper of Triton's driver, at any time: it travels with every compile.

Every order of calls has an outcome:

======================================  ================================================================================
call                                    outcome
======================================  ================================================================================
``begin_compile`` twice                 the first scope is dropped (a compile that failed half way), counted
``put`` without any open scope          ignored, counted
``put_host_binary`` without a scope     ignored; a helper of the driver is kept for every compile to come
``put_host_binary`` without a ``put``   None from ``collect``: there is nothing that it could launch
``collect`` twice, or without a scope   None: there is nothing to store
switched off at ``begin_compile``       no scope is opened: every ``put`` until the next begin is ignored
switched off at ``collect``             the scope is dropped, None
switched off at ``read_and_emit``       None, nothing is written
======================================  ================================================================================
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bundler.errors import BundlerError, UsageError
from bundler.hit import HitReport, emit_blob
from bundler.host_binaries import is_helper
from bundler.kinds import KINDS
from bundler.model import Index, Profile
from bundler.reading import opened
from bundler.roots import Root
from bundler.switch import is_switched_on

if TYPE_CHECKING:
    from bundler.scope import Scope

__all__ = ["TritonBundler"]

log = logging.getLogger("bundler")

_FAST_LEVEL = 1  # zstd level: collect runs inside the compile, and solid blocks compress well at any level


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
    host_binaries_collected: int = 0
    host_binaries_skipped: int = 0
    host_binaries_emitted: int = 0
    host_binaries_unchanged: int = 0
    host_binaries_repaired: int = 0
    host_binaries_kept: int = 0
    host_binaries_unusable: int = 0
    host_binaries_failed: int = 0


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
        triton_cache: Asked on a hit: where Triton would look for a helper of its driver now, which then appears there
            too. None where Triton has loaded it, or is to be left alone.

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
        triton_cache: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._root = Root("triton", KINDS["triton"], os.path.abspath(os.fspath(cache_dir)))
        self._directories = directories
        self._profile = Profile.read(profile)
        self._level = level
        self._enabled = enabled
        self._strict = strict
        self._triton_cache = triton_cache
        self._lock = threading.Lock()
        self._scopes: dict[int, Scope] = {}  # by thread
        self._counters = _Counters()
        self._warned: set[str] = set()
        self._helpers: dict[str, None] = {}  # of Triton's driver, in this process; in the order of their ``put``

    def begin_compile(self) -> None:
        """Open the scope of one compile for this thread."""
        if not self._enabled():
            self.end_compile()
            return
        from bundler.scope import Scope  # with all that packs, which a start that only hits does not wait for

        with self._lock:
            self._counters.scopes_abandoned += threading.get_ident() in self._scopes
            self._scopes[threading.get_ident()] = Scope()

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

    def put_host_binary(self, path: str | os.PathLike[str]) -> None:
        """Remember a host binary that this compile made, or found.

        Args:
            path: Of the file. One that does not lie beside a kernel of this compile is not collected, unless it is a
                helper of Triton's driver.
        """
        place = os.path.abspath(os.fspath(path))
        with self._lock:
            if is_helper(place):
                self._helpers[place] = None
            for scope in self._scopes_here():
                scope.host_binaries.add(place)

    @property
    def compiling(self) -> bool:
        """Whether this thread has an open scope."""
        with self._lock:
            return threading.get_ident() in self._scopes

    def _scopes_here(self) -> list[Scope]:
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
            if scope is not None:
                scope.helpers = tuple(self._helpers)
        if scope is None or not scope.kernels or not self._enabled():
            return None
        from bundler.scope import Packed, pack

        started = time.perf_counter()
        packed, failure = Packed(), 0
        try:
            packed = pack(
                scope,
                self._sources(scope),
                profile=self._profile,
                level=self._level,
                look=look,
                warn=self._warn_once,
            )
        except BundlerError as error:
            failure = 1
            self._warn("collect", error)
        with self._lock:
            counters = self._counters
            counters.collect_failures += failure
            counters.kernels_collected += packed.kernels
            counters.kernels_skipped += packed.kernels_skipped
            counters.host_binaries_collected += packed.host_binaries
            counters.host_binaries_skipped += packed.host_binaries_skipped
            counters.bytes_collected += len(packed.blob or b"")
            counters.collect_seconds += time.perf_counter() - started
        return packed.blob

    def _sources(self, scope: Scope) -> dict[Root, list[str]]:
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
    ) -> HitReport | None:
        """Make the kernels of a blob appear, each whole or not at all; None when that failed or is switched off.

        So do the host binaries beside them, as far as they run on this host.

        Entries that are there and the same cost a comparison; damaged ones are replaced; different ones are kept.
        Nothing is brought to the disk by force: what a crash damages is found and repaired on the next hit.

        Args:
            blob: What ``collect`` returned, here or elsewhere; None, when there was nothing to store, is a miss.
            look: Shown its index, when that can be read.
        """
        if blob is None or not self._enabled():
            return None
        started = time.perf_counter()
        report: HitReport | None = None
        failed: BundlerError | None = None
        try:
            with opened(blob) as reader:
                look(reader.index)
                report = emit_blob(
                    reader,
                    self._places(reader.index),
                    by_device=self._directories is not None,
                    triton_cache=self._triton_cache(),
                )
        except BundlerError as error:
            failed = error
        with self._lock:
            self._count_emit(report, time.perf_counter() - started)
        if failed is not None:
            self._warn("emit", failed)
        if report is not None:
            self._warn_of_hit(report)
        return report

    def _warn_of_hit(self, report: HitReport) -> None:
        if report.host_binaries_error is not None:
            self._warn("emit", report.host_binaries_error, what="host binaries")
        for part, one, more in ((report, "kernel", "kernels"), (report.host_binaries, "host binary", "host binaries")):
            for warning in part.warnings:
                self._warn_once(warning)
            if part.repaired:
                # Something damages this cache, and without us each of these would have been a miss or a failed load.
                count = f"{part.repaired} {more if part.repaired > 1 else one}"
                self._warn_once(f"{count} in the cache found damaged, and replaced from the bundle: look at the disk")

    def _count_emit(self, report: HitReport | None, seconds: float) -> None:
        counters = self._counters
        counters.emit_failures += report is None
        counters.emit_seconds += seconds
        if report is not None:
            counters.kernels_emitted += report.restored
            counters.kernels_unchanged += report.unchanged
            counters.kernels_repaired += report.repaired
            counters.kernels_kept += report.kept
            counters.host_binaries_emitted += report.host_binaries.restored
            counters.host_binaries_unchanged += report.host_binaries.unchanged
            counters.host_binaries_repaired += report.host_binaries.repaired
            counters.host_binaries_kept += report.host_binaries.kept
            counters.host_binaries_unusable += report.host_binaries_unusable
            counters.host_binaries_failed += report.host_binaries_failed
            counters.bytes_emitted += report.all_bytes_written
            counters.compile_seconds_saved += report.seconds_saved

    def stats(self) -> dict[str, Any]:
        """Return the counters: kernels, host binaries, bytes, seconds of collect and emit, compile seconds saved.

        Host binaries that were ``skipped`` were left out of a blob; those that were ``unusable`` were left out of a
        restore, since they are of no use here; those that ``failed`` were to be written when that failed.
        """
        with self._lock:
            counters = self._counters
            return {name: getattr(counters, name) for name in counters.__slots__}

    def _warn(self, step: str, error: BundlerError, *, what: str = "kernels") -> None:
        if self._strict:
            raise error
        self._warn_once(f"{step} failed, the {what} are compiled instead: {error}")

    def _warn_once(self, message: str) -> None:
        with self._lock:
            known = message in self._warned
            self._warned.add(message)
        if not known:
            log.warning("%s", message)
