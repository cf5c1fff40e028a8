"""Python's byte code files (``.pyc``) read as a row of marked values, never loaded: whose they are, and where one ends.

Nothing here unmarshals: a value is stepped over by its type and its length. That finds a file that was cut short, which
Python itself finds only when an import of it fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bundler.errors import FormatError

__all__ = ["HEADER_SIZE", "ByteCode", "parse", "tag_of"]

HEADER_SIZE = 16
"""Bytes: magic number (4), flags (4), and what the source was (8)."""

_BY_HASH, _CHECKED = 1, 2  # bits of the flags: PEP 552

# First magic number -> Python, and how its code objects are laid out: integers of 4 bytes before the values, values,
# values behind the line number. Between two releases the number grows with each change. Source: CPython
# Lib/importlib/_bootstrap_external.py or Include/internal/pycore_magic_number.h, and Python/marshal.c.
_RELEASES = (
    (3430, "cpython-310", (6, 8, 1)),
    (3450, "cpython-311", (5, 8, 2)),
    (3500, "cpython-312", (5, 8, 2)),
    (3550, "cpython-313", (5, 8, 2)),
    (3600, "cpython-314", (5, 8, 2)),
)
_END = 3650  # first number of a Python that is not known here

_TAG = re.compile(r".*\.((?:cpython-|pypy|graalpy)\d+)[^/]*\.pyc", re.DOTALL)

# How far a value reaches, as one number per type byte: above 0, bytes of the whole value; below, one of these.
_UNKNOWN = -1
_COUNTED_1 = -2  # bytes behind a length of 1 or 4 bytes
_COUNTED_4 = -3
_VALUES_1 = -4  # values behind their number, of 1 or 4 bytes
_VALUES_4 = -5
_SLICE = -6
_DIGITS = -7  # of 2 bytes, behind their number; the sign of the number is that of the integer
_CODE = -8
_TYPES = {
    "NFTS.": 1,
    "ir": 5,
    "g": 9,
    "y": 17,
    "zZ": _COUNTED_1,
    "staAu": _COUNTED_4,
    ")": _VALUES_1,
    "([<>": _VALUES_4,
    ":": _SLICE,
    "l": _DIGITS,
    "c": _CODE,
}
_REFERRED = 0x80  # bit of a type byte: the value is referred to later
_STEPS = [_UNKNOWN] * 256
for _letters, _step in _TYPES.items():
    for _letter in _letters:
        _STEPS[ord(_letter)] = _STEPS[ord(_letter) | _REFERRED] = _step


@dataclass(frozen=True, slots=True)
class ByteCode:
    """What a ``.pyc`` says of itself.

    Attributes:
        magic: Number of the Python that can read it, the first two bytes.
        python: Tag of that Python, such as ``cpython-311``; "" when it is not known here.
        by_hash: Whether ``source`` is a hash of the source; else time of change and size of it.
        checked: Whether Python compares that hash with the source before it uses the file.
        source: What the source was, 8 bytes.
    """

    magic: int
    python: str
    by_hash: bool
    checked: bool
    source: bytes

    @property
    def stamp(self) -> tuple[int, int]:
        """Time of change and size of the source (seconds, bytes; each modulo 2 to the 32), where not ``by_hash``."""
        return int.from_bytes(self.source[:4], "little"), int.from_bytes(self.source[4:], "little")


def tag_of(name: str) -> str:
    """Return the tag in a file name, ``cpython-311`` of ``a.cpython-311.opt-1.pyc``: Python looks for its own only."""
    match = _TAG.fullmatch(name)
    return match[1] if match else ""


def parse(data: bytes) -> ByteCode:
    """Read the header of a ``.pyc``, and step over the code behind it.

    Args:
        data: All of the file.

    Raises:
        FormatError: No header, flags that no Python writes, code that is cut short, that holds what no compiler puts
            there, or that something follows. The code of a Python that is not known here is not looked at.

    Source: PEP 552; CPython ``Python/marshal.c``.
    """
    if len(data) < HEADER_SIZE:
        raise FormatError(f"byte code is cut short: {len(data)} bytes, and the header alone has {HEADER_SIZE}", 0)
    if data[2:4] != b"\r\n":
        raise FormatError(f"no magic number of Python: it starts with {data[:4].hex(' ')}", 0)
    flags = int.from_bytes(data[4:8], "little")
    if flags not in (0, _BY_HASH, _BY_HASH | _CHECKED):
        raise FormatError(f"byte code with flags {flags:#x}, which no Python writes", 4)
    magic = int.from_bytes(data[:2], "little")
    python, layout = _release(magic)
    if layout is not None:
        _step_over(data, layout)
    return ByteCode(magic, python, bool(flags & _BY_HASH), bool(flags & _CHECKED), data[8:HEADER_SIZE])


def _release(magic: int) -> tuple[str, tuple[int, int, int] | None]:
    found: tuple[str, tuple[int, int, int] | None] = ("", None)
    if magic < _END:
        for first, python, layout in _RELEASES:
            if first <= magic:
                found = (python, layout)
    return found


def _step_over(raw: bytes, layout: tuple[int, int, int]) -> None:
    """Step over one code object. No recursion: what is left to read of the values around it is a number."""
    numbers, values, behind = layout
    steps, number = _STEPS, int.from_bytes
    size, at, left = len(raw), HEADER_SIZE, 1
    around: list[int] = []  # values left behind each code object that is open
    if size > at and raw[at] & ~_REFERRED != ord("c"):
        raise FormatError(f"byte code holds no code, but a value of type {raw[at]:#x}", at)
    try:
        while True:
            while left:
                step = steps[raw[at]]
                left -= 1
                if step > 0:
                    at += step
                elif step == _COUNTED_1:  # names, most of all
                    at += 2 + raw[at + 1]
                elif step == _VALUES_1:
                    left += raw[at + 1]
                    at += 2
                elif step == _COUNTED_4:
                    at += 5 + number(raw[at + 1 : at + 5], "little")
                elif step == _CODE:
                    at += 1 + 4 * numbers
                    around.append(left)
                    left = values
                elif step == _VALUES_4:
                    left += number(raw[at + 1 : at + 5], "little")
                    at += 5
                elif step == _DIGITS:
                    at += 5 + 2 * abs(number(raw[at + 1 : at + 5], "little", signed=True))
                elif step == _SLICE:
                    left += 3
                    at += 1
                else:
                    raise FormatError(f"byte code holds a value of type {raw[at]:#x}, which no compiler writes", at)
            if not around:
                break
            at += 4  # the line number
            left = around.pop() + behind
    except IndexError:  # past the end there is no byte to look up, which spares a look at the size for each value
        raise FormatError(f"byte code is cut short: {size} bytes, and the code goes on", size) from None
    if at != size:
        what = "the code goes on" if at > size else f"the code ends at byte {at}"
        raise FormatError(f"byte code is cut short or overlong: {size} bytes, and {what}", min(at, size))
