"""Where the roots of a run lie, and the environment variables that point the run at them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bundler.errors import UsageError
from bundler.kinds import KINDS, RootKind, known_kind, locate
from bundler.model import RootRecord
from bundler.roots import Root
from bundler.switch import ENTRIES, RAW

__all__ = ["ASKED", "Places", "asked", "fresh_places", "host_places"]

ASKED = tuple(kind.name for kind in KINDS.values() if kind.asked)
"""Kinds that take part in a run only when they are asked for, or in the bundle."""


def asked(words: Iterable[str]) -> tuple[str, ...]:
    """Return kinds that have to be asked for, as they were named.

    Raises:
        UsageError: A word that is none of them.
    """
    kinds = tuple(words)
    for word in kinds:
        if word not in ASKED:
            raise UsageError(f"{word!r} takes part by itself, or is unknown; what can be asked for: {', '.join(ASKED)}")
    return kinds


@dataclass(slots=True)
class Places:
    """The roots of a run.

    Attributes:
        roots: By name: those of the bundle, and one of each other kind that a program finds by itself.
        variables: What the run has to have in its environment.
        unset: What it must not have.
        notes: What whoever asked for the run should know.
    """

    roots: dict[str, Root] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def keep_copies(self, environ: Mapping[str, str]) -> None:
        """Have entries of the run hold raw copies, since they will be bundled, unless ``environ`` has it otherwise."""
        if ENTRIES not in environ:
            self.variables[ENTRIES] = RAW

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` as the run is to have it."""
        kept = {name: value for name, value in environ.items() if name not in self.unset}
        return {**kept, **self.variables}


def fresh_places(
    records: Sequence[RootRecord],
    directory: str,
    environ: Mapping[str, str],
    *,
    follow: bool = True,
    also: Collection[str] = (),
) -> Places:
    """Place every root below one directory.

    Args:
        records: The roots of a bundle; empty without one.
        directory: Where; each root gets a directory of its name in it.
        environ: The environment that the run would have.
        follow: Whether a variable that would change more than the place, and is set, keeps its place
            (``TRITON_CACHE_DIR``); else it stays set, and names a fresh place.
        also: Kinds that are asked for, of those that have to be.

    Raises:
        UsageError: A kind that this package does not know.
    """
    places = Places(unset=_empty(environ))
    directory = os.path.abspath(directory)
    for record, kind in _with_other_kinds(records, also):
        path = os.path.join(directory, record.name)
        variable = kind.variable if _is_first(record, kind, places) else None
        if variable is not None and kind.pointer is not None:
            explicit = environ.get(variable)
            if explicit and follow:
                path, variable = os.path.abspath(explicit), None
                places.notes.append(f"{kind.variable} is set, so the {record.name} root is {path}")
            elif explicit:
                places.notes.append(f"{kind.variable} is set, and names a fresh directory in this run")
            else:
                variable, below = kind.pointer
                places.variables[variable] = path
                path, variable = os.path.join(path, *below.split("/")), None
        if variable is not None:
            places.variables[variable] = path
        places.roots[record.name] = Root(record.name, kind, path)
    return _unhindered(places, environ)


def host_places(records: Sequence[RootRecord], environ: Mapping[str, str], *, also: Collection[str] = ()) -> Places:
    """Place every root where this host keeps its kind; one that has no such place is left out, with a note.

    Args:
        records: See ``fresh_places``; so are ``environ`` and ``also``.
        environ: See ``fresh_places``.
        also: See ``fresh_places``.

    Raises:
        UsageError: A kind that this package does not know.
    """
    places = Places(unset=_empty(environ))
    named = {*also, *(record.name for record in records)}
    for record, kind in _with_other_kinds(records, also):
        reason = "another root of its kind is there already"
        if _is_first(record, kind, places):
            try:
                places.roots[record.name] = Root(record.name, kind, locate(kind, environ))
            except UsageError as error:
                reason = str(error)
        if record.name not in places.roots:
            if record.name in named:
                places.notes.append(f"root {record.name} is left out: {reason}; give --root-dir")
        elif kind.variable is not None and kind.pointer is None:
            places.variables[kind.variable] = places.roots[record.name].path
    return _unhindered(places, environ)


def _unhindered(places: Places, environ: Mapping[str, str]) -> Places:
    """Unset what would keep the run from writing to one of its roots."""
    hindering = {name for root in places.roots.values() for name in root.kind.unset if name in environ}
    places.unset = tuple(sorted({*places.unset, *hindering}))
    return places


def _with_other_kinds(records: Iterable[RootRecord], also: Collection[str]) -> list[tuple[RootRecord, RootKind]]:
    """Return the roots of a bundle, and one for each kind that programs find by themselves and the bundle lacks.

    Of several roots of one kind the first has the variable: the one whose name is the kind. A kind that has to be asked
    for is among the others only if ``also`` names it.
    """
    found = []
    for record in sorted(records, key=lambda record: (record.name != record.kind, record.name)):
        found.append((record, known_kind(record.kind, record.name)))
    names = {record.name for record, _ in found}
    for kind in KINDS.values():
        wanted = kind.variable is not None and (not kind.asked or kind.name in also)
        if wanted and kind not in [other for _, other in found]:
            name = kind.name
            while name in names:  # a root of another kind has it
                name += "-run"
            found.append((RootRecord(name, kind.name), kind))
    return found


def _is_first(record: RootRecord, kind: RootKind, places: Places) -> bool:
    return all(root.kind is not kind for root in places.roots.values()) and record.name not in places.roots


def _empty(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return variables that are set to nothing: torch takes that for a path, and Triton and this package do not."""
    kinds = [kind for kind in KINDS.values() if not kind.asked]
    names = {name for kind in kinds for name in (kind.variable, *(kind.pointer or ())[:1]) if name}
    return tuple(sorted(name for name in names if environ.get(name) == ""))
