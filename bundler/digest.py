"""SHA-256 digests: one type, so that a digest is never a bare string of unknown spelling."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["Digest"]

_SIZE = 32  # bytes of a SHA-256
_PREFIX = "sha256:"


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256. ``value`` is the raw 32 bytes; ``str()`` gives ``sha256:`` and 64 lower-case hex digits.

    Law: ``Digest.parse(str(d)) == d``.

    Raises:
        ValueError: ``value`` is not 32 bytes.
    """

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != _SIZE:
            raise ValueError(f"a SHA-256 has {_SIZE} bytes, not {len(self.value)}")

    def __str__(self) -> str:
        return _PREFIX + self.value.hex()

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        """Return the digest of ``data`` (any C-contiguous buffer of bytes)."""
        return cls(hashlib.sha256(data).digest())

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read ``sha256:<hex>``; the hex digits alone are accepted too, in either case.

        Raises:
            ValueError: Another algorithm, or not 64 hex digits.
        """
        digits = text.removeprefix(_PREFIX)
        if len(digits) != 2 * _SIZE:
            raise ValueError(f"{text!r} is not a digest: expected {_PREFIX} and {2 * _SIZE} hex digits")
        return cls(bytes.fromhex(digits))
