"""Paths in files that must follow the tree: found by parsing, kept as placeholders, written back at known offsets.

Two kinds of file are edited, and no other: Triton's group files (JSON), whose paths name the entry's own directory, and
vLLM's handle tables (a Python literal), whose paths lie below the root. A path is stored as a readable placeholder, and
the index lists the offset of each one; text that merely looks like a placeholder is never touched.

The placeholder of an entry's directory is the one torch's own bundler writes, so that a group file inside an FX graph
entry has the very bytes of the group file in the tree and is stored once.
"""

from __future__ import annotations

import ast
import json
import ntpath
import posixpath
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from bundler.errors import RelocationError
from bundler.model import Base, Relocation, Spelling

__all__ = ["PLACEHOLDERS", "Group", "Literal", "make_group", "parse_group", "parse_literal", "restore", "unrestore"]

_T = TypeVar("_T")

PLACEHOLDERS: Mapping[Base, bytes] = {Base.ENTRY: b"[REPLACE]", Base.ROOT: b"[ROOT]"}


@dataclass(frozen=True, slots=True)
class Group:
    """A group file.

    Attributes:
        members: File names that it lists, in its order.
        directory: The directory that it names; "" when it lists no member.
        data: The file with placeholders.
        relocation: Where they stand.
    """

    members: tuple[str, ...]
    directory: str
    data: bytes = field(repr=False)
    relocation: Relocation


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python literal with paths. ``root`` is the root that it was written for; "" when no path lies below it."""

    root: str
    data: bytes = field(repr=False)
    relocation: Relocation | None


def restore(data: bytes, relocation: Relocation, path: str, *, name: str = "") -> bytes:
    """Write ``path`` over every placeholder of ``data``.

    Args:
        data: The content in its placeholder form.
        relocation: Offsets, ascending.
        path: The absolute directory that the base stands for on this host.
        name: The file, for messages.

    Raises:
        RelocationError: There is no placeholder at one of the offsets.
    """
    written = spell(path, relocation.spelling)
    placeholder = PLACEHOLDERS[relocation.base]
    parts, last = [], 0
    for offset in relocation.offsets:
        if offset < last or data[offset : offset + len(placeholder)] != placeholder:
            raise RelocationError(name, f"no placeholder {placeholder.decode()} where the index lists one", offset)
        parts += [data[last:offset], written]
        last = offset + len(placeholder)
    parts.append(data[last:])
    return b"".join(parts)


def unrestore(data: bytes, relocation: Relocation, path: str) -> bytes | None:
    """Undo ``restore``: put the placeholders back; None when ``path`` does not stand where it should.

    Law: ``unrestore(restore(data, relocation, path), relocation, path) == data``.
    """
    written = spell(path, relocation.spelling)
    placeholder = PLACEHOLDERS[relocation.base]
    growth = len(written) - len(placeholder)
    parts, last = [], 0
    for count, offset in enumerate(relocation.offsets):
        start = offset + count * growth
        if data[start : start + len(written)] != written:
            return None
        parts += [data[last:start], placeholder]
        last = start + len(written)
    parts.append(data[last:])
    return b"".join(parts)


def spell(path: str, spelling: Spelling) -> bytes:
    """Return ``path`` as it stands between the quotes of a string literal; ASCII, whatever the path holds."""
    if spelling is Spelling.JSON:
        return json.dumps(path)[1:-1].encode("ascii")
    # Both quotes are escaped, so that the text fits into either kind of Python string.
    text = path.encode("unicode_escape").decode("ascii")
    return text.replace("'", r"\x27").replace('"', r"\x22").encode("ascii")


def make_group(members: Sequence[str]) -> Group:
    """Return a group file of just ``members``, as Triton writes it."""
    mark = PLACEHOLDERS[Base.ENTRY].decode()
    data = json.dumps({"child_paths": {member: f"{mark}/{member}" for member in members}}).encode()
    offsets, start = [], len('{"child_paths": {')
    for member in members:
        plain = member.isascii() and member.replace("_", "").replace(".", "").isalnum()
        spelled = len(member) if plain else len(json.dumps(member)) - 2
        start += spelled + len('"": "')
        offsets.append(start)
        start += len(mark) + 1 + spelled + len('", ')
    return Group(tuple(members), mark, data, Relocation(Base.ENTRY, Spelling.JSON, tuple(offsets)))


def parse_group(data: bytes, key: str, *, name: str = "group file") -> Group:
    """Read a group file and replace the directory that it names.

    Args:
        data: The file as it lies on disk.
        key: Name of the directory that holds it. The directory named inside must end in it.
        name: The file, for messages.

    Raises:
        RelocationError: Not JSON of the shape ``{"child_paths": {file name: absolute path}}``; a path whose last part
            is not the file name; members in different directories; a directory of another name than ``key``.

    Source: triton/runtime/cache.py, FileCacheManager.put_group and get_group.
    """
    parsed = _load_group(data, name)
    usual = _usual_group(data, parsed, key)
    if usual is not None:
        return usual
    mark, parts, offsets, last, grown = PLACEHOLDERS[Base.ENTRY], [], [], 0, 0
    directories = set()
    for member, start, end in _child_values(data):
        path = parsed[member]
        flavour = ntpath if re.match(r"[A-Za-z]:[\\/]", path) else posixpath
        directory, base = flavour.split(path)
        if base != member or not directory:
            raise RelocationError(name, f"member {member!r} is recorded as {path!r}, of another name", start)
        directories.add(directory)
        if len(directories) > 1:
            raise RelocationError(name, f"members in different directories: {', '.join(sorted(directories))}", start)
        if flavour.basename(directory) != key:
            raise RelocationError(name, f"recorded in {directory!r}, but it lies in a directory named {key!r}", start)
        cut = start + _spelled_length(data[start:end], len(path) - len(base), _json_units, _json_text)
        offsets.append(start + grown)
        parts += [data[last:start], mark, b"/"]
        grown += len(mark) + 1 - (cut - start)
        last = cut
    parts.append(data[last:])
    relocation = Relocation(Base.ENTRY, Spelling.JSON, tuple(offsets))
    return Group(tuple(parsed), directories.pop() if directories else "", b"".join(parts), relocation)


def _usual_group(data: bytes, parsed: Mapping[str, str], key: str) -> Group | None:
    """Return a group file that is, byte for byte, as Triton writes it on POSIX; None for any other spelling."""
    members = tuple(parsed)
    directory = posixpath.dirname(parsed[members[0]]) if members else ""
    if not directory.startswith("/") or posixpath.basename(directory) != key or any("/" in name for name in members):
        return None
    written = json.dumps({"child_paths": {name: f"{directory}/{name}" for name in members}})
    if written.encode() != data:
        return None
    group = make_group(members)
    return Group(group.members, directory, group.data, group.relocation)


def _load_group(data: bytes, name: str) -> dict[str, str]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        parsed = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise RelocationError(name, f"not a group file: {error}") from error
    children = parsed.get("child_paths") if isinstance(parsed, dict) else None
    if not isinstance(children, dict) or not all(isinstance(path, str) for path in children.values()):
        raise RelocationError(name, 'not a group file: no object "child_paths" of strings')
    return children


_JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]', re.DOTALL)


def _child_values(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield (member, start, end) for each string value of ``child_paths``, the quotes left out. The JSON is valid."""
    keys: list[str | None] = []  # the key under way at each depth; None inside an array
    is_key = False
    for token in _JSON_TOKEN.finditer(data):
        text = token.group()
        if text in b"{[":
            keys.append("" if text == b"{" else None)
            is_key = text == b"{"
        elif text in b"}]":
            keys.pop()
        elif text in b":,":
            is_key = text == b"," and bool(keys) and keys[-1] is not None
        elif is_key:
            keys[-1] = json.loads(text)
        elif len(keys) == 2 and keys[0] == "child_paths" and keys[1] is not None:
            yield keys[1], token.start() + 1, token.end() - 1


