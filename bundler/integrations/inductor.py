"""Joins Inductor's ``TritonBundler``: its calls go on to torch, and what it stores and restores goes through ours.

torch's class stays as it is and keeps its state; its methods are wrapped. ``collect`` lets torch collect nothing but
its static autotuners, and puts one blob in the place of the raw files; ``read_and_emit`` restores that blob, and leaves
the autotuners to torch. Scopes, counts and warnings of kernels are in ``bundler.triton_bundler``, which knows no torch.

Nothing of ours raises into a compile: where our part fails, torch's own does the work, or the kernels are compiled.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from bundler.host_binaries import is_helper
from bundler.integrations import seams
from bundler.integrations.binaries import HostBinaryWatch
from bundler.integrations.blob import KernelArtifacts, kernel_artifacts
from bundler.integrations.clock import CompileClock, path_key
from bundler.integrations.importing import WhenImported
from bundler.integrations.ptxas import PtxasChoice
from bundler.switch import ENTRIES, RAW, is_switched_on

if TYPE_CHECKING:
    from bundler.integrations.observe import Summary
    from bundler.model import Index
    from bundler.triton_bundler import TritonBundler

__all__ = ["PROFILE", "disable", "enable", "stats"]

log = logging.getLogger("bundler")

PROFILE = "TRITON_BUNDLER_PROFILE"
"""Environment variable: ``runtime`` (what a launch reads) or ``full``."""

_LOG = "TRITON_BUNDLER_LOG"
_PROFILES = ("runtime", "full")

T = TypeVar("T")


class _Hook:
    """The wrapped methods of torch's class, and what they replaced.

    torch keeps the state of one compile on the class. Here every thread has its own: it is put there for the time of a
    call, under a lock, so that two compiles in two threads do not mix.
    """

    def __init__(self, module: Any, profile: str) -> None:
        self.profile = profile
        self._module = module
        self._torch = module.TritonBundler
        self._bundler: TritonBundler | None = None
        self._clock = CompileClock(self._put_late)
        self._ptxas = PtxasChoice(self._is_on)
        self._binaries = HostBinaryWatch(self._put_host_binary)
        self._helpers: list[str] = []  # asked for once in a process, and maybe before the first compile, or the fork
        self._lock = threading.RLock()
        self._states: dict[int, tuple[Any, ...]] = {}  # by thread
        self._original: dict[str, Any] = {}
        self._ours: dict[str, Any] = {}

    # -- joining -----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Wrap the methods."""
        names = [*seams.REQUIRED, *(name for name in seams.OPTIONAL if hasattr(self._torch, name))]
        for name in names:
            self._original[name] = self._torch.__dict__[name]
            self._ours[name] = self._wrapped(name)
        for name in names:
            setattr(self._torch, name, self._ours[name])
        self._ptxas.start()
        self._binaries.start()

    def _wrapped(self, name: str) -> Any:
        method = getattr(self, name)
        if name == "read_and_emit":
            return staticmethod(lambda bundle, *more, **named: method(bundle, *more, **named))
        return classmethod(lambda cls, *given, **named: method(*given, **named))

    def uninstall(self) -> None:
        """Put back what is still ours; what somebody wrapped again stays, and only passes on from here."""
        for name, original in self._original.items():
            if self._torch.__dict__.get(name) is self._ours[name]:
                setattr(self._torch, name, original)
        self._clock.stop()
        self._ptxas.stop()
        self._binaries.stop()
        self.profile = ""

    def forked(self) -> None:
        """Forget, in the child of a fork, what other threads of the parent held: locks, and compiles under way."""
        self._lock = threading.RLock()
        self._bundler = None  # it has a lock too
        mine = self._states.get(threading.get_ident())
        self._states = {} if mine is None else {threading.get_ident(): mine}
        names = self._state_names()
        for name, value in zip(names, mine or (None,) * len(names)):
            setattr(self._torch, name, value)

    @property
    def bundler(self) -> TritonBundler:
        """Ours, made on first use: a process that compiles nothing loads none of it."""
        with self._lock:
            if self._bundler is None:
                from bundler.triton_bundler import TritonBundler

                self._bundler = TritonBundler(
                    os.curdir,
                    directories=lambda device: str(self._module.triton_cache_dir(device)),
                    profile=self.profile,
                    enabled=self._is_on,
                    triton_cache=self._triton_cache,
                )
                for path in self._helpers:
                    self._bundler.put_host_binary(path)
            return self._bundler

    def _triton_cache(self) -> str | None:
        from bundler.errors import UsageError
        from bundler.kinds import KINDS, locate

        if self._helpers:  # the driver is asked for once in a process
            return None
        with suppress(UsageError):  # no home directory
            return locate(KINDS["triton"])
        return None

    def _is_on(self) -> bool:
        return bool(self.profile) and is_switched_on() and bool(self._torch.is_enabled())

    def counts(self) -> dict[str, Any]:
        """Return what ours has counted."""
        return self._bundler.stats() if self._bundler is not None else {}

    # -- torch's methods ---------------------------------------------------------------------------------------------

    def begin_compile(self, *given: Any, **named: Any) -> Any:
        """Open the scope of a compile, torch's and ours."""
        with self._own_state(begin=True):
            result = self._call("begin_compile", *given, **named)
        self._safely("begin", self._begin)
        return result

    def _begin(self) -> None:
        if self._is_on():
            self._clock.start()
            self._clock.forget()
            self.bundler.begin_compile()

    def end_compile(self, *given: Any, **named: Any) -> Any:
        """Close it."""
        with self._own_state():
            result = self._call("end_compile", *given, **named)
        self._safely("end", self._end)
        return result

    def _end(self) -> None:
        if self._bundler is not None:
            self._bundler.end_compile()
            self._clock.forget()

    def put(self, kernel_hash: str, device: int, *given: Any, **named: Any) -> Any:
        """Note a kernel; ``kernel_hash`` is what this package calls the path key."""
        with self._own_state():
            result = self._call("put", kernel_hash, device, *given, **named)
        if self._bundler is not None and isinstance(device, int):
            bundler = self._bundler
            self._safely(
                "put", lambda: bundler.put(kernel_hash, device, compile_seconds=self._clock.put(kernel_hash, device))
            )
        return result

    def _put_late(self, key: str, device: int, seconds: float) -> None:
        if self._bundler is not None and self._bundler.compiling:
            self._bundler.put(key, device, compile_seconds=seconds)

    def _put_host_binary(self, path: str) -> None:
        if is_helper(path) and path not in self._helpers:
            self._helpers.append(path)
        if self._bundler is not None:
            self._bundler.put_host_binary(path)

    def put_winner(self, kernel_hash: str, *given: Any, **named: Any) -> Any:
        """Note that autotuning chose a kernel."""
        with self._own_state():
            result = self._call("put_winner", kernel_hash, *given, **named)
        if self._bundler is not None:
            bundler = self._bundler
            self._safely("put_winner", lambda: bundler.put_winner(kernel_hash))
        return result

    def put_static_autotuner(self, *given: Any, **named: Any) -> Any:
        """Leave static autotuners to torch."""
        with self._own_state():
            return self._call("put_static_autotuner", *given, **named)

    def collect(self, *given: Any, **named: Any) -> Any:
        """Return torch's bundle, with one blob in the place of the raw files unless those are asked for."""
        with self._own_state():
            entries = self._torch._entries
            made: _Made | None = None
            ours = self._is_on() and os.environ.get(ENTRIES, "").lower() != RAW
            if entries and ours and self._bundler is not None and self._bundler.compiling:
                made = self._safely("collect", self._collect)
            if made is not None:
                self._torch._entries = []  # ours holds them: torch reads no files
            bundle, metadata = self._call("collect", *given, **named)
        self._safely("end", self._end)
        if made is None or made.blob is None:
            return bundle, metadata
        bundle = dataclasses.replace(bundle, kernel_artifacts=kernel_artifacts(made.blob))
        if metadata is not None:
            metadata = dataclasses.replace(metadata, cached_kernel_names=list(made.summary.names))
        return bundle, metadata

    def read_and_emit(self, bundle: Any, *given: Any, **named: Any) -> Any:
        """Restore a bundle, whoever made it."""
        artifacts = bundle.kernel_artifacts
        if not isinstance(artifacts, KernelArtifacts) or not self._is_on():
            return self._call("read_and_emit", bundle, *given, **named)
        summary = self._safely("emit", lambda: self._emit(artifacts.blob))
        rest = dataclasses.replace(bundle, kernel_artifacts=[])
        if summary is None:
            usable = self._safely("emit", lambda: _usable(bundle.static_autotuners))
            rest = dataclasses.replace(rest, static_autotuners=usable or [])
        metadata = self._call("read_and_emit", rest, *given, **named)
        if summary is None or metadata is None:
            return metadata
        return dataclasses.replace(metadata, cached_kernel_names=list(summary.names))

    # -- ours --------------------------------------------------------------------------------------------------------

    def _collect(self) -> _Made:
        from bundler.integrations import observe

        started = time.perf_counter()
        named = _named_binaries(getattr(self._torch, "_static_autotuners", None) or ())
        for _, key in named:
            self.bundler.require(key)
        looked: list[Index] = []
        blob = self.bundler.collect(look=looked.append)
        if blob is None:
            observe.count({"bundler_failures": 1})
            return _Made(None, None)
        summary = observe.summarize(looked[0])
        lost = sorted(named - summary.identities)
        for device, key in lost:
            observe.warn_once(
                f"a launcher stored beside the blob names the binary of {device}/{key}, which is not in the blob: "
                "torch will compile that kernel again"
            )
        seconds = time.perf_counter() - started
        observe.count(
            {
                "bundler_collect": 1,
                "bundler_collect_kernels": len(summary.identities),
                "bundler_collect_host_binaries": summary.host_binaries,
                "bundler_collect_bytes": len(blob),
                "bundler_collect_us": round(seconds * 1e6),
                "bundler_missing_binaries": len(lost),
                "triton_bundler_save_kernel": summary.files,  # torch's own, which counts files
            }
        )
        told = {"kernels": len(summary.identities), "bytes": len(blob), "seconds": round(seconds, 6)}
        told["host_binaries"] = summary.host_binaries
        told["compile_seconds"] = summary.compile_seconds
        observe.trace("bundler_collect", {**told, "profile": self.profile, "names": list(summary.names)})
        log.info("collected %(kernels)d kernels into %(bytes)d bytes in %(seconds).3f s", told)
        return _Made(blob, summary)

    def _emit(self, blob: bytes) -> Summary | None:
        from bundler.integrations import observe

        started = time.perf_counter()
        looked: list[Index] = []
        report = self.bundler.read_and_emit(blob, look=looked.append)
        if report is None:
            observe.count({"bundler_failures": 1})
            return None
        summary = observe.summarize(looked[0])
        seconds = time.perf_counter() - started
        observe.count(
            {
                "bundler_emit": 1,
                "bundler_emit_kernels": report.written,
                "bundler_emit_unchanged": report.unchanged,
                "bundler_emit_host_binaries": report.host_binaries_written,
                "bundler_emit_host_binaries_unusable": report.host_binaries_unusable,
                "bundler_emit_bytes": report.all_bytes_written,
                "bundler_emit_us": round(seconds * 1e6),
                "bundler_saved_us": round(report.seconds_saved * 1e6),
                "triton_bundler_read_and_emit_kernel": report.files_written,  # torch's own, which counts files
            }
        )
        told = {
            "kernels": len(summary.identities),
            "written": report.written,
            "repaired": report.repaired,
            "unchanged": report.unchanged,
            "kept": report.kept,
            "host_binaries": summary.host_binaries,
            "host_binaries_written": report.host_binaries_written,
            "bytes": len(blob),
            "bytes_written": report.all_bytes_written,
            "files_written": report.files_written + report.host_binaries.files_written,
            "seconds": round(seconds, 6),
            "seconds_saved": round(report.seconds_saved, 6),
        }
        observe.trace("bundler_emit", {**told, "names": list(summary.names)})
        log.info("restored %(written)d of %(kernels)d kernels in %(seconds).3f s", told)
        return summary

    # -- mechanics ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        return self._original[name].__get__(None, self._torch)(*given, **named)

    def _state_names(self) -> list[str]:
        return [name for name in seams.STATE if hasattr(self._torch, name)]

    @contextmanager
    def _own_state(self, *, begin: bool = False) -> Iterator[None]:
        """Let torch's class hold the state of this thread's compile; a thread without one sees what is there."""
        names = self._state_names()
        me = threading.get_ident()
        with self._lock:
            mine = self._states.get(me)
            if mine is None and begin and self._states:
                mine = (None,) * len(names)  # what is there belongs to other threads
            for name, value in zip(names, mine or ()):
                setattr(self._torch, name, value)
            try:
                yield
            finally:
                state = tuple(getattr(self._torch, name) for name in names)
                if begin or mine is not None:
                    self._states[me] = state
                if state[0] is None:
                    self._states.pop(me, None)

    def _safely(self, step: str, act: Callable[[], T]) -> T | None:
        try:
            return act()
        except Exception as error:  # noqa: BLE001  whatever is wrong with ours, the user's compile goes on
            try:
                from bundler.integrations import observe

                observe.warn_once(f"{step} failed, torch goes on without: {type(error).__name__}: {error}")
                log.debug("in %s", step, exc_info=True)
                observe.count({"bundler_failures": 1})
            except Exception:  # noqa: BLE001  the log is broken, or torch's counters are
                pass
            return None


