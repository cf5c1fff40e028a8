"""A call in a thread of its own, for what runs without the interpreter lock: zstd, and SHA-256 of more than 2 KiB.

Not ``concurrent.futures``, which brings in logging and queues, and whose threads a process waits for when it ends: when
a signal ends a pack, a large block at a high level would take a minute more.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, Generic, TypeVar

__all__ = ["Task"]

T = TypeVar("T")


class Task(Generic[T]):
    """A call that is under way.

    Args:
        function: What is called, in another thread, at once.
        arguments: What with.
    """

    def __init__(self, function: Callable[..., T], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="bundler", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads are allowed, or the interpreter is ending
            self._run()

    def _run(self) -> None:
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:  # noqa: BLE001 (raised where the result is asked for)
            self._error = error
        finally:
            self._arguments = ()  # a block is no longer held when its frame is there

    def result(self) -> T:
        """Wait for the call to end; return what it returned, or raise what it raised."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
