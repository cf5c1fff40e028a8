"""Opening a bundle, from wherever it comes: apart from what packs and restores, so that a look into one starts fast."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TypeAlias

from bundler.digest import Digest
from bundler.errors import BundlerError, LocalIOError, MissingBaseError, OtherBundleError, UsageError, WrongBaseError
from bundler.formats import Reader, join, open_bundle

__all__ = ["Blob", "kept_in_place", "opened", "paired", "require_digest"]

Blob: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO"


@contextmanager
def opened(blob: Blob, *, base: Blob | None = None, alone: bool = False) -> Iterator[Reader]:
    """Open a bundle for reading, from a path, from bytes, or from a binary file that stays the caller's.

    Args:
        blob: The bundle.
        base: The bundle that it is a delta of; both are then read as one.
        alone: Open a delta without its base: what the delta itself does not hold cannot be read.

    Raises:
        LocalIOError: The file cannot be opened or read.
        MissingBaseError: A delta, without ``base`` and not ``alone``.
        UsageError, WrongBaseError: ``base`` is of no use to it.
        FormatError, DigestMismatchError, UnsafePathError: See ``formats.v1.Reader``.
    """
    if base is not None:
        with _opened(base) as older, _opened(blob) as delta:
            yield join(older, delta)
        return
    with _opened(blob) as reader:
        if reader.index.base is not None and not alone:
            raise MissingBaseError(reader.name, str(Digest(reader.index.base.digest)))
        yield reader


@contextmanager
def _opened(blob: Blob) -> Iterator[Reader]:
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


def paired(blobs: Sequence[Blob]) -> list[tuple[Blob, Blob | None]]:
    """Return the bundles in their order, each delta with its base, which then no longer stands for itself.

    A pipe is not looked into: it can be read only once, and is never part of a pair.

    Raises:
        MissingBaseError, WrongBaseError: A delta, and none of the others is its base.
        UsageError: Two deltas of one base.
        FormatError, DigestMismatchError, UnsafePathError, LocalIOError: One of several bundles cannot be read.
    """
    wholes: dict[int, Digest] = {}
    deltas: dict[int, tuple[str, Digest]] = {}
    for number, blob in enumerate(blobs if len(blobs) > 1 else ()):
        if _is_pipe(blob):
            continue
        with kept_in_place(blob), _opened(blob) as reader:
            if reader.index.base is not None:
                deltas[number] = (reader.name, Digest(reader.index.base.digest))
            else:
                wholes[number] = reader.content_digest
    bases: dict[Digest, int] = {}
    for number, (name, digest) in deltas.items():
        if digest in bases:
            raise UsageError(f"{name} and another one are deltas of one base: take them one after the other")
        if digest not in wholes.values():
            (other, *more) = set(wholes.values()) or (None,)
            if other is None or more:  # of several, none is the one that was meant
                raise MissingBaseError(name, str(digest))
            raise WrongBaseError(name, str(digest), str(other))
        bases[digest] = number
    # A base that is there twice, or a copy of it, stands for itself no more than the first: it has the older builds.
    found: dict[int, Blob | None] = {n: None for n in range(len(blobs)) if wholes.get(n) not in bases}
    for number, digest in wholes.items():
        if digest in bases and found[bases[digest]] is None:
            found[bases[digest]] = blobs[number]
    return [(blobs[number], base) for number, base in found.items()]


def require_digest(reader: Reader, expected: str | Digest) -> None:
    """Refuse a bundle that is not the one that is asked for.

    Raises:
        UsageError: ``expected`` is no digest.
        OtherBundleError: The content digest is another one.
    """
    try:
        wanted = Digest.parse(expected) if isinstance(expected, str) else expected
    except ValueError as error:
        raise UsageError(str(error)) from error
    if wanted != reader.content_digest:
        raise OtherBundleError(reader.name, str(wanted), str(reader.content_digest))


@contextmanager
def kept_in_place(blob: Blob | None) -> Iterator[None]:
    """Have an open file, if it is one, stand where it stood; it must be able to seek."""
    if blob is None or isinstance(blob, (str, os.PathLike, bytes, bytearray, memoryview)):
        yield
        return
    at = blob.tell()
    yield
    blob.seek(at)


def _is_pipe(blob: Blob) -> bool:
    if isinstance(blob, (bytes, bytearray, memoryview)):
        return False
    if isinstance(blob, (str, os.PathLike)):
        return os.path.exists(blob) and not os.path.isfile(blob)
    return not blob.seekable()