@dataclasses.dataclass(frozen=True)
class _Made:
    """What ``collect`` made. Without a blob there was nothing whole to store."""

    blob: bytes | None
    summary: Any


def _named_binaries(autotuners: Any) -> set[tuple[int, str]]:
    """Return (device, path key) of every binary that static autotuners name."""
    named = set()
    for autotuner in autotuners:
        for result in getattr(autotuner.kernel, "compile_results", ()):
            kernel_hash = getattr(getattr(result, "kernel", None), "hash", None)
            if isinstance(kernel_hash, str):
                device = (getattr(result, "compile_meta", None) or {}).get("device") or 0
                named.add((int(device), path_key(kernel_hash)))
    return named


def _usable(autotuners: Any) -> list[Any]:
    """Return the static autotuners whose binaries are installed: of the others torch would say so, one by one."""
    usable = []
    for autotuner in autotuners or ():
        try:
            for result in autotuner.kernel.compile_results:
                result.reload_cubin_path()
        except RuntimeError:
            continue
        usable.append(autotuner)
    return usable


# -- switching on and off ----------------------------------------------------------------------------------------------

_waiting: WhenImported | None = None
_hook: _Hook | None = None
_settings: dict[str, str] = {}


def _after_fork() -> None:
    if _hook is not None:
        _hook.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def enable(*, profile: str | None = None) -> bool:
    """Join Inductor's bundler: now when it is imported, else as soon as it is.

    Args:
        profile: ``runtime``, or ``full`` to store and restore IR and PTX too; by default what the environment variable
            ``TRITON_BUNDLER_PROFILE`` says, else ``runtime``.

    Returns:
        Whether the hook is, or will be, on; False when ``TRITON_BUNDLER`` is ``0`` or torch does not look as expected,
        which is also logged.

    Raises:
        UsageError: No such profile.
    """
    global _waiting
    from bundler.errors import UsageError

    if profile is not None and profile not in _PROFILES:
        raise UsageError(f"profile {profile!r} is unknown: choose {' or '.join(_PROFILES)}")
    if not is_switched_on():
        return False
    if os.environ.get(_LOG):
        from bundler.integrations import observe

        observe.set_up_log(os.environ[_LOG])
    _settings["profile"] = profile or _profile_of_environment()
    _settings.pop("reason", None)
    if _hook is not None:
        disable()
    if _waiting is None:
        _waiting = WhenImported(seams.MODULE, _join)
    _waiting.watch()
    return "reason" not in _settings


