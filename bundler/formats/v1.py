"""Version 1 of the format: header, index, signature section and frames put together. FORMAT.md is its description.

Writing streams: contents come as chunks, frames are spooled, and the index, which stands first, is written last.
Reading streams too: the index tells what is wanted, and one pass over the frames delivers it, so that a bundle can come
from a pipe; a seekable file can also be asked for a single content.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import IO, BinaryIO, NamedTuple, TypeAlias

from bundler.digest import Digest
from bundler.errors import (
    BundlerError,
    DigestMismatchError,
    FormatError,
    LocalIOError,
    MissingBaseError,
    TruncatedError,
)
from bundler.formats import _frame, _index, _rules
from bundler.formats._header import HEADER_SIZE, Header
from bundler.formats._task import Task
from bundler.formats.limits import DEFAULT_BLOCK_SIZE, DEFAULT_LEVEL
from bundler.model import Content, Frame, Index

__all__ = ["Chunk", "Reader", "Source", "Written", "write"]

Buffer: TypeAlias = bytes | bytearray | memoryview

_SPOOL_SIZE = 32 << 20  # bytes of frames, or of sources, kept in memory before they go to a temporary file
_COPY_SIZE = 1 << 20  # bytes moved at a time
# zstd level of the index, given that of the payload: 13 takes 15 ms for 1,000 files, and 19 takes 90 ms for 2 % less.
_INDEX_LEVELS = {1: 3, **dict.fromkeys(range(2, 13), 13)}
_MAX_INDEX_LEVEL = 19


class Source(NamedTuple):
    """A content to be written.

    Attributes:
        content: Its row in the index.
        own: Gives its own bytes (copies left out) as chunks; may be called twice.
        look: Shown its own bytes, in order and in chunks of at most a block, while zstd is at work on them.
    """

    content: Content
    own: Callable[[], Iterable[Buffer]]
    look: Callable[[memoryview], None] | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What ``write`` made: the index, the digest of what it holds, and the bytes of the bundle."""

    index: Index
    content_digest: Digest
    size: int


def write(
    out: BinaryIO,
    index: Index,
    sources: Iterable[Source],
    *,
    level: int = DEFAULT_LEVEL,
    block_size: int = DEFAULT_BLOCK_SIZE,
    spool_directory: str | None = None,
    annotate: Callable[[Index], Index] = lambda index: index,
    progress: Callable[[int], None] = lambda size: None,
) -> Written:
    """Write a bundle.

    Args:
        out: Where it goes, from its present position; only ``write`` is called.
        index: Without ``frames`` and ``contents``; both are filled in from ``sources``.
        sources: In payload order: a content that is copied stands before those that copy it.
        level: zstd level.
        block_size: Raw bytes of a frame, at most ``MAX_BLOCK_SIZE``.
        spool_directory: Where the frames wait until the index is known, in a temporary file when they are many. None:
            where temporary files go.
        annotate: Last word on the index, once every source was read (foreign paths are known only then).
        progress: Told the size of each content, in bytes, when it has been read.

    Returns:
        What was written.

    Raises:
        FormatError: ``index`` and ``sources`` do not make a bundle that a reader would accept.
    """
    with _spool(spool_directory) as spool:
        contents: list[Content] = []
        frames = _write_frames(spool, _told(sources, progress), contents, level, block_size)
        index = annotate(replace(index, contents=tuple(contents), frames=tuple(frames)))
        payload_size = spool.tell()
        raw = _index.encode_index(index)
        compressed = Task(_frame.compress, raw, _INDEX_LEVELS.get(level, _MAX_INDEX_LEVEL))
        # What a reader would refuse is never written: the same decoding and the same rules, on our own bytes.
        decoded = _index.decode_index(raw, offset=HEADER_SIZE, name="")
        stored = compressed.result()
        header = Header(len(stored), len(raw), payload_size, hashlib.sha256(stored).digest())
        header = Header.decode(header.encode())
        _rules.check(decoded, payload_size=payload_size, bundle_size=header.bundle_size, offset=HEADER_SIZE, name="")
        out.write(header.encode())
        out.write(stored)
        spool.seek(0)
        while chunk := spool.read(_COPY_SIZE):
            out.write(chunk)
    return Written(index, Digest.of(_index.content_form(index)), header.bundle_size)


