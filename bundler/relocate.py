"""Paths in files that must follow the tree: found by parsing, kept as placeholders, written back at known offsets.

Two kinds of file are edited, and no other: Triton's group files (JSON), whose paths name the entry's own directory, and
vLLM's handle tables (a Python literal), whose paths lie below the root. A path is stored as a readable placeholder, and
the index lists the offset of each one; text that merely looks like a placeholder is never touched.

The placeholder of an entry's directory is the one torch's own bundler writes, so that a group file inside an FX graph
entry has the very bytes of the group file in the tree and is stored once.
"""

from __future__ import annotations

import ast
import io
import json
import ntpath
import posixpath
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bundler.errors import RelocationError
from bundler.model import Base, Relocation, Spelling

__all__ = ["PLACEHOLDERS", "Group", "Literal", "make_group", "parse_group", "parse_literal", "restore", "unrestore"]

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


def make_group(members: list[str]) -> Group:
    """Return a group file of just ``members``, as Triton writes it."""
    mark = PLACEHOLDERS[Base.ENTRY].decode()
    data = json.dumps({"child_paths": {member: f"{mark}/{member}" for member in members}}).encode()
    offsets, start = [], len('{"child_paths": {')
    for member in members:
        spelled = len(json.dumps(member)) - 2
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


_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]', re.DOTALL)


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
    rb"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\N\{[^}]*\}|\\[0-7]{1,3}|\\.|[^\\]+"
)


def _json_text(spelled: bytes) -> str:
    return str(json.loads(b'"' + spelled + b'"'))


def _python_text(spelled: bytes) -> str:
    return str(ast.literal_eval("'''" + spelled.decode("utf-8") + "'''"))


def _spelled_length(spelled: bytes, length: int, units: re.Pattern[bytes], decode: Callable[[bytes], str]) -> int:
    """Return how many bytes of ``spelled`` stand for the first ``length`` characters of what it decodes to."""
    done = at = 0
    for unit in units.finditer(spelled):
        text = unit.group()
        decoded = text.decode("utf-8") if text[:1] != b"\\" else decode(text)
        if done + len(decoded) >= length:
            # Only a run of plain characters can end inside; an escape is one character.
            return at + (len(text) if done + len(decoded) == length else len(decoded[: length - done].encode("utf-8")))
        done += len(decoded)
        at += len(text)
    return at


def parse_literal(data: bytes, directory: str, *, name: str = "literal") -> Literal:
    """Read a Python literal and replace the root that its paths lie below.

    The root is worked out, not looked up: it is what stands before the file's own place (``directory``) in a path. A
    path that shares no part of that place is a foreign path and is kept.

    Args:
        data: The file as it lies on disk.
        directory: Where the file lies inside the root, with ``/``; "" for the root itself.
        name: The file, for messages.

    Raises:
        RelocationError: Not a Python literal; paths of two roots; or a path that is spelled over several string tokens.

    Source: vllm/compilation/backends.py, CompilerManager.save_to_file (``pprint`` of a dict, read by ``literal_eval``).
    """
    strings = [s for s in _string_tokens(data, name) if s[2].startswith("/")]
    roots = {root for _, _, text in strings if (root := _root_before(text, directory))}
    if len(roots) > 1:
        raise RelocationError(name, f"paths of several roots: {', '.join(sorted(roots))}")
    if not roots:
        return Literal("", data, None)
    root = roots.pop()
    mark, parts, offsets, last, grown = PLACEHOLDERS[Base.ROOT], [], [], 0, 0
    for start, end, text in strings:
        if not text.startswith(root + "/"):
            continue
        cut = start + _spelled_length(data[start:end], len(root), _python_units, _python_text)
        offsets.append(start + grown)
        parts += [data[last:start], mark]
        grown += len(mark) - (cut - start)
        last = cut
    parts.append(data[last:])
    return Literal(root, b"".join(parts), Relocation(Base.ROOT, Spelling.PYTHON, tuple(offsets)))


def _root_before(path: str, directory: str) -> str:
    """Return what stands in ``path`` before the longest leading part of ``directory`` that it holds; "" if none."""
    parts = directory.split("/") if directory else []
    for count in range(len(parts), 0, -1):
        at = (path + "/").rfind("/" + "/".join(parts[:count]) + "/")
        if at > 0:
            return path[:at]
    return ""


_PREFIXED = re.compile(r"[A-Za-z]+")


def _string_tokens(data: bytes, name: str) -> list[tuple[int, int, str]]:
    """Return (start, end, text) of each string of a Python literal, in bytes, the quotes left out."""
    try:
        ast.literal_eval(data.decode("utf-8"))
        tokens = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise RelocationError(name, f"not a Python literal: {error}") from error
    lines = [0]
    for line in io.BytesIO(data):
        lines.append(lines[-1] + len(line))
    found: list[tuple[int, int, str]] = []
    before: tokenize.TokenInfo | None = None
    for token in tokens:
        if token.type in (tokenize.NL, tokenize.COMMENT):
            continue
        if token.type == tokenize.STRING:
            start = lines[token.start[0] - 1] + len(token.line[: token.start[1]].encode("utf-8"))
            text = str(ast.literal_eval(token.string))
            # pprint splits a long string at its blanks into several tokens; a path in two pieces cannot be cut.
            if before is not None and before.type == tokenize.STRING and found and found[-1][2].startswith("/"):
                raise RelocationError(name, f"the path {found[-1][2]!r}... is spelled over several strings", start)
            if text.startswith("/") and (_PREFIXED.match(token.string) or token.string[:3] in ("'''", '"""')):
                raise RelocationError(name, f"the path {text!r} is not in a plain string", start)
            found.append((start + 1, start + len(token.string.encode("utf-8")) - 1, text))
        before = token
    return found