def _profile_of_environment() -> str:
    profile = os.environ.get(PROFILE, "").lower() or _PROFILES[0]
    if profile in _PROFILES:
        return profile
    log.warning("%s=%s is unknown, %s is used: choose %s", PROFILE, profile, _PROFILES[0], " or ".join(_PROFILES))
    return _PROFILES[0]


def _join(module: Any) -> None:
    global _hook
    try:
        lacking = seams.missing(module)
        if not lacking:
            hook = _Hook(module, _settings["profile"])
            hook.install()
            _hook = hook
            return
        reason = f"this torch has no {lacking} of {seams.MODULE} as expected"
    except Exception as error:  # noqa: BLE001  it would look as if the import of torch's module had failed
        lacking = f"{type(error).__name__}: {error}"
        reason = f"joining {seams.MODULE} failed with {lacking}"
    _settings["reason"] = f"{seams.MODULE}: {lacking}"
    log.warning("not switched on: %s; torch is left as it is, and needs a newer triton-bundler", reason)


def disable() -> None:
    """Leave Inductor's bundler as torch made it. What is stored stays readable as long as this package is installed."""
    global _hook, _waiting
    if _waiting is not None:
        _waiting.forget()
        _waiting = None
    if _hook is not None:
        _hook.uninstall()
        _hook = None


def stats() -> dict[str, Any]:
    """Return what happened in this process so far: whether the hook is on, and what it counted.

    Keys beside the counters of ``TritonBundler.stats()``: ``joined`` (torch's class is wrapped), ``waiting`` (Inductor
    is not imported yet), ``profile``, ``reason`` (why it could not join, or "").
    """
    return {
        "joined": _hook is not None,
        "waiting": _waiting is not None and _hook is None and "reason" not in _settings,
        "profile": _settings.get("profile", ""),
        "reason": _settings.get("reason", ""),
        **(_hook.counts() if _hook is not None else {}),
    }
