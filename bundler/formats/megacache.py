r"""Reads a mega cache, the bytes of ``torch.compiler.save_cache_artifacts()``, without torch and without unpickling.

The file, all integers big endian:

======================  ======  ====================================================================================
part                    bytes   holds
======================  ======  ====================================================================================
checksum                4       CRC32 of everything behind it
version                 8       1
section, repeated               to the end of the file
-- kind                 8 + n   the kind's name: length ``n``, then base64 of its UTF-8
-- count                8       artifacts in this section
-- artifact, repeated           ``count`` times
-- -- key               8 + n   as the kind
-- -- content           8 + n   length, then the bytes as they are
======================  ======  ====================================================================================

What ``torch.compiler.load_cache_artifacts`` does with a content, in every kind of torch's own, is to write it byte for
byte to one file below the Inductor root (``TORCHINDUCTOR_CACHE_DIR``):

============  ========================================  ============================================================
kind          path                                      remarks
============  ========================================  ============================================================
inductor      ``fxgraph/<key[1:3]>/<key>/<name>``       name: see below. Alike in torch 2.11 to 2.14.1
aot_autograd  ``aotautograd/<key>/<name>``              the same name
autotune      ``<key>``                                 ``<2>/<hex>.best_config``; JSON, encoded when it was recorded
pgo           ``dynamo/code_state_<key>.pkl``           ``<>:"/\|?*`` become ``_``; torch leaves an empty ``.lock``
                                                        beside it. Holds job id and rank: read by that job only
precompile    ``dynamo/<key>/entry``
============  ========================================  ============================================================

``<name>`` is the SHA-256 of the content in lower-case base32, cut to 51 characters. No path depends on where the root
lies, and none on the device: no kernel directory is in a mega cache as such. Triton's files travel inside the FX graph
entry and appear below ``triton/<device>/`` when that entry is hit. torch 2.13 alone writes them at load time too, by
unpickling the entry (``InductorCacheArtifact.populate_cache``); 2.11, 2.12 and 2.14 do not, nor does anything here.
The C++ backend's ``.so`` files are in no mega cache at all.

Where we differ from torch's loader, on purpose: it puts the sections into a ``dict``, and a second
``save_cache_artifacts()`` of one process appends sections of kinds that are there already, so that it forgets the first
ones. Here every section counts. And torch joins a key to a path unchecked; ``place`` refuses one that leads elsewhere.

A CRC32 finds damage, not malice, and cached code is code.

Source: torch 2.13, torch/utils/_appending_byte_serializer.py, torch/compiler/_cache.py, and the ``populate_cache`` of
torch/_inductor/codecache.py, torch/_inductor/runtime/autotune_cache.py, torch/_functorch/_aot_autograd/
autograd_cache.py, torch/_dynamo/pgo.py, torch/_dynamo/package.py; compared with those of 2.11.0 and 2.14.1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from bundler.digest import Digest
from bundler.errors import (
    DigestMismatchError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsafePathError,
    UnsupportedVersionError,
)
from bundler.formats.limits import MAX_NAME_SIZE

__all__ = [
    "HEAD_BYTES",
    "MAX_ARTIFACTS",
    "MAX_KEY_BYTES",
    "MAX_KIND_BYTES",
    "MAX_SECTIONS",
    "VERSION",
    "LeftOut",
    "MegaArtifact",
    "MegaCache",
    "Placed",
    "artifact_digest",
    "chunks",
    "is_megacache",
    "place",
    "read",
]

VERSION = 1
MAX_KIND_BYTES = 128  # bytes of base64; torch's longest is 16
MAX_KEY_BYTES = 4096  # bytes of base64; torch's hashes take 72 to 108, a PGO key holds the name of a job
MAX_SECTIONS = 65_536  # at most five for each call of save_cache_artifacts() in one process
MAX_ARTIFACTS = 262_144  # of all sections together; a 6-layer encoder has 12

_CRC_BYTES = 4
_UINT64_BYTES = 8
_PREAMBLE_BYTES = _CRC_BYTES + _UINT64_BYTES
HEAD_BYTES = _PREAMBLE_BYTES + _UINT64_BYTES + MAX_KIND_BYTES  # what is_megacache needs to answer for sure
_MIN_ARTIFACT_BYTES = 2 * _UINT64_BYTES  # the two lengths, of an empty key and an empty content
_CHUNK_BYTES = 1 << 20  # read at a time

_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")  # torch makes `<kind>_artifacts` an attribute: in effect an identifier
_COMPONENT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # no separator, drive, "..", hidden or staging name
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class MegaArtifact:
    """One artifact of a mega cache.

    Attributes:
        kind: Which cache it belongs to: ``inductor``, ``autotune``, ``aot_autograd``, ``pgo``, ``precompile``, or the
            name that a third package registered.
        key: The cache key. As the file has it, so possibly hostile; ``place`` checks it.
        offset: First byte of the content, counted from the start of the file.
        size: Bytes of content.
    """

    kind: str
    key: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class MegaCache:
    """A whole mega cache whose checksum and lengths hold. ``artifacts`` are in file order."""

    artifacts: tuple[MegaArtifact, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an artifact goes: bytes ``offset`` to ``offset + size`` of the mega cache are the whole file ``path``.

    ``path`` is relative to the Inductor root, with ``/``, and safe to join to it.
    """

    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why an artifact has no place that can be told without the process that will load it."""

    reason: str


def is_megacache(head: bytes) -> bool:
    """Tell from the first bytes whether a file is a mega cache of a version that ``read`` knows.

    Args:
        head: The first ``HEAD_BYTES`` of the file, or all of it when it is shorter.

    Returns:
        True when the version is known and a plausible kind follows. The checksum cannot be told from a head. False
        for a mega cache without a section, which torch never writes.
    """
    if int.from_bytes(head[_CRC_BYTES:_PREAMBLE_BYTES], "big") != VERSION:
        return False
    start = _PREAMBLE_BYTES + _UINT64_BYTES
    size = int.from_bytes(head[_PREAMBLE_BYTES:start], "big")
    if not 0 < size <= min(MAX_KIND_BYTES, len(head) - start):
        return False
    try:
        return _KIND.fullmatch(_text(head[start : start + size])) is not None
    except ValueError:
        return False


def read(file: BinaryIO | bytes, *, name: str = "") -> MegaCache:
    """List what a mega cache holds. The contents are checksummed as they pass by, not kept.

    Args:
        file: The mega cache from its byte 0 to its end: bytes, or a binary file that can seek. A file is read twice
            in chunks of 1 MiB, and left open, at no particular position.
        name: What errors call the file.

    Returns:
        The artifacts, in file order. A key may come twice: at one path, the later artifact is the one that counts.

    Raises:
        TruncatedError: A length or a count asks for more bytes than are left.
        DigestMismatchError: The CRC32 does not fit (``crc32:`` and 8 hex digits), and the file does not end early.
        UnsupportedVersionError: The version is not 1.
        LimitExceededError: Above ``MAX_SECTIONS``, ``MAX_ARTIFACTS``, ``MAX_KIND_BYTES`` or ``MAX_KEY_BYTES``.
        FormatError: A kind or key is not canonical base64 of UTF-8, or a kind is not a name.
        OSError: As ``file`` raises it.

    Source: torch/utils/_appending_byte_serializer.py, BytesReader; torch/compiler/_cache.py,
    _deserialize_single_cache.
    """
    cursor = _Cursor(_as_file(file), name)
    expected, actual = cursor.checksums()
    try:
        artifacts = tuple(_sections(cursor))
    except TruncatedError:
        raise  # also when the checksum is wrong, as it then is: the two numbers say more than two checksums
    except FormatError as error:
        if expected == actual:
            raise
        raise _mismatch(expected, actual, name) from error
    if expected != actual:
        raise _mismatch(expected, actual, name)
    return MegaCache(artifacts)


def chunks(file: BinaryIO | bytes, artifact: MegaArtifact) -> Iterator[bytes]:
    """Yield the content of ``artifact`` in pieces of at most 1 MiB.

    Args:
        file: What ``artifact`` was read from. It may be moved between two pieces: each one seeks to its own place.
        artifact: As ``read`` gave it.

    Raises:
        TruncatedError: The file has become shorter since.
        OSError: As ``file`` raises it.
    """
    cursor = _Cursor(_as_file(file), "")
    what = f"content of {artifact.kind} artifact {artifact.key!r}"
    end = artifact.offset + artifact.size
    for offset in range(artifact.offset, end, _CHUNK_BYTES):
        cursor.offset = offset
        yield cursor.take(min(_CHUNK_BYTES, end - offset), what)


def artifact_digest(file: BinaryIO | bytes, artifact: MegaArtifact) -> Digest:
    """Return the SHA-256 of the content of ``artifact``; raises as ``chunks`` does."""
    sha256 = hashlib.sha256()
    for chunk in chunks(file, artifact):
        sha256.update(chunk)
    return Digest(sha256.digest())


def place(artifact: MegaArtifact, digest: Digest) -> Placed | LeftOut:
    """Tell which file of an Inductor root torch would make of ``artifact``.

    Of several artifacts with one path, torch keeps the last one in file order; do the same.

    Args:
        artifact: As ``read`` gave it.
        digest: SHA-256 of its content, for the kinds that name a file by it (``artifact_digest``).

    Returns:
        The file, whose bytes are the content unchanged; or a reason, for a kind that torch does not have and for a PGO
        key that torch rewrites to the name of the cluster job that loads it.

    Raises:
        UnsafePathError: The key leads out of the place of its kind (``..``, absolute, a separator or NUL where none
            belongs), or to a file that this kind does not write. ``path`` is the key.

    Source: the ``populate_cache`` of each kind; see the table at the top.
    """
    rule = _RULES.get(artifact.kind)
    if rule is None:
        return LeftOut(f"kind {artifact.kind!r} is not one of torch's own: only what registered it knows its place")
    parts = rule(artifact.key, _file_name(digest))
    return parts if isinstance(parts, LeftOut) else Placed("/".join(parts), artifact.offset, artifact.size)


def _inductor(key: str, name: str) -> tuple[str, ...]:
    # key[1:3] is a directory of its own: "a.." would pass as a name, and its ".." would climb.
    return ("fxgraph", _component(key[1:3], key), _component(key, key), name)


def _aot_autograd(key: str, name: str) -> tuple[str, ...]:
    return ("aotautograd", _component(key, key), name)


def _autotune(key: str, name: str) -> tuple[str, ...]:
    # Elsewhere than in `<directory>/<name>.best_config` an autotune artifact could replace a module that torch imports.
    directory, _, file_name = key.partition("/")
    if not file_name.endswith(".best_config"):
        raise UnsafePathError(key, "an autotune key is DIRECTORY/NAME.best_config")
    return (_component(directory, key), _component(file_name, key))


def _pgo(key: str, name: str) -> tuple[str, ...] | LeftOut:
    if key.startswith("mast:"):
        return LeftOut("torch rewrites a PGO key of a MAST job to the name of the job that loads it")
    file_name = re.sub(r'[<>:"/\\|?*]', "_", f"code_state_{key}.pkl")  # as torch/_dynamo/pgo.py, code_state_path
    if _CONTROL.search(file_name):
        raise UnsafePathError(key, "a control character in the key")
    return ("dynamo", _short(file_name, key))


def _precompile(key: str, name: str) -> tuple[str, ...]:
    return ("dynamo", _component(key, key), "entry")


_RULES: dict[str, Callable[[str, str], tuple[str, ...] | LeftOut]] = {
    "inductor": _inductor,
    "autotune": _autotune,
    "aot_autograd": _aot_autograd,
    "pgo": _pgo,
    "precompile": _precompile,
}


def _component(component: str, key: str) -> str:
    if not _COMPONENT.fullmatch(component):
        raise UnsafePathError(key, f"{component!r} is not a file name that torch makes (letters, digits, _ - and .)")
    return _short(component, key)


def _short(component: str, key: str) -> str:
    size = len(component.encode())
    if size > MAX_NAME_SIZE:
        raise UnsafePathError(key, f"a file name of {size} bytes, the limit is {MAX_NAME_SIZE}")
    return component


def _file_name(digest: Digest) -> str:
    # 51 of 52 digits, as torch/_inductor/codecache.py, sha256_hash: the last one holds a single bit.
    return base64.b32encode(digest.value)[:51].decode("ascii").lower()


def _as_file(file: BinaryIO | bytes) -> BinaryIO:
    return io.BytesIO(file) if isinstance(file, bytes) else file  # BytesIO shares the bytes, it does not copy them


def _text(raw: bytes) -> str:
    """Decode base64 of UTF-8 in its one canonical spelling; ValueError (with a reason) for anything else."""
    try:
        decoded = base64.b64decode(raw)
    except binascii.Error as error:
        raise ValueError("not base64") from error
    if base64.b64encode(decoded) != raw:  # b64decode skips foreign characters and ignores the last digit's spare bits
        raise ValueError("not canonical base64")
    try:
        return decoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error


def _mismatch(expected: int, actual: int, name: str) -> DigestMismatchError:
    return DigestMismatchError(name or "mega cache", f"crc32:{expected:08x}", f"crc32:{actual:08x}", 0)


def _sections(cursor: _Cursor) -> Iterator[MegaArtifact]:
    """Walk the file behind the checksum and yield each artifact; the cursor ends at the end of the file."""
    cursor.offset = _CRC_BYTES
    version = cursor.uint64("version")
    if version != VERSION:
        raise UnsupportedVersionError(version, (VERSION,), _CRC_BYTES, cursor.name)
    sections = total = 0
    while cursor.left:
        sections += 1
        cursor.limit("count of sections", sections, MAX_SECTIONS)
        kind = _kind(cursor)
        count = _count(cursor, total)
        total += count
        for _ in range(count):
            yield _artifact(cursor, kind)


def _kind(cursor: _Cursor) -> str:
    start = cursor.offset
    kind = cursor.text("kind", MAX_KIND_BYTES)
    if not _KIND.fullmatch(kind):
        raise FormatError(f"kind {kind!r} is not a name", start + _UINT64_BYTES, cursor.name)
    return kind


def _count(cursor: _Cursor, total: int) -> int:
    count = cursor.uint64("count of artifacts")
    cursor.limit("count of artifacts", total + count, MAX_ARTIFACTS)
    cursor.require(count * _MIN_ARTIFACT_BYTES, f"section of {count} artifacts")
    return count


def _artifact(cursor: _Cursor, kind: str) -> MegaArtifact:
    key = cursor.text(f"key of {kind} artifact", MAX_KEY_BYTES)
    size = cursor.length(f"content of {kind} artifact")
    artifact = MegaArtifact(kind, key, cursor.offset, size)
    cursor.offset += size
    return artifact


class _Cursor:
    """A place in a file of known size. Nothing is read before it is known to be there, so no length can mislead."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file = file
        self.name = name
        self.size = file.seek(0, io.SEEK_END)
        self.offset = 0

    @property
    def left(self) -> int:
        """Bytes from here to the end."""
        return self.size - self.offset

    def take(self, size: int, what: str) -> bytes:
        """Read ``size`` bytes and step over them."""
        self.require(size, what)
        self.file.seek(self.offset)
        parts: list[bytes] = []
        missing = size
        while missing:  # an unbuffered file may give less than asked for
            part = self.file.read(missing)
            if not part:  # somebody made the file shorter
                raise TruncatedError(self.offset, size, size - missing, what, self.name)
            parts.append(part)
            missing -= len(part)
        self.offset += size
        return b"".join(parts)

    def uint64(self, what: str) -> int:
        """Read one integer."""
        return int.from_bytes(self.take(_UINT64_BYTES, what), "big")

    def length(self, what: str) -> int:
        """Read a length and check it against the bytes left."""
        size = self.uint64(f"length of {what}")
        self.require(size, what)
        return size

    def text(self, what: str, limit: int) -> str:
        """Read a length of at most ``limit`` bytes, and that much base64."""
        size = self.uint64(f"length of {what}")
        self.limit(f"length of {what} in bytes of base64", size, limit)
        start = self.offset
        try:
            return _text(self.take(size, what))
        except ValueError as error:
            raise FormatError(f"{what} is {error}", start, self.name) from error

    def limit(self, what: str, size: int, limit: int) -> None:
        """Raise LimitExceededError when ``size`` is above ``limit``."""
        if size > limit:
            raise LimitExceededError(what, size, limit, self.name)

    def checksums(self) -> tuple[int, int]:
        """Return the CRC32 that the file states and the one that it has."""
        self.require(_PREAMBLE_BYTES, "checksum and version")
        expected = int.from_bytes(self.take(_CRC_BYTES, "checksum"), "big")
        actual = 0
        while self.left:
            actual = zlib.crc32(self.take(min(_CHUNK_BYTES, self.left), "mega cache"), actual)
        return expected, actual

    def require(self, size: int, what: str) -> None:
        """Raise TruncatedError unless ``size`` more bytes are there."""
        if size > self.left:
            raise TruncatedError(self.offset, size, self.left, what, self.name)
