"""How long kernels took to compile: real times, so that "seconds saved" is no guess.

Two sources. Triton tells a listener of this process, stage by stage, and whether its cache had the kernel. Inductor's
compile workers are other processes; of those, torch notes the time of each job when its result arrives, right after the
kernels of that job were put. That time includes making the kernel's module, and is noted for a hit of Triton's cache
too. What neither tells counts as nothing.
"""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["CompileClock"]

_KNOBS = "triton.knobs"
_ASYNC = "torch._inductor.async_compile"
_NOTE = "_add_triton_kernel_info"  # (kernel name, {"compile_time_us": ...}), in torch 2.8 to 2.15
_MAX_UNCLAIMED = 10_000  # times of kernels that no bundler asked for


def path_key(kernel_hash: str) -> str:
    """Return the directory name for a kernel hash of 64 hex digits."""
    return base64.b32encode(bytes.fromhex(kernel_hash)).decode().rstrip("=")


class CompileClock:
    """Knows the compile seconds of kernels, by path key. Both seams are optional: without them it knows nothing.

    Args:
        late: Told (path key, device, seconds) for a kernel whose time is known only after it was put.
    """

    def __init__(self, late: Callable[[str, int, float], None]) -> None:
        self._late = late
        self._seconds: dict[str, float] = {}
        self._put = threading.local()  # kernels put by this thread since a worker's time was last noted
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Listen, where Triton and Inductor are imported by now; called again, it looks after what was not."""
        self._listen(sys.modules.get(_KNOBS))
        self._watch_workers(sys.modules.get(_ASYNC))

    def stop(self) -> None:
        """Take everything back that is still ours."""
        while self._undo:
            self._undo.pop()()

    def put(self, key: str, device: int) -> float:
        """Return the seconds that the kernel took in this process; 0 when they are not known (yet)."""
        seconds = self._seconds.pop(key, 0.0)
        if not hasattr(self._put, "kernels"):
            self._put.kernels = []
        self._put.kernels.append((key, device, seconds))
        return seconds

    def forget(self) -> None:
        """A compile begins or ends on this thread: what was put before has nothing to do with what comes."""
        self._put.kernels = []

    def _listen(self, knobs: Any) -> None:
        compilation = getattr(knobs, "compilation", None)
        if compilation is None or not hasattr(compilation, "listener"):
            return
        previous = compilation.listener
        if getattr(previous, "of_bundler", None) is self:
            return

        def listener(**told: Any) -> None:
            if previous is not None:
                previous(**told)
            self._hear(told)

        def undo() -> None:
            if compilation.listener is listener:  # else somebody chained on: then it stays, and tells nobody
                compilation.listener = previous

        listener.of_bundler = self  # type: ignore[attr-defined]
        compilation.listener = listener
        self._undo.append(undo)

    def _hear(self, told: dict[str, Any]) -> None:
        try:
            if not told["cache_hit"] and len(self._seconds) < _MAX_UNCLAIMED:
                self._seconds[path_key(told["metadata"]["hash"])] = told["times"].total / 1e6
        except Exception:  # noqa: BLE001  another Triton may tell other things, and a compile waits for us
            return

    def _watch_workers(self, module: Any) -> None:
        previous = getattr(module, _NOTE, None)
        if previous is None or getattr(previous, "of_bundler", None) is self:
            return

        def note(kernel_name: str, info: Any, *more: Any, **named: Any) -> Any:
            try:
                self._worker_done(info)
            except Exception:  # noqa: BLE001  as above
                pass
            return previous(kernel_name, info, *more, **named)

        def undo() -> None:
            if getattr(module, _NOTE, None) is note:
                setattr(module, _NOTE, previous)

        note.of_bundler = self  # type: ignore[attr-defined]
        setattr(module, _NOTE, note)
        self._undo.append(undo)

    def _worker_done(self, info: Any) -> None:
        kernels, self._put.kernels = getattr(self._put, "kernels", []), []
        microseconds = info.get("compile_time_us", 0)
        if kernels and not any(seconds for _, _, seconds in kernels):  # else this process compiled, and told
            for key, device, _ in kernels:
                self._late(key, device, microseconds / 1e6 / len(kernels))
