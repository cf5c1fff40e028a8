"""What a store is: keys, bytes, versions, and the promises that every kind of store keeps.

An adapter implements ``_get_range``, ``_put``, ``_head``, ``_list`` and ``_delete``, each a single attempt. The public
methods check the key, try again, compare what came with what was asked for, and turn whatever else an adapter raises
into ``StoreError``: nothing but the errors of this package leaves a store, whoever wrote the adapter.

Promises: a reader sees an object whole, as one version of it, or not at all. ``put`` returns when the store has shown
that it holds the bytes. ``put(mode="create")`` and ``put(mode=version)`` succeed for one of several writers.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Literal, TypeAlias, TypeVar

from bundler.errors import BundlerError, ObjectExistsError, ObjectNotFoundError, StoreError
from bundler.stores._body import Body, Source, as_body
from bundler.stores._file import BLOCK_SIZE, RemoteFile
from bundler.stores._keys import check_key, check_prefix
from bundler.stores._retry import DamageError, Retry, TransientError

__all__ = ["Body", "Mode", "ObjectInfo", "PreconditionError", "ReplacedError", "Source", "Store", "Version"]

T = TypeVar("T")

CHUNK_SIZE = 8 << 20
"""Bytes asked for at once by ``download``: what is read again when a connection breaks."""

READ_BACK_SIZE = 1 << 20
"""Bytes read back from each end of a stored object when the store gives no checksum; smaller ones are read whole."""


class ReplacedError(StoreError):
    """The object was replaced while it was read: what was read before is of another version."""

    def __init__(self, store: str, key: str, reason: str = "the object was replaced while it was read") -> None:
        super().__init__(store, key, reason)


@dataclass(frozen=True, slots=True)
class Version:
    """One state of an object, as its store tells it apart: opaque, compared for equality, given back to ``put``.

    Attributes:
        tag: Changes whenever the object does (an e-tag); "" when the store has none.
        generation: What some stores want to see beside the tag; not compared, since listings leave it out.
    """

    tag: str
    generation: str = field(default="", compare=False)


Mode: TypeAlias = "Literal['overwrite', 'create'] | Version"
"""``overwrite``: whatever is there. ``create``: only where nothing is. A version: only in its place."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, without its bytes. ``size`` in bytes; ``modified`` and ``used`` in seconds since the epoch.

    ``used`` is when it was last read, where the store knows, else 0.
    """

    key: str
    size: int
    version: Version
    modified: float
    used: float = 0.0


class PreconditionError(Exception):
    """What ``mode`` asked for is not so. Raised by adapters; never leaves a store."""


class Store(ABC):
    """Objects under keys.

    Args:
        url: What to call the store in messages; without credentials.
        retry: When to try again.
    """

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        self.url = url
        self.retry = retry or Retry()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # -- reading -------------------------------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object; None when there is none."""
        check_key(self.url, key)
        return self._missing_is_none(key, lambda: self._head(key))

    def get(self, key: str) -> bytes | None:
        """Return an object whole; None when there is none.

        Raises:
            StoreError: It cannot be read.
        """
        buffer = io.BytesIO()
        return None if self.download(key, buffer) is None else buffer.getvalue()

    def get_range(self, key: str, start: int, size: int) -> bytes | None:
        """Return up to ``size`` bytes from ``start`` on, fewer only at the object's end; None when there is no object.

        Raises:
            StoreError: It cannot be read.
        """
        check_key(self.url, key)
        if start < 0 or size < 0:
            raise ValueError(f"a range must not be negative: {start}, {size}")
        found = self._missing_is_none(key, lambda: self._whole_range(key, start, size))
        return None if found is None else found[0]

    def open(self, key: str) -> RemoteFile | None:
        """Return an object as a seekable file that is read by ranges; None when there is no object.

        Raises:
            StoreError: It cannot be read.
        """
        check_key(self.url, key)
        found = self._missing_is_none(key, lambda: self._whole_range(key, 0, BLOCK_SIZE))
        return None if found is None else RemoteFile(self, found[1], found[0])

    def read_version(self, info: ObjectInfo, start: int, size: int) -> bytes:
        """Return exactly ``size`` bytes of the object that ``info`` describes.

        Raises:
            ReplacedError: It is another version now, or gone.
            StoreError: It cannot be read.
        """
        try:
            data, now = self._run(info.key, lambda: self._whole_range(info.key, start, size))
        except ObjectNotFoundError as error:
            raise ReplacedError(self.url, info.key, "the object was removed while it was read") from error
        if now.version != info.version or len(data) != size:
            raise ReplacedError(self.url, info.key)
        return data

    def download(
        self, key: str, file: BinaryIO, *, progress: Callable[[int], None] = lambda size: None
    ) -> ObjectInfo | None:
        """Write an object into ``file``, from its present position on.

        A connection that breaks costs one chunk, not all that came before. When the object is replaced meanwhile, the
        new one is read from its start.

        Args:
            key: Which.
            file: Open for writing; seekable.
            progress: Told the bytes of each chunk.

        Returns:
            What was written; None, and nothing written, when there is no object.

        Raises:
            StoreError: It cannot be read; ``file`` may hold a part of it.
        """
        check_key(self.url, key)
        origin = file.tell()

        def attempt() -> ObjectInfo | None:
            file.seek(origin)
            file.truncate()
            info, at = None, 0
            while info is None or at < info.size:
                size = CHUNK_SIZE if info is None else min(CHUNK_SIZE, info.size - at)
                part, now = self._attempts(key, partial(self._whole_range, key, at, size))
                info = info or now
                if now.version != info.version:
                    raise TransientError("the object was replaced while it was read")
                file.write(part)
                at += len(part)
                progress(len(part))
            return info

        info = self._missing_is_none(key, attempt)
        if info is None:
            file.seek(origin)
            file.truncate()
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with ``prefix`` (any beginning, not only a directory), sorted by key.

        Raises:
            StoreError: The store cannot be listed.
        """
        check_prefix(self.url, prefix)
        found = self._run(prefix, lambda: list(self._list(prefix)))
        yield from sorted((info for info in found if info.key.startswith(prefix)), key=lambda info: info.key)

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, key: str, source: Source, *, mode: Mode = "overwrite") -> Version:
        """Store an object: whole, in one step, and proved to be there.

        Args:
            key: Its name.
            source: Bytes, a path, or a seekable binary file (read from its start, and never closed).
            mode: See ``Mode``.

        Returns:
            The version that was stored.

        Raises:
            ObjectExistsError: ``create`` and something is there, or something else than the version is. When the answer
                to an attempt was lost, the same bytes there are taken for our own.
            StoreError: It cannot be stored. What was there before is still there, unless the message says otherwise.
            LocalIOError: ``source`` cannot be read.
        """
        check_key(self.url, key)
        with as_body(source) as body:
            put = _Put(self, key, body, mode)
            return self._run(key, put.attempt)

    def delete(self, key: str) -> None:
        """Remove an object; that there is none is no error.

        Raises:
            StoreError: It cannot be removed.
        """
        check_key(self.url, key)
        self._missing_is_none(key, lambda: self._delete(key))

    def touch(self, key: str) -> None:  # noqa: B027 - a store that cannot tell has nothing to do
        """Note that an object was used, where the store can; never fails."""

    # -- what adapters implement: one attempt each ---------------------------------------------------------------------

    @abstractmethod
    def _get_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        """Return up to ``size`` bytes from ``start`` on, and the object that they are of. Empty past its end.

        Raises:
            FileNotFoundError: No object.
            TransientError: Worth another attempt.
        """

    @abstractmethod
    def _put(self, key: str, body: Body, mode: Mode) -> Version:
        """Store ``body`` in one step.

        Raises:
            PreconditionError: ``mode`` is not met; nothing was stored.
            TransientError: Worth another attempt; it may have been stored all the same.
        """

    @abstractmethod
    def _head(self, key: str) -> ObjectInfo:
        """Return what is known of an object.

        Raises:
            FileNotFoundError: No object.
        """

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield objects in any order: all that begin with ``prefix``, and others if that is easier."""

    @abstractmethod
    def _delete(self, key: str) -> None:
        """Remove an object; FileNotFoundError or nothing when there is none."""

    def _proves(self, version: Version, body: Body) -> bool | None:
        """Whether the version is a checksum of ``body`` that the store made; None when it is none that we know.

        True ends the proof, None has both ends of the object read back, False all of it: it may be a checksum of
        another kind.
        """
        return None

    # -- attempts ------------------------------------------------------------------------------------------------------

    def _run(self, key: str, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` as often as it takes; let only errors of this package out."""
        try:
            return self._attempts(key, attempt)
        except FileNotFoundError as error:
            if isinstance(error, BundlerError):
                raise
            raise ObjectNotFoundError(self.url, key) from error

    def _missing_is_none(self, key: str, attempt: Callable[[], T]) -> T | None:
        try:
            return self._attempts(key, attempt)
        except FileNotFoundError:
            return None

    def _attempts(self, key: str, attempt: Callable[[], T]) -> T:
        try:
            return self.retry.run(attempt)
        except (BundlerError, FileNotFoundError):
            raise
        except TransientError as error:
            raise StoreError(self.url, key, str(error)) from error
        except PreconditionError as error:
            raise ObjectExistsError(self.url, key) from error
        except Exception as error:
            raise StoreError(self.url, key, f"{type(error).__name__}: {error}") from error

    def _whole_range(self, key: str, start: int, size: int) -> tuple[bytes, ObjectInfo]:
        """Ask for a range, and refuse an answer that is shorter than it must be, or longer."""
        if not size:
            return b"", self._head(key)
        data, info = self._get_range(key, start, size)
        expected = max(0, min(size, info.size - start))
        if len(data) != expected:
            raise TransientError(f"{len(data)} bytes came, {expected} were due, of {info.size} in all")
        return data, info


class _Put:
    """One ``put``, over its attempts: what an attempt that failed half-way may have done is found out by the next."""

    def __init__(self, store: Store, key: str, body: Body, mode: Mode) -> None:
        self._store = store
        self._key = key
        self._body = body
        self._mode = mode
        self._unsure = False  # an earlier attempt may have stored the object, though no answer said so
        self._version: Version | None = None  # what was stored, and is not proved yet

    def attempt(self) -> Version:
        if self._version is None:
            self._version = self._send()
        try:
            return self._prove(self._version)
        except DamageError:
            self._version = None
            raise

    def _send(self) -> Version:
        self._body.rewind()
        try:
            return self._store._put(self._key, self._body, self._mode)
        except TransientError:
            self._unsure = True
            raise
        except PreconditionError:
            # The answer to an earlier attempt was lost: then what is there is ours.
            if self._unsure and (stored := self._stored()):
                return stored
            raise

    def _prove(self, version: Version) -> Version:
        store = self._store
        try:
            info = store._head(self._key)
        except FileNotFoundError:
            raise DamageError("the store said that it was stored, and there is no object") from None
        if version.tag and info.version != version:
            return version  # somebody replaced it since; the promise was kept
        if info.size != self._body.size:
            reason = f"the store holds {info.size} bytes, {self._body.size} were sent"
        else:
            proof = store._proves(info.version, self._body)
            if proof or self._same(info, whole=proof is False, replaced=True):
                return info.version
            reason = "the store holds other bytes than were sent"
        if self._mode != "overwrite":
            self._mode = info.version  # what is there now is our own, damaged: that is what to replace
        raise DamageError(reason)

    def _stored(self) -> Version | None:
        """Return the version that is there if it is our own."""
        try:
            info = self._store._head(self._key)
        except FileNotFoundError:
            return None
        same = info.size == self._body.size and self._same(info, whole=True, replaced=False)
        return info.version if same else None

    def _same(self, info: ObjectInfo, *, whole: bool, replaced: bool) -> bool:
        """Read back from both ends, or all, and compare; ``replaced`` is the answer when it is another version now."""
        size = info.size
        if whole or size <= 2 * READ_BACK_SIZE:
            ranges = [(at, min(CHUNK_SIZE, size - at)) for at in range(0, size, CHUNK_SIZE)]
        else:
            ranges = [(0, READ_BACK_SIZE), (size - READ_BACK_SIZE, READ_BACK_SIZE)]
        for start, length in ranges:
            data, now = self._store._whole_range(self._key, start, length)
            if now.version != info.version:
                return replaced
            if data != self._body.read(start, length):
                return False
        return True
