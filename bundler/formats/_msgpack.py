"""msgpack in one spelling: written one way, and refused when it is spelled any other way.

msgpack keeps the last of two equal keys, and reads integers and lengths in longer spellings than they need. Two readers
could then see two indexes in one file. So what was decoded is encoded again, and the bytes must be the same.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgpack

from bundler.errors import FormatError, LimitExceededError
from bundler.formats.limits import MAX_INDEX_VALUES

__all__ = ["decode", "encode"]

_MAX_DEPTH = 32  # of nested maps and arrays; the index has 5

_PLAIN = frozenset({type(None), bool, int, str, bytes})

_Items = TypeVar("_Items", list[Any], dict[str, Any])


def encode(value: Any) -> bytes:
    """Return the canonical bytes of ``value``: maps sorted by key, shortest integers, no floats.

    Raises:
        TypeError: A float, or another type that the format does not have.
    """
    return bytes(msgpack.packb(_canonical(value, 0), use_bin_type=True))


def _canonical(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError(f"nested deeper than {_MAX_DEPTH}")
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        if depth == _MAX_DEPTH:
            return [_canonical(item, depth + 1) for item in value]
        # Nearly everything in an index stands in an array, and is as it should be.
        if _PLAIN.issuperset(map(type, value)):
            return value
        return [item if type(item) in _PLAIN else _canonical(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a map are strings")
        return {key: _canonical(value[key], depth + 1) for key in sorted(value)}
    raise TypeError(f"the format has no {type(value).__name__}")


def decode(data: bytes, *, what: str, offset: int, name: str) -> Any:
    """Return the value of canonical bytes.

    Args:
        data: Exactly one msgpack value; its size has been compared with the limit.
        what: The part of the bundle, for messages.
        offset: Where it starts in the file, in bytes, for messages.
        name: The file, for messages.

    Raises:
        FormatError: Not msgpack, bytes left over, or another spelling than ``encode`` gives.
        LimitExceededError: More arrays, maps and items than ``MAX_INDEX_VALUES``.
    """
    count = 0

    def counted(items: _Items) -> _Items:
        # An empty array is one byte in the file and some hundred in memory, so it is values that are counted.
        nonlocal count
        count += 1 + len(items)
        if count > MAX_INDEX_VALUES:
            raise LimitExceededError(f"number of values in {what}", count, MAX_INDEX_VALUES, name)
        return items

    def no_extension(code: int, _: bytes) -> NoReturn:
        raise ValueError(f"extension type {code}")

    try:
        # The room of an array is reserved when its length is read. Once the value was walked over without keeping
        # anything, all lengths are known to be true.
        walker = msgpack.Unpacker(max_buffer_size=len(data))
        walker.feed(data)
        walker.skip()
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            ext_hook=no_extension,
            list_hook=counted,
            object_hook=counted,
            max_bin_len=len(data),
            max_str_len=len(data),
            max_array_len=MAX_INDEX_VALUES,
            max_map_len=MAX_INDEX_VALUES,
        )
        again = encode(value)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise FormatError(f"{what} is not msgpack of this format: {error}", offset, name) from error
    if again != data:
        raise FormatError(f"{what} is not in the canonical spelling", offset, name)
    return value
