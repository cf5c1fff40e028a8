"""Limits of the format, each with its unit and its reason. A reader checks them before it allocates memory."""

from __future__ import annotations

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "DEFAULT_LEVEL",
    "MAX_BLOCK_SIZE",
    "MAX_CONTENT_SIZE",
    "MAX_COUNT",
    "MAX_DEPTH",
    "MAX_EXPANSION",
    "MAX_FRAME_SIZE",
    "MAX_FREE_EXPANSION",
    "MAX_INDEX_RAW_SIZE",
    "MAX_INDEX_SIZE",
    "MAX_INDEX_VALUES",
    "MAX_LEVEL",
    "MAX_NAME_SIZE",
    "MAX_PATH_SIZE",
    "MAX_PLACEHOLDERS",
    "MAX_RELOCATED_SIZE",
    "MAX_SIGNATURE_SIZE",
    "WINDOW_LOG",
]

WINDOW_LOG = 27
"""Largest zstd window accepted, as a power of two in bytes (128 MiB): what ``zstd --long=27`` writes."""

MAX_BLOCK_SIZE = 64 << 20
"""Raw bytes of one frame. A reader holds one block in memory; decoding 64 MiB takes some tens of milliseconds."""

MAX_FRAME_SIZE = MAX_BLOCK_SIZE + (MAX_BLOCK_SIZE >> 7)
"""Bytes of a frame as stored, which a reader holds too: a block that does not shrink, and what zstd adds (1/256)."""

DEFAULT_BLOCK_SIZE = MAX_BLOCK_SIZE
"""Raw bytes at which a writer starts the next frame."""

DEFAULT_LEVEL = 3
"""zstd level of ``pack``: of a real cache it makes a quarter more than level 9, in a seventh of zstd's time."""

MAX_LEVEL = 22
"""zstd's own greatest level."""

MAX_INDEX_SIZE = 32 << 20
"""Bytes of the index as stored. 1,000 files take about 50 KB."""

MAX_INDEX_RAW_SIZE = 64 << 20
"""Bytes of the index decompressed. Decoded into Python objects it takes some 20 times as much at worst."""

MAX_INDEX_VALUES = 1 << 22
"""Arrays and maps of the index, and the items in them: some ten a file. An empty array is 1 byte, and 100 in memory."""

MAX_SIGNATURE_SIZE = 64 << 10
"""Bytes of the signature section."""

MAX_COUNT = 1 << 20
"""Entries, contents, frames, and files of one entry, each."""

MAX_NAME_SIZE = 255
"""UTF-8 bytes of one path component: what Linux file systems take."""

MAX_PATH_SIZE = 4095
"""UTF-8 bytes of a path inside a root: PATH_MAX less the final NUL."""

MAX_DEPTH = 128
"""Parts of a path inside a root. Caches have up to ten; a path of ``MAX_PATH_SIZE`` could have 2,000."""

MAX_CONTENT_SIZE = 1 << 40
"""Bytes of one content."""

MAX_RELOCATED_SIZE = MAX_BLOCK_SIZE
"""Bytes of a content with placeholders: a restore holds it whole."""

MAX_PLACEHOLDERS = 1 << 16
"""Placeholders of one file. Each may become a path of ``MAX_PATH_SIZE`` bytes."""

MAX_EXPANSION = 20_000
"""Bytes of files, and ``MAX_PATH_SIZE`` for each placeholder and each part of a path, per byte of bundle.

A tree of 2,000 equal layers comes near 10,000; zstd alone can reach 16,000.
"""

MAX_FREE_EXPANSION = 1 << 30
"""Such bytes below which the expansion is not looked at."""