_json_units = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[^\\]+")
_python_units = re.compile(
    rb"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\N\{[^}]*\}|\\[0-7]{1,3}"
    rb"|\\\r\n|\\[\xc0-\xff][\x80-\xbf]*|\\.|[^\\]+",
    re.DOTALL,  # a backslash before the end of a line stands for nothing
)


def _json_text(spelled: bytes) -> str:
    return str(json.loads(b'"' + spelled + b'"'))


def _python_text(spelled: bytes, quote: bytes = b"'''") -> str:
    return str(_quietly(lambda: ast.literal_eval((quote + spelled + quote).decode("utf-8"))))


def _spelled_length(spelled: bytes, length: int, units: re.Pattern[bytes], decode: Callable[[bytes], str]) -> int:
    """Return how many bytes of ``spelled`` stand for the first ``length`` characters of what it decodes to."""
    parts = [unit.group() for unit in units.finditer(spelled)]
    texts = [decode(part) if part[:1] == b"\\" else part.decode("utf-8") for part in parts]
    ends = list(accumulate(map(len, texts)))
    last = bisect_left(ends, length)
    # Plain characters, and an escape that Python does not know, stand for themselves and can end inside.
    rest = texts[last][len(texts[last]) - (ends[last] - length) :]
    return sum(map(len, parts[: last + 1])) - len(rest.encode("utf-8"))


