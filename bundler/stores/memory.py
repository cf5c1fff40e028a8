"""Objects in a dictionary: for tests, and for trying things out. Source of truth for what a store does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

from bundler.stores._base import Body, Mode, ObjectInfo, PreconditionError, Store, Version
from bundler.stores._retry import Retry

__all__ = ["MemoryStore"]

_NAMED: dict[str, MemoryStore] = {}
_NAMED_LOCK = threading.Lock()


class MemoryStore(Store):
    """A store that ends with the process. Safe from many threads."""

    def __init__(self, url: str = "memory://", *, retry: Retry | None = None) -> None:
        super().__init__(url, retry=retry)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}

    @classmethod
    def named(cls, url: str, *, retry: Retry | None = None) -> MemoryStore:
        """Return the one store of this process that has this URL."""
        with _NAMED_LOCK:
            return _NAMED.setdefault(url, cls(url, retry=retry))

    def touch(self, key: str) -> None:
        """Note that an object was used."""
        with self._lock:
            if key in self._objects:
                data, info = self._objects[key]
                used = ObjectInfo(key, info.size, info.version, info.modified, time.time())
                self._objects[key] = (data, used)

    def _get_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        data, info = self._found(key)
        return data[start : start + size], info

    def _put(self, key: str, body: Body, mode: Mode) -> Version:
        data = b"".join(body.chunks())
        with self._lock:
            there = self._objects.get(key)
            if mode == "create" and there is not None:
                raise PreconditionError(key)
            if isinstance(mode, Version) and (there is None or there[1].version != mode):
                raise PreconditionError(key)
            version = Version(str(next(self._numbers)))
            self._objects[key] = (data, ObjectInfo(key, len(data), version, time.time()))
        return version

    def _head(self, key: str) -> ObjectInfo:
        return self._found(key)[1]

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._lock:
            return iter([info for _, info in self._objects.values()])

    def _delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def _found(self, key: str) -> tuple[bytes, ObjectInfo]:
        with self._lock:
            if key not in self._objects:
                raise FileNotFoundError(key)
            return self._objects[key]
