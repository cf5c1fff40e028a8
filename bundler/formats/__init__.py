"""Bytes <-> model. Reads the magic and hands the bytes to the right version; never sees a path or a socket."""

from __future__ import annotations

from typing import BinaryIO

from bundler.formats import v1
from bundler.formats._rules import check_path

__all__ = ["Chunk", "Reader", "Source", "Written", "check_path", "open_bundle", "write"]

Chunk = v1.Chunk
Reader = v1.Reader
Source = v1.Source
Written = v1.Written
write = v1.write  # always the newest version


def open_bundle(file: BinaryIO, *, name: str = "bundle", seekable: bool = True) -> Reader:
    """Return a reader of the version that the file is in; see ``v1.Reader``. One version exists so far."""
    return v1.Reader(file, name=name, seekable=seekable)
