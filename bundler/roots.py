"""Roots on this host: the ``ROOT`` of the command line, and where a root of a bundle goes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from bundler.errors import UsageError
from bundler.kinds import KINDS, RootKind, detect, known_kind, locate
from bundler.model import RootRecord

__all__ = ["MEGA", "Root", "RootLike", "doubt", "environment", "match_roots", "place_roots", "present_roots", "resolve"]

MEGA = "mega"
"""Word that stands for a kind in ``mega=FILE``: the bytes of ``torch.compiler.save_cache_artifacts()``."""

_LOOKED_AT = 1000  # files and directories, to tell the kind of a directory by what fills it

_SPEC = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,63}):)?(?P<kind>[a-z]+)=(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Root:
    """A root that lies on this host. ``path`` is absolute."""

    name: str
    kind: RootKind
    path: str
    mega: bool = False
    bare: bool = field(default=False, compare=False)
    """Whether the kind was told by what lies there, and not by the user."""


RootLike: TypeAlias = "str | os.PathLike[str] | Root"


def parse(text: str) -> Root:
    """Read ``PATH``, ``KIND=PATH`` or ``NAME:KIND=PATH``; a bare path gets its kind from what lies in it.

    Raises:
        UsageError: An unknown kind, or an empty path.
    """
    match = _SPEC.fullmatch(text)
    if not text or (match is not None and not match["path"]):
        raise UsageError(f"{text!r} is no root, which needs a path: PATH, KIND=PATH or NAME:KIND=PATH")
    if match is None or os.path.isabs(text):
        path = os.path.abspath(text)
        kind = detect(_two_levels(path), _files_below(path))
        return Root(kind.name, kind, path, bare=True)
    kind_name, path = match["kind"], os.path.abspath(match["path"])
    if kind_name == MEGA:
        kind = KINDS["inductor"]
        return Root(match["name"] or kind.name, kind, path, mega=True)
    if kind_name not in KINDS:
        known = ", ".join([*sorted(KINDS), MEGA])
        raise UsageError(
            f"kind {kind_name!r} of {text!r} is unknown; known are {known}; for a path with = write ./{text}"
        )
    return Root(match["name"] or kind_name, KINDS[kind_name], path)


def resolve(roots: str | os.PathLike[str] | Root | Iterable[str | os.PathLike[str] | Root]) -> list[Root]:
    """Read one root or several, and refuse two of one name.

    Raises:
        UsageError: An unknown kind, or two roots of one name.
    """
    found: dict[str, Root] = {}
    # A string is one root, not one for each of its characters.
    for given in [roots] if isinstance(roots, (str, os.PathLike, Root)) else roots:
        root = given if isinstance(given, Root) else parse(os.fspath(given))
        if root.name in found:
            raise UsageError(
                f"two roots are named {root.name!r} ({found[root.name].path} and {root.path}): "
                f"name one of them, as in OTHER:{root.kind.name}={root.path}"
            )
        found[root.name] = root
    return [found[name] for name in sorted(found)]


def doubt(root: Root) -> str | None:
    """Say why a root may be another than a user means; None when nothing speaks against it.

    The kind is taken at the user's word all the same. What was packed as another kind is restored to the place of that
    kind, where torch or Triton does not look for it.
    """
    if root.bare and root.kind.name == "generic":
        return f"no compile cache is recognised in {root.path}: it is packed as generic, and restored where you say"
    found = detect(_two_levels(root.path))
    if root.bare or root.mega or "generic" in (found.name, root.kind.name) or found is root.kind:
        return None
    return f"{root.path} was named as {root.kind.name}, and looks like {found.name}: is {found.name}={root.path} meant?"


def _two_levels(path: str) -> Iterator[str]:
    """Yield the paths below a directory, two levels deep; nothing when it cannot be read."""
    for name in _listed(path):
        yield name
        for below in _listed(os.path.join(path, name)):
            yield f"{name}/{below}"


def _files_below(path: str) -> Iterator[str]:
    """Yield the paths of files below a directory, however deep, as far as a look at a thousand things gets."""
    pending, looked = [""], 0
    while pending:
        directory = pending.pop()
        for name in _listed(os.path.join(path, directory)):
            below = f"{directory}/{name}" if directory else name
            full = os.path.join(path, below)
            looked += 1
            if looked > _LOOKED_AT:
                return
            if os.path.isdir(full) and not os.path.islink(full):
                pending.append(below)
            else:
                yield below


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:  # a file, or not ours to read: collect will say so when it gets there
        return []


def place_roots(
    records: Sequence[RootRecord],
    given: Iterable[str | Root],
    into: str | None,
    environ: Mapping[str, str] | None = None,
    *,
    used: Collection[str] | None = None,
) -> dict[str, Root]:
    """Decide where each root of a bundle goes on this host, by name.

    ``given`` wins (matched by name, then by kind when it is the only one of its kind); then ``into``: a single root
    goes to that path itself, several to ``into/NAME``; else where this host keeps the kind. The recorded path is never
    used. Roots that are not named in ``used`` are passed over.

    Raises:
        UsageError: A root of ``given`` that the bundle does not have, an unknown kind, or no place for a kind.
    """
    wanted = resolve(given)
    placed: dict[str, Root] = {}
    for record in records:
        if used is not None and record.name not in used:
            continue
        kind = known_kind(record.kind, record.name)
        root = _given_for(record, records, wanted)
        if root is not None:
            placed[record.name] = Root(record.name, kind, root.path)
        elif into is not None:
            path = os.path.abspath(into)
            placed[record.name] = Root(
                record.name, kind, path if len(records) == 1 else os.path.join(path, record.name)
            )
        else:
            placed[record.name] = Root(record.name, kind, locate(kind, environ))
    _refuse_leftover(wanted, records)
    _refuse_shared_place(placed)
    return placed


def match_roots(records: Sequence[RootRecord], wanted: Sequence[Root]) -> dict[str, Root]:
    """Return where those roots of a bundle go that are among ``wanted``, by name, then by kind where that is plain."""
    found = {record.name: (record, root) for record in records if (root := _given_for(record, records, wanted))}
    return {name: Root(name, known_kind(record.kind, record.name), root.path) for name, (record, root) in found.items()}


def present_roots(environ: Mapping[str, str] | None = None) -> list[Root]:
    """Return the roots that this host has in the usual places; one that lies inside another is a part of that one.

    Kinds that have to be asked for are not among them.
    """
    found = []
    for kind in KINDS.values():
        if kind.asked:
            continue
        try:
            path = locate(kind, environ)
        except UsageError:  # no place for this kind
            continue
        if os.path.isdir(path):
            found.append(Root(kind.name, kind, path))
    places = {root.name: os.path.join(os.path.realpath(root.path), "") for root in found}
    inner = {a for a in places for b in places if places[a] != places[b] and places[a].startswith(places[b])}
    return [root for root in found if root.name not in inner]


def _given_for(record: RootRecord, records: Sequence[RootRecord], wanted: Sequence[Root]) -> Root | None:
    for root in wanted:
        if root.name == record.name:
            return root
    same = [other for other in records if other.kind == record.kind]
    by_kind = [root for root in wanted if root.kind.name == record.kind and root.name == root.kind.name]
    # A bundle with one root, given one bare path: there is nothing to confuse.
    lone = wanted[0] if len(records) == len(wanted) == 1 and wanted[0].kind.name == "generic" else None
    return by_kind[0] if len(same) == 1 and by_kind else lone


def _refuse_leftover(wanted: Sequence[Root], records: Sequence[RootRecord]) -> None:
    matched = {root.name for record in records if (root := _given_for(record, records, wanted)) is not None}
    for root in wanted:
        if root.name not in matched:
            names = ", ".join(f"{record.name}:{record.kind}" for record in records)
            raise UsageError(
                f"root {root.name!r} of kind {root.kind.name} fits none of the bundle's roots, which are {names}; "
                "where two are of one kind, name each as NAME:KIND=PATH"
            )


def _refuse_shared_place(placed: Mapping[str, Root]) -> None:
    paths: dict[str, str] = {}
    for name, root in placed.items():
        if root.path in paths:
            raise UsageError(
                f"roots {paths[root.path]!r} and {name!r} would both go to {root.path}: give --root for one"
            )
        paths[root.path] = name


def environment(placed: Mapping[str, Root]) -> dict[str, str]:
    """Return the variables that point torch, Triton and vLLM at the roots.

    Two roots of one kind cannot both have the variable; it goes to the one whose name is the kind, else to the first.
    """
    variables: dict[str, str] = {}
    for root in sorted(placed.values(), key=lambda root: (root.name != root.kind.name, root.name)):
        if root.kind.variable:
            variables.setdefault(root.kind.variable, root.path)
    return dict(sorted(variables.items()))
