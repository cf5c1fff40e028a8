"""Opening a bundle, from wherever it comes: apart from what packs and restores, so that a look into one starts fast."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

from bundler.errors import BundlerError, LocalIOError
from bundler.formats import Reader, open_bundle

__all__ = ["Blob", "opened"]

Blob: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO"


@contextmanager
def opened(blob: Blob) -> Iterator[Reader]:
    """Open a bundle for reading, from a path, from bytes, or from a binary file that stays the caller's.

    Raises:
        LocalIOError: The file cannot be opened or read.
        FormatError, DigestMismatchError, UnsafePathError: See ``formats.v1.Reader``.
    """
    if isinstance(blob, (bytes, bytearray, memoryview)):
        yield open_bundle(io.BytesIO(blob))
        return
    if not isinstance(blob, (str, os.PathLike)):
        seekable = blob.seekable()
        yield open_bundle(blob, name=str(getattr(blob, "name", "bundle")), seekable=seekable)
        return
    path = os.fspath(blob)
    try:
        with open(path, "rb", buffering=1 << 20) as file:
            seekable = file.seekable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            yield open_bundle(file, name=path, seekable=seekable)
    except BundlerError:
        raise
    except OSError as error:
        raise LocalIOError.from_os_error(error, "read the bundle", path) from error
