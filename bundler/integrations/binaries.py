"""Which host binaries a compile made or found: Triton asks its cache for a launcher stub as it asks for any file.

A file that is named as an extension module of this Python is one. For every other name the calls go on to Triton as
they came, at the price of one comparison.

Source: triton/runtime/build.py, ``compile_module_from_src``: ``get_file(name)``, and ``put(data, name)`` on a miss.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from bundler.host_binaries import suffix
from bundler.integrations.importing import WhenImported

__all__ = ["HostBinaryWatch"]

log = logging.getLogger("bundler")

_MODULE = "triton.runtime.cache"
_CLASS = "FileCacheManager"
_METHODS = {"get_file": ("self", "filename"), "put": ("self", "data", "filename", "binary")}  # Triton 3.0 to 3.9


class HostBinaryWatch:
    """Joins the two methods of Triton's cache that return the path of a file; another Triton is left as it is.

    Args:
        tell: Called with the path that Triton's cache gave, absolute or relative, in the thread that asked for it. What
            it raises is logged, and goes no further.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._suffix = ""
        self._waiting = WhenImported(_MODULE, self._join)
        self._joined: list[tuple[Any, str, Any, Any]] = []  # class, name, Triton's method, ours

    def start(self) -> None:
        """Join them now, when they are there, else as soon as they are."""
        self._waiting.watch()

    def stop(self) -> None:
        """Put back what is still ours; what somebody wrapped again stays, and only passes on from here."""
        self._waiting.forget()
        self._suffix = ""
        while self._joined:
            cls, name, original, ours = self._joined.pop()
            if cls.__dict__.get(name) is ours:
                setattr(cls, name, original)

    def _join(self, module: Any) -> None:
        try:
            cls = getattr(module, _CLASS)
            methods = {name: cls.__dict__[name] for name in _METHODS}
            for name, method in methods.items():
                if tuple(inspect.signature(method).parameters) != _METHODS[name]:
                    log.debug("host binaries are left to Triton: %s.%s takes other parameters", _CLASS, name)
                    return
            self._suffix = suffix()
            for name, method in methods.items():
                ours = self._wrapped(method)
                setattr(cls, name, ours)
                self._joined.append((cls, name, method, ours))
        except Exception as error:  # noqa: BLE001  it would look as if the import of Triton's module had failed
            log.debug("host binaries are left to Triton: %s: %s", type(error).__name__, error)

    def _wrapped(self, method: Any) -> Any:
        @functools.wraps(method)
        def wrapper(*given: Any, **named: Any) -> Any:
            path = method(*given, **named)
            if self._suffix and path is not None:
                self._look(path)
            return path

        return wrapper

    def _look(self, path: Any) -> None:
        try:
            if path.endswith(self._suffix):
                self._tell(path)
        except Exception as error:  # noqa: BLE001  a compile waits for us
            log.debug("a host binary is left to Triton: %s: %s", type(error).__name__, error)