def _spool(directory: str | None) -> IO[bytes]:
    import tempfile  # some 4 ms, and a reader needs none

    return tempfile.SpooledTemporaryFile(max_size=_SPOOL_SIZE, dir=directory)


def _told(sources: Iterable[Source], progress: Callable[[int], None]) -> Iterator[Source]:
    for source in sources:
        yield source
        progress(source.content.size)


def _write_frames(
    spool: IO[bytes], sources: Iterable[Source], contents: list[Content], level: int, block_size: int
) -> list[Frame]:
    """Compress one block while the next is read: zstd runs without the interpreter lock."""
    frames: list[Frame] = []
    pending: Task[bytes] | None = None
    pending_size = 0

    def finish() -> None:
        if pending is not None:
            frame = pending.result()
            spool.write(frame)
            frames.append(Frame(len(frame), pending_size, hashlib.sha256(frame).digest()))

    for block, spans in _blocks(sources, contents, block_size):
        finish()
        pending, pending_size = Task(_frame.compress, block, level), len(block)
        _look(block, spans)
    finish()
    return frames


_Span: TypeAlias = tuple[Source, int, int]  # whose own bytes stand in a block, from where, to where


def _blocks(
    sources: Iterable[Source], contents: list[Content], block_size: int
) -> Iterator[tuple[bytearray, list[_Span]]]:
    block, spans = bytearray(), list[_Span]()
    for source in sources:
        contents.append(source.content)
        for chunk in source.own():
            view = memoryview(chunk)
            while len(view):
                start = len(block)
                block += view[: block_size - start]
                view = view[block_size - start :]
                spans.append((source, start, len(block)))
                if len(block) == block_size:
                    yield block, spans
                    block, spans = bytearray(), []
    if block:
        yield block, spans


def _look(block: bytearray, spans: Iterable[_Span]) -> None:
    view = memoryview(block)
    for source, start, end in spans:
        if source.look is not None:
            source.look(view[start:end])


class Chunk(NamedTuple):
    """Bytes of a content, in order. ``last`` comes once the whole is verified; ``error`` ends a content that is not."""

    content: int
    data: Buffer
    last: bool
    error: BundlerError | None = None


