"""What was collected -> the rows of an index and the order of the payload.

Contents are stored once. They stand by kind and then by name, so that like lies beside like inside one solid block, and
contents made of copies stand last, behind everything that they copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bundler import check
from bundler.collect import ChangedError, Collected, Draft, File
from bundler.foreign import prefixes
from bundler.formats import Source
from bundler.formats.v1 import Buffer
from bundler.model import Artifact, Content, Entry, Index

__all__ = ["Payload", "lay_out"]

# Stages of one kernel share names, types and source lines with the next stage; metadata and modules are small.
_ORDER = {
    suffix: rank
    for rank, suffix in enumerate(
        (".json", "group", ".source", ".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".cubin", ".hsaco", ".py", ".cpp")
    )
}
_LAST = len(_ORDER)


@dataclass(slots=True)
class _Piece:
    """A content before it has a number."""

    file: File
    draft: Draft
    copies: list[tuple[int, int, bytes]]  # (offset, size, digest) inside the content
    in_base: bool = False

    @property
    def order(self) -> tuple[bool, bool, int, str, int, bytes]:
        name = self.file.name
        kind = "group" if check.is_group(name) else check.suffix(name)
        return (not self.in_base, bool(self.copies), _ORDER.get(kind, _LAST), name, self.file.size, self.file.digest)


@dataclass(slots=True)
class Payload:
    """Entries, and the contents they refer to in payload order; foreign paths are known once the contents were read.

    The first ``in_base`` contents lie in the base.
    """

    entries: tuple[Entry, ...]
    sources: list[Source]
    in_base: int
    _foreign: list[set[str]]

    def annotate(self, index: Index) -> Index:
        """Fill in the rows of foreign paths that were seen while the contents were written."""
        seen = [tuple(sorted(found)) for found in self._foreign]
        rows = [(), *sorted({row for row in seen if row})]
        numbers = {row: number for number, row in enumerate(rows)}
        contents = tuple(
            content._replace(foreign=numbers[row]) if row else content for content, row in zip(index.contents, seen)
        )
        return replace(index, contents=contents, foreign=tuple(rows))


def lay_out(collected: Collected, recorded: dict[str, str], base: Sequence[Content] = ()) -> Payload:
    """Number the contents of what was collected.

    Args:
        collected: Drafts of every root.
        recorded: The path that each root had when its files were written, by name: shown once, as one foreign path.
        base: Contents that need not be stored.
    """
    pieces = _pieces(collected.drafts, base)
    ordered = sorted(pieces.values(), key=lambda piece: piece.order)
    numbers = {piece.file.digest: number for number, piece in enumerate(ordered)}
    foreign: list[set[str]] = [set() for _ in ordered]
    sources = [
        Source(_content(piece, numbers), partial(_own_chunks, piece), _looking(recorded.get(piece.draft.root, ""), row))
        for piece, row in zip(ordered, foreign)
    ]
    entries = sorted((_entry(draft, numbers) for draft in collected.drafts), key=lambda entry: entry.identity)
    return Payload(tuple(entries), sources, sum(piece.in_base for piece in ordered), foreign)


def _pieces(drafts: Sequence[Draft], base: Sequence[Content]) -> dict[bytes, _Piece]:
    absent = {content.digest: content for content in base}
    pieces: dict[bytes, _Piece] = {}
    for draft in drafts:
        for file in draft.files:
            piece = pieces.setdefault(file.digest, _Piece(file, draft, [], file.digest in absent))
            if piece.file.data is None and file.data is not None:
                piece.file = file
    known = pieces.keys() | absent.keys()
    for digest, piece in pieces.items():
        if not piece.in_base:
            piece.copies = [copy for copy in piece.file.long if copy[2] in known and copy[2] != digest]
    # One level deep: what is made of copies is not itself copied.
    composite = {digest for digest, piece in pieces.items() if piece.copies}
    composite |= {digest for digest, content in absent.items() if content.copies}
    for piece in pieces.values():
        piece.copies = [copy for copy in piece.copies if copy[2] not in composite]
    for piece in list(pieces.values()):  # what is copied from the base alone becomes a content too
        for _, size, digest in piece.copies:
            if digest not in pieces:
                pieces[digest] = _Piece(File("", digest, size, size, tuple), piece.draft, [], True)
    return pieces


def _content(piece: _Piece, numbers: dict[bytes, int]) -> Content:
    copies, last = [], 0
    for offset, size, digest in piece.copies:
        copies.append((offset - last, numbers[digest]))
        last = offset + size
    return Content(piece.file.digest, piece.file.size, tuple(copies))


def _looking(recorded: str, found: set[str]) -> Callable[[memoryview], None]:
    return lambda view: found.update(prefixes(view, recorded))


def _own_chunks(piece: _Piece) -> Iterator[Buffer]:
    if piece.in_base:
        return
    if piece.file.data is None and piece.file.size > check.WHOLE_LIMIT:
        yield from _read_again(piece)
        return
    data = piece.file.data
    if data is None:
        data = b"".join(_read_again(piece))
    elif piece.file.relocation is None:
        piece.file.data = None  # in a moment it is in the payload, and the memory is free for what comes next
    view, last = memoryview(data), 0
    for offset, size, _ in piece.copies:
        yield view[last:offset]
        last = offset + size
    yield view[last:]


def _read_again(piece: _Piece) -> Iterator[bytes]:
    """Yield a file from where it came; its digest must be what it was."""
    hasher = hashlib.sha256()
    try:
        for chunk in piece.file.reopen():
            hasher.update(chunk)
            yield chunk
    except OSError as error:
        raise ChangedError(piece.draft.root, piece.draft.path) from error
    if hasher.digest() != piece.file.digest:
        raise ChangedError(piece.draft.root, piece.draft.path)


def _entry(draft: Draft, numbers: dict[bytes, int]) -> Entry:
    artifacts = tuple(
        Artifact(
            file.name, numbers[file.digest], file.relocation if file.relocation and file.relocation.offsets else None
        )
        for file in sorted(draft.files, key=lambda file: file.name)
    )
    return Entry(draft.root, draft.path, draft.unit, artifacts, draft.target, draft.needs)
