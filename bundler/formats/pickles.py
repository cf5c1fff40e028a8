"""Pickles read as a row of opcodes, never loaded: where one ends, where its long byte strings lie, what times it notes.

Nothing here builds an object, imports a name or follows a reference. The opcode table is made from the running
Python's own ``pickletools.opcodes``, so that a later protocol is read as far as that Python knows it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bundler.errors import FormatError

__all__ = ["Walk", "compile_nanoseconds", "walk"]

MAX_NANOSECONDS = 30 * 86400 * 10**9  # thirty days: a larger figure is no compile time, and a sum must fit 64 bits
MAX_FIGURES = 1000  # figures that one pickle may contribute; torch writes one or two

_TAIL = b"_time_taken_ns"  # the whole name in an FX graph entry, and the end of the others
_AUTOGRAD_NAMES = (b"forward_time_taken_ns", b"backward_time_taken_ns")

# How far an opcode reaches, as one number per opcode byte, so that the loop needs one look-up for most of them:
# above 0, bytes of the whole instruction (at most 9); below, one of these.
_STOP = -1
_UNKNOWN = -2
_LINE = -3  # text up to and including a newline
_TWO_LINES = -4
_COUNTED_1 = -5  # a byte string behind a length of 1, 4 or 8 bytes
_COUNTED_4 = -6
_COUNTED_4_SIGNED = -7
_COUNTED_8 = -8
_NUMBER_1 = -9  # a long integer behind a length: never listed as a byte string
_NUMBER_4_SIGNED = -10

# pickletools.ArgumentDescriptor.name -> how far. A name that a later Python adds makes its opcode unknown, not wrong.
_BY_ARGUMENT = {
    "decimalnl_short": _LINE,
    "decimalnl_long": _LINE,
    "stringnl": _LINE,
    "stringnl_noescape": _LINE,
    "stringnl_noescape_pair": _TWO_LINES,
    "unicodestringnl": _LINE,
    "floatnl": _LINE,
    "long1": _NUMBER_1,
    "long4": _NUMBER_4_SIGNED,
    "string1": _COUNTED_1,
    "string4": _COUNTED_4_SIGNED,
    "bytes1": _COUNTED_1,
    "bytes4": _COUNTED_4,
    "bytes8": _COUNTED_8,
    "bytearray8": _COUNTED_8,
    "unicodestring1": _COUNTED_1,
    "unicodestring4": _COUNTED_4,
    "unicodestring8": _COUNTED_8,
}
_LENGTH_SIZE = {
    _COUNTED_1: 1,
    _COUNTED_4: 4,
    _COUNTED_4_SIGNED: 4,
    _COUNTED_8: 8,
    _NUMBER_1: 1,
    _NUMBER_4_SIGNED: 4,
}
_SIGNED = frozenset({_COUNTED_4_SIGNED, _NUMBER_4_SIGNED})
_STRINGS = frozenset({_COUNTED_1, _COUNTED_4, _COUNTED_4_SIGNED, _COUNTED_8})


@dataclass(frozen=True, slots=True)
class Walk:
    """What a pickle is made of.

    Attributes:
        end: Bytes up to and including STOP.
        long: (offset, length) in bytes of the argument of every opcode that carries a counted string of bytes or text,
            long enough to be asked for; in the order of the pickle. The offset is that of the first byte of the string,
            behind opcode and length.
    """

    end: int
    long: list[tuple[int, int]]


def walk(data: bytes | memoryview, *, min_size: int = 64) -> Walk:
    """Step over every opcode of one pickle.

    Args:
        data: Exactly one pickle of any protocol. A ``bytes`` is read in place; anything else is copied once.
        min_size: Shortest string listed, in bytes.

    Raises:
        FormatError: An opcode that this Python does not know, an argument past the end, no STOP, or bytes behind it;
            ``offset`` counts from the start of ``data``. The value of an argument (decimal digits, UTF-8) and the
            stack that the opcodes would build are not looked at.

    Source: CPython ``Lib/pickletools.py``, whose ``genops`` this agrees with wherever that one reads a pickle.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    steps = _steps()
    long: list[tuple[int, int]] = []
    size, at = len(raw), 0
    try:
        while True:
            step = steps[raw[at]]
            if step > 0:
                at += step
            elif step == _COUNTED_1:  # most strings of a cache entry are names shorter than 256 bytes
                length = raw[at + 1]
                at += 2
                if length >= min_size:
                    long.append((at, length))
                at += length
            elif step == _STOP:
                break
            else:
                start, end = _argument(raw, at, step)
                if end - start >= min_size and step in _STRINGS:
                    long.append((start, end - start))
                at = end
    except IndexError:
        # Those steps are taken unchecked, which is what makes the loop quick: past the end there is no byte to look up.
        raise FormatError(f"pickle is cut short: {size} bytes, and no STOP among the opcodes", size) from None
    if at + 1 != size:
        raise FormatError(f"pickle: STOP at byte {at}, but {size - at - 1} bytes follow", at + 1)
    return Walk(at + 1, long)


