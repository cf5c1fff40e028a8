"""One zstd frame (RFC 8878) <-> its bytes, with nothing taken on trust.

zstandard ignores ``max_output_size`` once a frame declares its size, and accepts bytes after the frame by default. So
the declared size is compared with the index first, and the frame must be all there is.
"""

from __future__ import annotations

import os

import zstandard

from bundler.errors import FormatError, LimitExceededError
from bundler.formats.limits import WINDOW_LOG

__all__ = ["compress", "decompress"]

# Caches hold many variants of few texts, where long matches are worth more than many short ones. Up to level 4 zstd
# would look for matches of 5 bytes in two tables; one table and matches of 7 bytes give less, in less time.
_QUICK_LEVELS = 4
_QUICK: dict[str, int] = {"strategy": zstandard.STRATEGY_FAST, "min_match": 7, "hash_log": 17}

# From here on all levels are one: one pass, matches of 4 bytes and more. Of a real cache zstd's own 22 makes 0.5 %
# less, in more than twice the time.
_THOROUGH_LEVEL = 19
_THOROUGH: dict[str, int] = {"strategy": zstandard.STRATEGY_BTULTRA, "min_match": 4}

# Between these, two threads take half of a block each; the second reads a part of the other half first (1/8 of the
# window), and a frame is some 0.5 % larger. They need copies of the block: a full one would take 150 MB more.
_SPLIT_FROM, _SPLIT_TO = 4 << 20, 32 << 20  # bytes
_OVERLAP = 6


def compress(data: bytes | bytearray | memoryview, level: int) -> bytes:
    """Return ``data`` as one frame that declares its size and ends in a checksum.

    Args:
        data: Any C-contiguous buffer of bytes.
        level: zstd level, 1 to 22.
    """
    try:
        return _compress(data, level, threads=min(2, _processors()))
    except zstandard.ZstdError:  # zstd's own threads may not be started: a limit of processes
        return _compress(data, level, threads=0)


def _compress(data: bytes | bytearray | memoryview, level: int, *, threads: int) -> bytes:
    own: dict[str, int] = {}
    if level <= _QUICK_LEVELS:
        own, level = _QUICK, 1
    elif _SPLIT_FROM <= len(data) <= _SPLIT_TO:
        # One thread gives the same bytes as two, so that a frame does not tell how many a host could use.
        own = {"threads": threads, "job_size": (len(data) + 1) // 2, "overlap_log": _OVERLAP}
    if level >= _THOROUGH_LEVEL and len(data) >= _SPLIT_FROM:  # what is small is quick anyway
        own, level = own | _THOROUGH, _THOROUGH_LEVEL
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        window_log=WINDOW_LOG,
        source_size=len(data),
        write_content_size=1,
        write_checksum=1,
        **own,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decompress(frame: bytes | memoryview, raw_size: int, *, what: str, offset: int, name: str) -> bytes:
    """Return the ``raw_size`` bytes of a frame.

    Args:
        frame: Exactly one frame.
        raw_size: Bytes that it must declare and hold; the caller has compared it with its limit.
        what: The part of the bundle, for messages.
        offset: Where the frame starts, for messages, in bytes of the file.
        name: The file, for messages.

    Raises:
        FormatError: Not one whole frame of ``raw_size`` bytes with a checksum, a dictionary is asked for, or bytes
            follow.
        LimitExceededError: The window is larger than ``WINDOW_LOG`` allows.
    """
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} is not a zstd frame: {error}", offset, name) from error
    if parameters.content_size != raw_size:
        raise FormatError(f"{what} declares {parameters.content_size} bytes, the index says {raw_size}", offset, name)
    if parameters.dict_id:
        raise FormatError(f"{what} asks for dictionary {parameters.dict_id}, the format has none", offset, name)
    if not parameters.has_checksum:
        raise FormatError(f"{what} does not end in a checksum", offset, name)
    if parameters.window_size > 1 << WINDOW_LOG:
        raise LimitExceededError(f"window of {what} in bytes", parameters.window_size, 1 << WINDOW_LOG, name)
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        return decompressor.decompress(frame, max_output_size=raw_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} does not decompress: {error}", offset, name) from error
