"""The fields of a command's JSON, as data: the reference is made from them, and a test holds the commands to them.

A *shape* is ``str``, ``int``, ``float`` (which takes integers too), ``bool``, ``None`` or ``object`` (anything);
``[shape]`` for a list; ``{"name": shape}`` for an object with just these names; ``{str: shape}`` for one with any
names; and a tuple of shapes for one or the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Field", "Fields", "conforms", "describe"]

Shape: TypeAlias = Any


class Field(NamedTuple):
    """One field: what it holds, and what it means."""

    shape: Shape
    text: str


Fields: TypeAlias = Mapping[str, Field]

_WORDS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    object: "any value",
}


def describe(shape: Shape) -> str:
    """Return a shape in words: ``list of {path: string, reason: string}``."""
    if isinstance(shape, list):
        return f"list of {describe(shape[0])}"
    if isinstance(shape, tuple):
        return " or ".join(map(describe, shape))
    if isinstance(shape, dict):
        if set(shape) == {str}:
            return f"object of {describe(shape[str])}"
        return "{" + ", ".join(f"{name}: {describe(inner)}" for name, inner in shape.items()) + "}"
    return _WORDS[shape]


def conforms(value: object, shape: Shape) -> bool:
    """Whether a value that came from JSON has a shape."""
    if isinstance(shape, tuple):
        return any(conforms(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(conforms(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if set(shape) == {str}:
            return all(conforms(item, shape[str]) for item in value.values())
        return value.keys() == shape.keys() and all(conforms(value[name], inner) for name, inner in shape.items())
    if shape is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if shape is None or shape is bool:
        return value is None if shape is None else isinstance(value, bool)
    return isinstance(value, shape) and (shape is object or not isinstance(value, bool))
