"""The fixed-size start of a bundle: magic, version, sizes of the sections, digest of the index. FORMAT.md section 2."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from bundler.errors import FormatError, LimitExceededError, NotABundleError, TruncatedError, UnsupportedVersionError
from bundler.formats.limits import MAX_INDEX_RAW_SIZE, MAX_INDEX_SIZE, MAX_SIGNATURE_SIZE

__all__ = ["HEADER_FIELDS", "HEADER_SIZE", "MAGIC", "VERSION", "Header"]

# As in PNG: a byte above 127 shows a 7-bit channel, CR LF shows line-end conversion, and 0x1a stops `type` on DOS.
MAGIC = b"\x89TBL\r\n\x1a\n"
VERSION = 1

# (field, struct code, bytes); FORMAT.md's table is compared with this one by a test.
HEADER_FIELDS: tuple[tuple[str, str, int], ...] = (
    ("magic", "8s", 8),
    ("version", "H", 2),
    ("flags", "H", 2),
    ("signature_size", "I", 4),
    ("index_size", "Q", 8),
    ("index_raw_size", "Q", 8),
    ("payload_size", "Q", 8),
    ("index_digest", "32s", 32),
)
_STRUCT = struct.Struct("<" + "".join(code for _, code, _ in HEADER_FIELDS))
HEADER_SIZE = _STRUCT.size


@dataclass(frozen=True, slots=True)
class Header:
    """Sizes in bytes; ``index_digest`` is the raw SHA-256 of the index as stored."""

    index_size: int
    index_raw_size: int
    payload_size: int
    index_digest: bytes
    signature_size: int = 0

    @property
    def payload_offset(self) -> int:
        """Bytes from the start of the file to the first frame."""
        return HEADER_SIZE + self.index_size + self.signature_size

    @property
    def bundle_size(self) -> int:
        """Bytes of the whole file."""
        return self.payload_offset + self.payload_size

    def encode(self) -> bytes:
        """Return the ``HEADER_SIZE`` bytes."""
        return _STRUCT.pack(
            MAGIC,
            VERSION,
            0,
            self.signature_size,
            self.index_size,
            self.index_raw_size,
            self.payload_size,
            self.index_digest,
        )

    @classmethod
    def decode(cls, data: bytes, *, name: str = "") -> Header:
        """Read the first ``HEADER_SIZE`` bytes of a file.

        Raises:
            NotABundleError: Another magic.
            TruncatedError: A bundle's magic, but fewer bytes than a header.
            UnsupportedVersionError: Another version.
            FormatError: A flag that version 1 does not know.
            LimitExceededError: A section larger than its limit.
        """
        if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
            raise NotABundleError(f"it starts with {data[:8].hex(' ') or 'nothing'}, not {MAGIC.hex(' ')}", 0, name)
        if len(data) < HEADER_SIZE:
            raise TruncatedError(0, HEADER_SIZE, len(data), "the header", name)
        _, version, flags, signature, index, index_raw, payload, digest = _STRUCT.unpack_from(data)
        if version != VERSION:
            raise UnsupportedVersionError(version, (VERSION,), 8, name)
        if flags:
            raise FormatError(f"header flags are {flags:#06x}, version 1 knows none", 10, name)
        for what, size, limit in (
            ("bytes of the signature section", signature, MAX_SIGNATURE_SIZE),
            ("bytes of the index", index, MAX_INDEX_SIZE),
            ("bytes of the index decompressed", index_raw, MAX_INDEX_RAW_SIZE),
        ):
            if size > limit:
                raise LimitExceededError(what, size, limit, name)
        return cls(index, index_raw, payload, digest, signature)