def parse_literal(data: bytes, directory: str, *, name: str = "literal") -> Literal:
    """Read a Python literal and replace the root that its paths lie below.

    The root is worked out, not looked up: it is what stands before the file's own place (``directory``) in a path. A
    path that shares no part of that place is a foreign path and is kept.

    Args:
        data: The file as it lies on disk.
        directory: Where the file lies inside the root, with ``/``; "" for the root itself.
        name: The file, for messages.

    Raises:
        RelocationError: Not a Python literal; paths of two roots; or a path that is spelled over several strings.

    Source: vllm/compilation/backends.py, CompilerManager.save_to_file (``pprint`` of a dict, read by ``literal_eval``).
    """
    strings = _path_strings(data, name)
    roots = {root for _, text in strings if (root := _root_before(text, directory))}
    if len(roots) > 1:
        raise RelocationError(name, f"paths of several roots: {', '.join(sorted(roots))}")
    if not roots:
        return Literal("", data, None)
    root = roots.pop()
    mark, parts, offsets, last, grown = PLACEHOLDERS[Base.ROOT], [], [], 0, 0
    for tokens, text in strings:
        if not text.startswith(root + "/"):
            continue
        start, cut = tokens[0][0], _cut(data, tokens, len(root), name)
        offsets.append(start + grown)
        parts += [data[last:start], mark]
        grown += len(mark) - (cut - start)
        last = cut
    parts.append(data[last:])
    return Literal(root, b"".join(parts), Relocation(Base.ROOT, Spelling.PYTHON, tuple(offsets)))


def _cut(data: bytes, tokens: Sequence[tuple[int, int]], length: int, name: str) -> int:
    """Return where the first ``length`` characters of a string end that is spelled as ``tokens``, one behind the other.

    What lies between the start of the first token and the cut becomes one placeholder; so the token that is cut must
    have the quotes of the first.
    """
    ends = list(accumulate(len(_python_text(data[start:end], data[start - 1 : start])) for start, end in tokens))
    number = bisect_left(ends, length)
    start, end = tokens[number]
    if data[start - 1] != data[tokens[0][0] - 1]:
        raise RelocationError(name, "the root is spelled over strings of different quotes", start)
    return start + _spelled_length(
        data[start:end], length - (ends[number - 1] if number else 0), _python_units, _python_text
    )


def _root_before(path: str, directory: str) -> str:
    """Return what stands in ``path`` before the longest leading part of ``directory`` that it holds; "" if none."""
    parts = directory.split("/") if directory else []
    for count in range(len(parts), 0, -1):
        at = (path + "/").rfind("/" + "/".join(parts[:count]) + "/")
        if at > 0:
            return path[:at]
    return ""


_LINE_END = re.compile(rb"\r\n|\r|\n")
_ONE_PLAIN = rb"""(?:'[^'\\\n]*(?:\\(?:\r\n|.)[^'\\\n]*)*'|"[^"\\\n]*(?:\\(?:\r\n|.)[^"\\\n]*)*")"""
_PLAIN = re.compile(_ONE_PLAIN, re.DOTALL)
_SEVERAL_PLAIN = re.compile(_ONE_PLAIN + rb"(?:[ \t\r\n]+" + _ONE_PLAIN + rb")*", re.DOTALL)


def _path_strings(data: bytes, name: str) -> list[tuple[list[tuple[int, int]], str]]:
    """Return each string of a Python literal that begins with ``/``: the spans of its tokens, and what it says.

    ``pprint`` spells a long string as several tokens, split at its blanks. Spans are in bytes, without the quotes.
    """
    try:
        text = data.decode("utf-8")
        tree = _quietly(lambda: ast.parse(text.lstrip(" \t"), mode="eval"))
        ast.literal_eval(tree)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError) as error:
        raise RelocationError(name, f"not a Python literal: {error}") from error
    lines = [len(text) - len(text.lstrip(" \t")), *(end.end() for end in _LINE_END.finditer(data))]
    found: list[tuple[list[tuple[int, int]], str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("/"):
            # Columns count bytes of UTF-8; a literal always has an end.
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            if not _SEVERAL_PLAIN.fullmatch(data, start, end):
                raise RelocationError(name, f"the path {node.value!r} is not spelled in plain strings", start)
            tokens = [(token.start() + 1, token.end() - 1) for token in _PLAIN.finditer(data, start, end)]
            found.append((tokens, node.value))
    return sorted(found)


def _quietly(parse: Callable[[], _T]) -> _T:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of an escape that it does not know, and keeps it as it stands
        return parse()
