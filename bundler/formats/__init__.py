"""Bytes <-> model. Reads the magic and hands the bytes to the right version; never sees a path or a socket."""

from __future__ import annotations

from typing import BinaryIO

from bundler.formats import v1
from bundler.formats._header import HEADER_SIZE, MAGIC, Header
from bundler.formats._rules import check_path, collision
from bundler.formats.joined import Joined, check_delta

__all__ = [
    "HEADER_SIZE",
    "MAGIC",
    "Chunk",
    "Reader",
    "Source",
    "Written",
    "check_delta",
    "check_path",
    "collision",
    "join",
    "open_bundle",
    "payload_offset",
    "write",
]

Chunk = v1.Chunk
Reader = v1.Reader
Source = v1.Source
Written = v1.Written
write = v1.write  # always the newest version


def open_bundle(file: BinaryIO, *, name: str = "bundle", seekable: bool = True) -> Reader:
    """Return a reader of the version that the file is in; see ``v1.Reader``. One version exists so far."""
    return v1.Reader(file, name=name, seekable=seekable)


def join(base: Reader, delta: Reader) -> Reader:
    """Return a delta and the bundle that it was made from as one bundle; see ``joined.Joined`` for the errors."""
    return Joined(base, delta)


def payload_offset(head: bytes, *, name: str = "bundle") -> int:
    """Return how many bytes stand before the payload: what must be read to open a bundle.

    Args:
        head: The first ``HEADER_SIZE`` bytes of the file, or more.
        name: What to call the file in messages.

    Raises:
        FormatError: Not the header of a bundle; see ``Header.decode``.
    """
    return Header.decode(head, name=name).payload_offset
