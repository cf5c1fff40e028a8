"""Sizes and times as people write them on a command line."""

from __future__ import annotations

import re

__all__ = ["duration", "size"]

_SIZES = {"": 1, "b": 1}
_SIZES |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_SIZES |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")


def size(text: str) -> int:
    """Read bytes: ``1000000``, ``500MB``, ``1.5GiB``.

    Raises:
        ValueError: It is no such text.

    Example:
        >>> size("2KB"), size("1.5 MiB")
        (2000, 1572864)
    """
    return int(_read(text, _SIZES, "size", "500MB, 1.5GiB, or a number of bytes"))


def duration(text: str) -> float:
    """Read seconds: ``90``, ``36h``, ``14d``.

    Raises:
        ValueError: It is no such text.
    """
    return _read(text, _SECONDS, "time", "14d, 36h, 30m, or a number of seconds")


def _read(text: str, units: dict[str, int], what: str, examples: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is no {what}: write {examples}")
    return float(match[1]) * units[match[2].lower()] if "." in match[1] else int(match[1]) * units[match[2].lower()]
