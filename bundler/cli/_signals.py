"""Signals that end a process, as exceptions: whatever is staged is then removed on the way out."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StoppedError", "stoppable"]

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
_GRACE = 10.0  # seconds in which a second signal does not disturb the clean-up that the first one began


class StoppedError(BaseException):
    """The process was told to end. Not an ``Exception``: nothing that goes on after errors goes on after this."""

    def __init__(self, number: int, name: str) -> None:
        super().__init__(number, name)
        self.number = number
        self.name = name

    def __str__(self) -> str:
        return f"stopped by {self.name}; what was half written is removed, what is done stays: run it again to go on"


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise ``StoppedError`` in the main thread on SIGINT, SIGTERM and SIGHUP; the old handlers come back at the end.

    A signal that is ignored stays ignored (``nohup``). Outside of the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first = -_GRACE

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if now - first >= _GRACE:
            first = now
            raise StoppedError(number, signal.Signals(number).name)

    before = {}
    try:
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            # None: a handler that Python did not install, and could not put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