def compile_nanoseconds(data: bytes | memoryview) -> int:
    """Return how long torch says that it took to make a cache entry, in nanoseconds; 0 when it does not say.

    An FX graph entry notes ``_time_taken_ns``: Inductor's time for that graph. An AOTAutograd entry notes
    ``forward_time_taken_ns``, from the start of tracing until the forward graph was compiled, and
    ``backward_time_taken_ns``; their sum is returned. The second *is* the ``_time_taken_ns`` of its backward FX graph
    and the first *includes* that of its forward one, each of which is an entry of its own: to sum over a cache, leave
    out the FX graph entries whose key stands in an AOTAutograd entry. (When the backward is compiled ahead, as newer
    torch does for some graphs, the forward figure includes it too: torch counts that time twice, and so does this.)
    An entry that holds both kinds of figure, as a bundled AOTAutograd entry does, counts as AOTAutograd.
    ``precompile_time_taken_ns`` and ``autotune_time_taken_ns`` of single kernels are not counted; torch stores zeros.

    Only names spelt out in the pickle are found (a repeated name may be a reference to the first), and a value that is
    not a plain integer between 0 and thirty days counts as 0. Never raises: the figure is for display, and
    whether the pickle is sound is for :func:`walk` to say.

    Args:
        data: The whole entry.

    Source: torch 2.11 to 2.13, ``_inductor/output_code.py`` (``CompiledFxGraph``), ``_inductor/compile_fx.py``,
        ``_functorch/_aot_autograd/aot_autograd_result.py`` and ``graph_compile.py``; checked on entries of 2.11
        and 2.13.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    autograd: list[int] = []
    graph: list[int] = []
    at = raw.find(_TAIL)
    while at >= 0 and len(autograd) + len(graph) < MAX_FIGURES:
        end = at + len(_TAIL)
        value = _integer(raw, _after_memo(raw, end))
        if value is not None and 0 <= value <= MAX_NANOSECONDS:
            if any(_is_string(raw, name, end) for name in _AUTOGRAD_NAMES):
                autograd.append(value)
            elif _is_string(raw, _TAIL, end):
                graph.append(value)
        at = raw.find(_TAIL, end)
    return sum(autograd or graph)


@functools.cache
def _steps() -> tuple[int, ...]:
    """Make the table: opcode byte -> how far. At the first walk, since ``pickletools`` costs some ms to import."""
    import pickletools

    steps = [_UNKNOWN] * 256
    for opcode in pickletools.opcodes:
        argument = opcode.arg
        if argument is None:
            step = 1
        elif argument.n >= 0:
            step = 1 + argument.n
        else:
            step = _BY_ARGUMENT.get(argument.name, _UNKNOWN)
        steps[ord(opcode.code)] = _STOP if opcode.name == "STOP" else step
    return tuple(steps)


def _argument(raw: bytes, at: int, step: int) -> tuple[int, int]:
    """Return where the argument of the opcode at ``at`` starts (behind its length) and ends."""
    if step == _UNKNOWN:
        raise FormatError(f"pickle: 0x{raw[at]:02x} is no opcode", at)
    if step in (_LINE, _TWO_LINES):
        end = raw.find(b"\n", at + 1) + 1
        if end and step == _TWO_LINES:
            end = raw.find(b"\n", end) + 1
        if not end:
            raise FormatError(f"pickle: the argument of opcode 0x{raw[at]:02x} has no end of line", at)
        return at + 1, end
    start = at + 1 + _LENGTH_SIZE[step]
    if start > len(raw):
        raise IndexError  # as a fixed step past the end
    length = int.from_bytes(raw[at + 1 : start], "little", signed=step in _SIGNED)
    if length < 0:
        raise FormatError(f"pickle: opcode 0x{raw[at]:02x} has {length} bytes", at)
    if start + length > len(raw):
        what = f"pickle is cut short: opcode 0x{raw[at]:02x} has {length} bytes, {len(raw) - start} are there"
        raise FormatError(what, at)
    return start, start + length


def _is_string(raw: bytes, name: bytes, end: int) -> bool:
    """Whether the string that ends at ``end`` is ``name`` and no longer one: opcode and length stand before it."""
    # SHORT_BINUNICODE since protocol 4, BINUNICODE before. Protocols 0 and 1 write numbers as text; no cache uses them.
    short = b"\x8c" + len(name).to_bytes(1, "little") + name
    return raw.endswith((short, b"X" + len(name).to_bytes(4, "little") + name), 0, end)


def _after_memo(raw: bytes, at: int) -> int:
    """Step over what remembers the string just read: MEMOIZE, BINPUT or LONG_BINPUT."""
    return at + {b"\x94": 1, b"q": 2, b"r": 5}.get(raw[at : at + 1], 0)


def _integer(raw: bytes, at: int) -> int | None:
    """Return the integer whose opcode is at ``at``; None for any other opcode, and past the end."""
    opcode = raw[at : at + 1]
    at += 1
    if opcode == b"\x8a":  # LONG1
        size, at = int.from_bytes(raw[at : at + 1], "little"), at + 1
    else:
        size = {b"K": 1, b"M": 2, b"J": 4}.get(opcode, -1)  # BININT1, BININT2, BININT
    value = raw[at : at + size] if size >= 0 else b""
    if size < 0 or len(value) < size:
        return None
    return int.from_bytes(value, "little", signed=opcode in (b"\x8a", b"J"))