class Reader:
    """A bundle that is open for reading.

    Args:
        file: At the start of the bundle; borrowed, and read only.
        name: What to call it in messages.
        seekable: False for a pipe: contents can then be delivered once, in order.

    Raises:
        FormatError: The header or the index break FORMAT.md (its subclasses tell how).
        DigestMismatchError: The index was changed.
        UnsafePathError: The index names a path that could leave its root.
        LocalIOError: The file cannot be read; any method that reads may raise it.

    Source: FORMAT.md sections 2 to 5.
    """

    def __init__(self, file: BinaryIO, *, name: str = "bundle", seekable: bool = True) -> None:
        self._file = file
        self.seekable = seekable
        self._start = file.tell() if seekable else 0
        self._at = 0  # bytes of the bundle consumed
        self.name = name
        self.header = Header.decode(self._take(HEADER_SIZE, "the header", short=True), name=name)
        if seekable:
            self._check_size()
        stored = self._take(self.header.index_size, "the index")
        self.index_digest = Digest.of(stored)
        if self.index_digest.value != self.header.index_digest:
            expected = str(Digest(self.header.index_digest))
            raise DigestMismatchError(f"{name}: the index", expected, str(self.index_digest), HEADER_SIZE)
        raw = _frame.decompress(stored, self.header.index_raw_size, what="the index", offset=HEADER_SIZE, name=name)
        self.index = _index.decode_index(raw, offset=HEADER_SIZE, name=name)
        _rules.check(
            self.index,
            payload_size=self.header.payload_size,
            bundle_size=self.header.bundle_size,
            offset=HEADER_SIZE,
            name=name,
        )
        self.signature = self._take(self.header.signature_size, "the signature section")
        self._locate()

    def _locate(self) -> None:
        """Work out from the index where contents and frames lie."""
        self._ends = list(accumulate(_rules.own_sizes(self.index)))  # raw offset behind each content's own bytes
        self._starts = list(accumulate((frame.stored_size for frame in self.index.frames), initial=0))
        self._cache: tuple[int, bytes] | None = None
        self._broken: dict[int, FormatError | DigestMismatchError] = {}  # frames that were read and are damaged

    @cached_property
    def content_digest(self) -> Digest:
        """Digest of what a restore of everything gives. FORMAT.md section 6."""
        return Digest.of(_index.content_form(self.index))

    @property
    def bundle_size(self) -> int:
        """Bytes of the file, as its header says."""
        return self.header.bundle_size

    def is_content(self, number: int, data: bytes | None) -> bool:
        """Whether ``data`` are the bytes of content ``number``; False for None."""
        content = self.index.contents[number]
        return data is not None and len(data) == content.size and hashlib.sha256(data).digest() == content.digest

    def _take(self, size: int, what: str, *, short: bool = False) -> bytes:
        """Read ``size`` bytes on from where we are; with ``short`` fewer are left to the caller."""
        parts, got = [], 0
        while got < size:
            part = self._read_file(min(size - got, _COPY_SIZE))
            if not part:
                break
            parts.append(part)
            got += len(part)
        if got < size and not short:
            raise TruncatedError(self._at, size, got, what, self.name)
        self._at += got
        return b"".join(parts)

    def _read_file(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise LocalIOError.from_os_error(error, "read the bundle", self.name) from error

    def _check_size(self) -> None:
        size = self._file.seek(0, 2) - self._start
        self._file.seek(self._start + self._at)
        if size < self.header.bundle_size:
            raise TruncatedError(0, self.header.bundle_size, size, "the bundle", self.name)
        if size > self.header.bundle_size:
            extra = size - self.header.bundle_size
            raise FormatError(f"{extra} bytes follow the last frame", self.header.bundle_size, self.name)

    def check_frames(self, wanted: Collection[int] | None = None) -> None:
        """Compare the digest of each frame as stored, of all or of those numbered in ``wanted``. Seekable files only.

        Raises:
            TruncatedError, DigestMismatchError: The first frame that is not as the index says.
        """
        for number in range(len(self.index.frames)) if wanted is None else sorted(wanted):
            self._stored_frame(number)

    def frames_of(self, wanted: Collection[int]) -> set[int]:
        """Return the numbers of the frames that hold the contents ``wanted``, their copies included."""
        ends = [end for _, end in self._frame_bounds()]
        frames: set[int] = set()
        for number in self._with_sources(wanted):
            start, end = self._span(number)
            if start < end:
                frames.update(range(bisect_right(ends, start), bisect_left(ends, end) + 1))
        return frames

    def _with_sources(self, wanted: Collection[int]) -> set[int]:
        contents = self.index.contents
        return set(wanted) | {source for number in wanted for _, source in contents[number].copies}

    def _frame_bounds(self) -> list[tuple[int, int]]:
        ends = list(accumulate(frame.raw_size for frame in self.index.frames))
        return list(zip([0, *ends], ends))

    def _span(self, number: int) -> tuple[int, int]:
        """Return where a content's own bytes lie in the raw payload."""
        return (self._ends[number - 1] if number else 0), self._ends[number]

    def _frame_offset(self, number: int) -> int:
        return self.header.payload_offset + self._starts[number]

    def _stored_frame(self, number: int) -> bytes:
        """Return a frame as stored, verified. From a pipe, frames must be asked for in order."""
        frame, offset = self.index.frames[number], self._frame_offset(number)
        if self.seekable:
            self._file.seek(self._start + offset)
            self._at = offset
        while self._at < offset:
            self._take(min(offset - self._at, _COPY_SIZE), "the payload")
        stored = self._take(frame.stored_size, f"frame {number}")
        actual = Digest.of(stored)
        if actual.value != frame.digest:
            raise DigestMismatchError(f"{self.name}: frame {number}", str(Digest(frame.digest)), str(actual), offset)
        return stored

    def _block(self, number: int) -> bytes:
        if self._cache is not None and self._cache[0] == number:
            return self._cache[1]
        if number in self._broken:  # a pipe gives it once, and to read it for each of its contents takes for ever
            raise copy(self._broken[number])
        self._cache = None  # so that two blocks are never held
        try:
            raw = self._decoded(number)
        except (FormatError, DigestMismatchError) as error:
            self._broken[number] = copy(error)  # without its traceback, which holds the frame
            raise
        self._cache = (number, raw)
        return raw

    def _decoded(self, number: int) -> bytes:
        return _frame.decompress(
            self._stored_frame(number),
            self.index.frames[number].raw_size,
            what=f"frame {number}",
            offset=self._frame_offset(number),
            name=self.name,
        )

    def finish(self) -> None:
        """Read a pipe to its end: the rest of the payload must be there, and nothing behind it. No-op for a file.

        Raises:
            TruncatedError, FormatError: The bundle ends early, or does not end there.
        """
        if self.seekable:
            return  # its size was compared when it was opened
        while self._at < self.header.bundle_size:
            self._take(min(self.header.bundle_size - self._at, _COPY_SIZE), "the payload")
        if self._read_file(1):
            raise FormatError("bytes follow the last frame", self.header.bundle_size, self.name)

    def read(self, number: int) -> bytes:
        """Return one content, whole and verified. Seekable files only.

        Raises:
            TruncatedError, FormatError, DigestMismatchError: A frame or the content is not as the index says.
        """
        return b"".join(chunk.data for chunk in self.deliver([number]))

    def deliver(self, wanted: Collection[int], *, salvage: bool = False) -> Iterator[Chunk]:
        """Yield the contents numbered in ``wanted``, in payload order, in chunks of at most one block (or 1 MiB).

        Args:
            wanted: Numbers of contents; the sources of their copies are read too, and not delivered.
            salvage: Report a content that is damaged as a chunk with ``error``, and go on.

        Raises:
            TruncatedError, FormatError, DigestMismatchError: Unless ``salvage``.
            MissingBaseError: One of them lies in the base of this delta.
        """
        contents = self.index.contents
        wanted = set(wanted)
        sources = {source for number in wanted for _, source in contents[number].copies}
        if self.index.base and min(wanted | sources, default=self.index.base_contents) < self.index.base_contents:
            raise MissingBaseError(self.name, str(Digest(self.index.base.digest)))
        with ExitStack() as stack:
            kept = _Kept(stack, lasting=len(self.index.frames) == 1)
            bounds = self._frame_bounds()
            first = 0
            for number in sorted(wanted | sources):
                start, end = self._span(number)
                while first < len(bounds) and bounds[first][1] <= start:
                    first += 1
                try:
                    for chunk in self._pieces(number, first, start, end, bounds, kept):
                        if number in sources:
                            kept.add(number, chunk.data)
                        if number in wanted:
                            yield chunk
                except (FormatError, DigestMismatchError) as error:
                    if not salvage:
                        raise
                    kept.drop(number)
                    if number in wanted:
                        yield Chunk(number, b"", True, error)

    def _pieces(
        self, number: int, first: int, start: int, end: int, bounds: list[tuple[int, int]], kept: _Kept
    ) -> Iterator[Chunk]:
        content = self.index.contents[number]
        hasher = hashlib.sha256()
        left = content.size
        own: Iterator[Buffer] = self._own(first, start, end, bounds)
        for data in _joined(self._interleave(content, own, kept)) if content.copies else own:
            hasher.update(data)
            left -= len(data)
            if left > 0:
                yield Chunk(number, data, False)
            else:
                self._verify(number, content, hasher.digest())
                yield Chunk(number, data, True)
        if content.size == 0:
            self._verify(number, content, hasher.digest())
            yield Chunk(number, b"", True)

    def _verify(self, number: int, content: Content, actual: bytes) -> None:
        if actual != content.digest:
            expected = str(Digest(content.digest))
            raise DigestMismatchError(f"{self.name}: content {number}", expected, str(Digest(actual)))

    def _own(self, frame: int, start: int, end: int, bounds: list[tuple[int, int]]) -> Iterator[memoryview]:
        while start < end:
            first, last = bounds[frame]
            stop = min(end, last)
            yield memoryview(self._block(frame))[start - first : stop - first]
            start = stop
            frame += 1

    @staticmethod
    def _interleave(content: Content, own: Iterator[Buffer], kept: _Kept) -> Iterator[Buffer]:
        """Yield own bytes and copies in the order of the content; never an empty buffer."""
        rest: Buffer = memoryview(b"")
        for gap, source in content.copies:
            while gap:
                rest = rest if len(rest) else next(own)
                yield rest[:gap]
                gap, rest = gap - min(gap, len(rest)), rest[gap:]
                if not len(rest):
                    rest = b""  # an empty slice would keep its block while the next one is read
            yield from kept.read(source)
        if len(rest):
            yield rest
        yield from own


def _joined(pieces: Iterable[Buffer]) -> Iterator[bytearray]:
    """Yield the bytes of many small pieces in few: an FX graph entry is made of a thousand, and each costs a write."""
    joined = bytearray()  # a copy, so that no block is held when the next one is read
    for piece in pieces:
        for start in range(0, len(piece), _COPY_SIZE):
            part = piece[start : start + _COPY_SIZE]
            if joined and len(joined) + len(part) > _COPY_SIZE:
                yield joined
                joined = bytearray()
            joined += part
            del part
        del piece
    yield joined  # never empty: a copy has at least one byte


class _Kept:
    """Contents that later ones copy, kept while a bundle is read: in memory, and in a file what is too much for it.

    Args:
        stack: Closes the file.
        lasting: The only block stays in memory until the end, so that its bytes need not be copied.
    """

    def __init__(self, stack: ExitStack, *, lasting: bool) -> None:
        self._stack = stack
        self._lasting = lasting
        self._file: IO[bytes] | None = None
        self._parts: dict[int, list[Buffer | tuple[int, int]]] = {}  # bytes, or where they start in the file and end
        self._size = 0  # bytes in memory

    def add(self, number: int, data: Buffer) -> None:
        part: Buffer | tuple[int, int]
        if self._lasting:
            part = data
        elif self._size + len(data) <= _SPOOL_SIZE:
            part = bytes(data)
            self._size += len(data)
        else:
            file = self._opened()
            start = file.seek(0, 2)
            file.write(data)
            part = (start, start + len(data))
        self._parts.setdefault(number, []).append(part)

    def drop(self, number: int) -> None:
        self._parts.pop(number, None)

    def read(self, number: int) -> Iterator[Buffer]:
        if number not in self._parts:
            raise FormatError(f"content {number}, which others copy, is damaged")
        for part in self._parts[number]:
            if isinstance(part, tuple):
                yield from self._read_file(*part)
            else:
                yield part

    def _read_file(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            file = self._opened()
            file.seek(start)
            data = file.read(min(end - start, _COPY_SIZE))
            yield data
            start += len(data)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            from tempfile import TemporaryFile

            self._file = self._stack.enter_context(TemporaryFile())  # noqa: SIM115 (the stack closes it)
        return self._file
