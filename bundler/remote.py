"""The verbs that move bundles to and from stores: ``push``, ``pull``, and ``inspect`` of a URL.

What moves: to inspect, the header and the index; to pull, the frames that hold what is wanted. Every frame is compared
with its digest as it comes, and read again when it differs; nothing is visible here before all of it was compared.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

from bundler.bundle import Selection, select
from bundler.collect import Collected
from bundler.digest import Digest
from bundler.errors import (
    DigestMismatchError,
    FormatError,
    LocalIOError,
    NotABundleError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from bundler.formats import HEADER_SIZE, Reader, open_bundle, payload_offset
from bundler.formats.limits import DEFAULT_LEVEL
from bundler.kinds import known_kind
from bundler.listing import inspect
from bundler.merging import drafts_of
from bundler.model import Entry, Frame
from bundler.packing import check_level, output, write_collected
from bundler.reading import Blob, opened, require_digest
from bundler.roots import Root
from bundler.stores import Mode, RemoteFile, ReplacedError, Store, Version, open_store

__all__ = [
    "ForeignObjectError",
    "PullReport",
    "PushReport",
    "inspect_remote",
    "open_remote",
    "opened_store",
    "pull",
    "push",
]

T = TypeVar("T")

ATTEMPTS = 3
"""How often bytes are read that do not fit their digest, before they are taken to be stored that way."""

_CHUNK_SIZE = 8 << 20  # bytes of one request


class ForeignObjectError(StoreError):
    """The object under a key is no bundle; it is left alone."""

    remedy = "choose another key, or remove the object yourself"


@dataclass(frozen=True, slots=True)
class PushReport:
    """What ``push`` did. ``uploaded`` is False when the store held the same bundle already. Sizes in bytes."""

    store: str
    key: str
    uploaded: bool
    content_digest: str
    entries: int
    bytes_out: int
    version: Version
    seconds: float


@dataclass(frozen=True, slots=True)
class PullReport:
    """What ``pull`` did. ``bytes_in`` counts what was read of the object, ``bytes_out`` the bundle written here."""

    store: str
    key: str
    bundle: str
    content_digest: str
    entries: int
    bytes_in: int
    bytes_out: int
    seconds: float


StoreLike = Store | str


def opened_store(store: StoreLike) -> Store:
    """Return a store, opened if it is a URL."""
    return store if isinstance(store, Store) else open_store(store)


# -- reading -----------------------------------------------------------------------------------------------------------


def open_remote(store: StoreLike, key: str) -> Reader | None:
    """Open a bundle in a store for reading: its header and its index are read, frames when they are asked for.

    Returns:
        The reader; None when there is no object under ``key``.

    Raises:
        StoreError: The object cannot be read, or is no bundle.
        FormatError, DigestMismatchError: It is a bundle, and damaged where it is stored.
    """
    found = _open_remote(opened_store(store), key)
    return found and found[0]


def _open_remote(store: Store, key: str) -> tuple[Reader, RemoteFile] | None:
    def attempt() -> tuple[Reader, RemoteFile] | None:
        file = store.open(key)
        if file is None:
            return None
        file.prefetch(0, payload_offset(file.read(HEADER_SIZE), name=file.name))
        file.seek(0)
        return open_bundle(cast(BinaryIO, file), name=file.name), file

    return _read_again(store, key, attempt)


def _read_again(store: Store, key: str, attempt: Callable[[], T]) -> T:
    """Call ``attempt`` again when what it read is damaged; noise on the way passes, what is stored damaged stays so."""
    for failures in range(ATTEMPTS):
        try:
            return attempt()
        except (FormatError, DigestMismatchError, ReplacedError) as error:
            if failures < ATTEMPTS - 1:
                store.retry.sleep(store.retry.pause(failures))
                continue
            if isinstance(error, NotABundleError):
                reason = f"the object under this key is no bundle ({error.what}); it was left alone"
                raise ForeignObjectError(store.url, key, reason) from error
            raise
    raise AssertionError("unreachable")


def inspect_remote(store: StoreLike, key: str) -> dict[str, Any]:
    """Return what a bundle in a store says of itself, as ``inspect`` does; only its header and index are read.

    Raises:
        ObjectNotFoundError: No such object.
        StoreError, FormatError, DigestMismatchError, UnsafePathError: See ``open_remote``.
    """
    opened_here = opened_store(store)
    found = _open_remote(opened_here, key)
    if found is None:
        raise ObjectNotFoundError(opened_here.url, key)
    found[1].seek(0)
    return inspect(cast(BinaryIO, found[1]))


def pull(
    store: StoreLike,
    key: str,
    out: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    expect_digest: str | None = None,
    level: int = DEFAULT_LEVEL,
    progress: Callable[[int], None] = lambda size: None,
) -> PullReport:
    """Write a bundle of a store to a local file.

    Args:
        store: A store, or its URL.
        key: Which bundle.
        out: Replaced whole or not at all.
        only: Glob patterns, as for ``unpack``: the file then holds just the entries that match, and only the frames
            that hold them are read.
        expect_digest: The content digest that the bundle in the store must have.
        level: zstd level of what ``only`` writes.
        progress: Told the bytes of the object as they come.

    Raises:
        ObjectNotFoundError: No such object.
        StoreError: It cannot be read, or is no bundle.
        FormatError, DigestMismatchError: It is damaged where it is stored, or not the one expected.
        UsageError: ``only`` matches nothing.
        LocalIOError: ``out`` cannot be written.
    """
    check_level(level)
    started = time.monotonic()
    source = opened_store(store)

    def attempt() -> PullReport:
        found = _open_remote(source, key)
        if found is None:
            raise ObjectNotFoundError(source.url, key)
        fetch = _Fetch(source, *found, progress)
        if expect_digest is not None:
            require_digest(found[0], expect_digest)
        entries = _chosen(found[0], only)
        size = fetch.some(out, entries, level) if only else fetch.whole(out)
        source.touch(key)
        return PullReport(
            store=source.url,
            key=key,
            bundle=os.fspath(out),
            content_digest=fetch.content_digest,
            entries=len(entries),
            bytes_in=fetch.bytes_in,
            bytes_out=size,
            seconds=round(time.monotonic() - started, 6),
        )

    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except ReplacedError:
            continue  # from the start, with the index of the new one
    return attempt()


def _chosen(reader: Reader, only: Sequence[str]) -> Sequence[Entry]:
    return select(reader, Selection(only=tuple(only), force=True))[0] if only else reader.index.entries


class _Fetch:
    """Frames of one bundle on their way here, each compared with its digest."""

    def __init__(self, store: Store, reader: Reader, remote: RemoteFile, progress: Callable[[int], None]) -> None:
        self._store = store
        self._reader = reader
        self._remote = remote
        self._progress = progress
        self.content_digest = str(reader.content_digest)
        self.bytes_in = 0

    def whole(self, out: str | os.PathLike[str]) -> int:
        """Write all of the bundle to ``out``; return its size."""
        with output(out) as (file, name):
            _require_seekable(file, name)
            self._image(file, range(len(self._reader.index.frames)))
            return self._reader.bundle_size

    def some(self, out: str | os.PathLike[str], entries: Sequence[Entry], level: int) -> int:
        """Write a bundle of ``entries`` to ``out``, from the frames that hold them; return its size."""
        reader = self._reader
        contents = {artifact.content for entry in entries for artifact in entry.artifacts}
        with _temporary(out) as image:
            self._image(image, sorted(reader.frames_of(contents)))
            image.seek(0)
            local = open_bundle(image, name=reader.name)
            kinds = {entry.root for entry in entries}
            roots = [
                Root(root.name, known_kind(root.kind, root.name), root.path)
                for root in local.index.roots
                if root.name in kinds
            ]
            with output(out) as (file, _):
                written = write_collected(
                    file,
                    roots,
                    Collected(drafts=drafts_of(local, entries)),
                    profile=local.index.profile,
                    level=level,
                    facts=local.index.facts,
                )
        self.content_digest = str(written.content_digest)
        return written.size

    def _image(self, file: BinaryIO, frames: Iterable[int]) -> None:
        """Write the bundle into ``file``, with holes where frames are left out, and compare what was written."""
        offset = self._reader.header.payload_offset
        file.write(self._front(offset))
        starts = [offset]
        for frame in self._reader.index.frames:
            starts.append(starts[-1] + frame.stored_size)
        for number in frames:
            file.seek(starts[number])
            self._frame(file, number, self._reader.index.frames[number], starts[number])
        file.truncate(self._reader.bundle_size)
        file.flush()

    def _front(self, size: int) -> bytes:
        """Return what stands before the payload, compared with what the reader saw."""

        def attempt() -> bytes:
            self._remote.seek(0)
            front = self._remote.read(size)
            reader = open_bundle(io.BytesIO(front), name=self._reader.name, seekable=False)
            if reader.index_digest != self._reader.index_digest or reader.header != self._reader.header:
                self._remote.forget()
                raise DigestMismatchError(reader.name, str(self._reader.index_digest), str(reader.index_digest))
            signature = self._reader.header.signature_size
            # The signature section has no digest of its own: it must come the same twice.
            if (
                signature
                and self._store.read_version(self._remote.info, size - signature, signature) != reader.signature
            ):
                self._remote.forget()
                raise FormatError("the signature section differs from one reading to the next", size, reader.name)
            return front

        front = _read_again(self._store, self._remote.info.key, attempt)
        self._count(size)
        return front

    def _frame(self, file: BinaryIO, number: int, frame: Frame, start: int) -> None:
        at = file.tell()

        def attempt() -> None:
            file.seek(at)
            hasher = hashlib.sha256()
            for offset in range(0, frame.stored_size, _CHUNK_SIZE):
                size = min(_CHUNK_SIZE, frame.stored_size - offset)
                data = self._store.read_version(self._remote.info, start + offset, size)
                hasher.update(data)
                file.write(data)
                self._count(size)
            if hasher.digest() != frame.digest:
                name = f"{self._reader.name}: frame {number}"
                raise DigestMismatchError(name, str(Digest(frame.digest)), str(Digest(hasher.digest())), start)

        _read_again(self._store, self._remote.info.key, attempt)

    def _count(self, size: int) -> None:
        self.bytes_in += size
        self._progress(size)


def _temporary(out: str | os.PathLike[str]) -> BinaryIO:
    """Return a file without a name on the file system of ``out``, where there is room for it."""
    directory = os.path.dirname(os.path.realpath(out))
    try:
        return cast(BinaryIO, tempfile.TemporaryFile(dir=directory))
    except OSError as error:
        raise LocalIOError.from_os_error(error, "write the bundle", directory) from error


def _require_seekable(file: BinaryIO, name: str) -> None:
    if not file.seekable():
        raise UsageError(f"{name} is a pipe or a device: pull to a file")


# -- writing -----------------------------------------------------------------------------------------------------------


def push(blob: Blob, store: StoreLike, key: str, *, mode: Mode = "overwrite") -> PushReport:
    """Put a bundle into a store, once it is known to be whole.

    An object under ``key`` that is no bundle is never replaced; the same bundle is not sent again.

    Args:
        blob: A path, the bytes, or a seekable binary file.
        store: A store, or its URL.
        key: Under which name.
        mode: ``overwrite``, ``create`` (only when nothing is there), or the version to replace.

    Raises:
        FormatError, DigestMismatchError: The bundle is damaged; nothing was sent.
        ObjectExistsError: ``mode`` is not met.
        StoreError: It cannot be stored, or the object there is no bundle.
        LocalIOError: The bundle cannot be read.
    """
    started = time.monotonic()
    target = opened_store(store)
    with _source(blob) as file, opened(file, alone=True) as reader:
        if not reader.seekable:
            raise UsageError(f"{reader.name} is a pipe: push a file")
        reader.check_frames()
        there = _there(target, key)
        same = there is not None and there[0].header == reader.header and there[0].signature == reader.signature
        if there is not None and same and mode in ("overwrite", there[1].info.version):
            version = there[1].info.version
        else:
            version = target.put(key, file, mode=mode)
            same = False
        return PushReport(
            store=target.url,
            key=key,
            uploaded=not same,
            content_digest=str(reader.content_digest),
            entries=len(reader.index.entries),
            bytes_out=0 if same else reader.bundle_size,
            version=version,
            seconds=round(time.monotonic() - started, 6),
        )


@contextmanager
def _source(blob: Blob) -> Iterator[BinaryIO]:
    """Open what is pushed once, so that what is checked is what is sent."""
    if isinstance(blob, (bytes, bytearray, memoryview)):
        yield io.BytesIO(blob)
    elif isinstance(blob, (str, os.PathLike)):
        path = os.fspath(blob)
        try:
            file = open(path, "rb")  # noqa: SIM115 - closed below; only its own errors are of the local disk
        except OSError as error:
            raise LocalIOError.from_os_error(error, "read the bundle", path) from error
        with file:
            yield file
    else:
        if blob.seekable():
            blob.seek(0)
        yield blob


def _there(store: Store, key: str) -> tuple[Reader, RemoteFile] | None:
    """Open the bundle under a key; None when there is none, or one so damaged that it is good to be replaced."""
    try:
        return _open_remote(store, key)
    except (FormatError, DigestMismatchError):
        return None
