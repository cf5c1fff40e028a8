"""The index of version 1: rows <-> model. FORMAT.md section 3. What the rows must obey is in ``_rules``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from bundler.errors import FormatError
from bundler.formats import _msgpack
from bundler.model import (
    Artifact,
    Base,
    BaseRecord,
    Content,
    Entry,
    Frame,
    Index,
    Profile,
    Relocation,
    RootRecord,
    Skipped,
    Spelling,
    Target,
    Unit,
)

__all__ = ["UNITS", "content_form", "decode_index", "encode_index"]

UNITS = (Unit.KERNEL, Unit.FXGRAPH, Unit.AOTAUTOGRAD, Unit.AUTOTUNE, Unit.MODULE, Unit.HOST_BINARY, Unit.FILE)
"""A unit's number in the index is its place here. Only ever append."""

DIGEST_SIZE = 32  # bytes of a raw SHA-256

_REQUIRED = ("contents", "entries", "facts", "foreign", "frames", "profile", "roots", "skipped", "targets")
_OPTIONAL = ("base",)  # there or not; a reader that does not know it must refuse
_IGNORABLE = "~"  # a key that starts so may be passed over by a reader that does not know it

_WHOLE, _TEXT = frozenset({int}), frozenset({str})

_T = TypeVar("_T")


def encode_index(index: Index) -> bytes:
    """Return the canonical bytes of ``index``, not compressed."""
    targets = list(index.targets)
    rooms = {root.name: number for number, root in enumerate(index.roots)}
    return _msgpack.encode(
        {
            **({"base": [index.base.digest, index.base.contents, index.base.lost]} if index.base else {}),
            "contents": {
                "copies": [[n, *_flat(c.copies)] for n, c in enumerate(index.contents) if c.copies],
                "digests": b"".join(content.digest for content in index.contents),
                "foreign": [content.foreign for content in index.contents],
                "sizes": [content.size for content in index.contents],
            },
            "entries": [_entry_row(entry, rooms, targets) for entry in index.entries],
            "facts": index.facts,
            "foreign": index.foreign,
            "frames": [[frame.stored_size, frame.raw_size, frame.digest] for frame in index.frames],
            "profile": index.profile.value,
            "roots": [[root.name, root.kind, root.path] for root in index.roots],
            "skipped": [[skipped.path, skipped.reason] for skipped in index.skipped],
            "targets": [[target.backend, target.arch, target.warp_size] for target in targets],
        }
    )


def _flat(copies: Iterable[tuple[int, int]]) -> list[int]:
    return [number for copy in copies for number in copy]


def _entry_row(entry: Entry, rooms: dict[str, int], targets: list[Target]) -> list[Any]:
    return [
        rooms[entry.root],
        UNITS.index(entry.unit),
        entry.path,
        targets.index(entry.target) + 1 if entry.target else 0,
        entry.needs,
        [_artifact_row(artifact) for artifact in entry.artifacts],
    ]


def _artifact_row(artifact: Artifact) -> list[Any]:
    row: list[Any] = [artifact.name, artifact.content]
    if artifact.relocation:
        row.append(_relocation_row(artifact.relocation))
    return row


def _relocation_row(relocation: Relocation) -> list[int]:
    offsets = relocation.offsets
    deltas = [after - before for before, after in zip((0, *offsets), offsets)]
    return [relocation.base.value, relocation.spelling.value, *deltas]


def content_form(index: Index) -> bytes:
    """Return the bytes whose SHA-256 is the content digest: what a restore gives, and nothing else.

    Facts, host paths, compression, order and sharing of contents are not in it. FORMAT.md section 6.
    """
    rows = []
    for entry in index.entries:
        files = [
            [
                artifact.name,
                index.contents[artifact.content].size,
                index.contents[artifact.content].digest,
                _relocation_row(artifact.relocation) if artifact.relocation else [],
            ]
            for artifact in entry.artifacts
        ]
        target = [entry.target.backend, entry.target.arch, entry.target.warp_size] if entry.target else []
        rows.append([entry.root, entry.path, entry.unit.value, target, files])
    # A delta is nothing without its base: who pins the one pins the other.
    return _msgpack.encode([index.profile.value, rows, *([index.base.digest] if index.base else [])])


def decode_index(raw: bytes, *, offset: int, name: str) -> Index:
    """Read the decompressed index; its shape is checked here, its sense in ``_rules.check``.

    Raises:
        FormatError: Not canonical msgpack, an unknown or missing part, a row of another shape or type.
    """
    rows = _Rows(offset, name)
    top = _msgpack.decode(raw, what="the index", offset=offset, name=name)
    if not isinstance(top, dict):
        raise rows.refuse("the index is not a map")
    unknown = [key for key in top if key not in _REQUIRED + _OPTIONAL and not key.startswith(_IGNORABLE)]
    missing = [key for key in _REQUIRED if key not in top]
    if unknown or missing:
        raise rows.refuse(f"index parts unknown: {unknown}, missing: {missing}")
    targets = tuple(rows.each(top["targets"], "targets", (str, str, int), Target))
    roots = tuple(rows.each(top["roots"], "roots", (str, str, str), RootRecord))
    index = Index(
        profile=rows.profile(top["profile"]),
        roots=roots,
        entries=tuple(
            rows.each(
                top["entries"],
                "entries",
                (int, int, str, int, list, list),
                lambda *fields: _entry(rows, roots, targets, *fields),
            )
        ),
        contents=_contents(rows, top["contents"]),
        frames=tuple(rows.each(top["frames"], "frames", (int, int, bytes), Frame)),
        foreign=tuple(tuple(rows.strings(row, "foreign")) for row in rows.sequence(top["foreign"], "foreign")),
        facts=rows.mapping(top["facts"], "facts"),
        skipped=tuple(rows.each(top["skipped"], "skipped", (str, str), Skipped)),
        base=_base(rows, top["base"]) if "base" in top else None,
    )
    if targets != index.targets:
        raise rows.refuse("the targets are not sorted, one stands twice, or one belongs to no entry")
    return index


class _Rows:
    """Reads rows of a known shape, and says which one is not."""

    def __init__(self, offset: int, name: str) -> None:
        self.offset = offset
        self.name = name

    def refuse(self, what: str) -> FormatError:
        return FormatError(what, self.offset, self.name)

    def sequence(self, value: Any, what: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.refuse(f"index part {what} is not an array")
        return value

    def mapping(self, value: Any, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(f"index part {what} is not a map")
        return value

    def numbers(self, value: Any, what: str) -> list[int]:
        numbers = self.sequence(value, what)
        # By type, not by isinstance: True is no whole number here.
        if numbers and (not _WHOLE.issuperset(map(type, numbers)) or min(numbers) < 0):
            raise self.refuse(f"index part {what} holds something else than whole numbers")
        return numbers

    def strings(self, value: Any, what: str) -> list[str]:
        strings = self.sequence(value, what)
        if not _TEXT.issuperset(map(type, strings)):
            raise self.refuse(f"index part {what} holds something else than strings")
        return strings

    def profile(self, value: Any) -> Profile:
        try:
            return Profile(value)
        except ValueError as error:
            raise self.refuse(f"profile {value!r} is unknown") from error

    def each(self, value: Any, what: str, types: tuple[type, ...], make: Callable[..., _T]) -> Iterable[_T]:
        whole = [place for place, kind in enumerate(types) if kind is int]
        for number, row in enumerate(self.sequence(value, what)):
            if not isinstance(row, list) or tuple(map(type, row)) != types:
                raise self.refuse(f"row {number} of index part {what} has another shape")
            for place in whole:
                if row[place] < 0:
                    raise self.refuse(f"row {number} of index part {what} holds a negative number")
            yield make(*row)

    def pick(self, things: Sequence[_T], number: int, what: str) -> _T:
        if not 0 <= number < len(things):
            raise self.refuse(f"{what} number {number} of {len(things)}")
        return things[number]


def _entry(
    rows: _Rows,
    roots: Sequence[RootRecord],
    targets: Sequence[Target],
    root: int,
    unit: int,
    path: str,
    target: int,
    needs: list[Any],
    files: list[Any],
) -> Entry:
    return Entry(
        root=rows.pick(roots, root, "root").name,
        path=path,
        unit=rows.pick(UNITS, unit, "unit"),
        artifacts=tuple(_artifact(rows, row) for row in files),
        target=rows.pick(targets, target - 1, "target") if target else None,
        needs=tuple(rows.strings(needs, "needs")),
    )


def _artifact(rows: _Rows, row: Any) -> Artifact:
    if not isinstance(row, list) or tuple(map(type, row[:2])) != (str, int) or len(row) > 3 or row[1] < 0:
        raise rows.refuse("a file row has another shape")
    return Artifact(row[0], row[1], _relocation(rows, row[2]) if len(row) == 3 else None)


def _relocation(rows: _Rows, value: Any) -> Relocation:
    numbers = rows.numbers(value, "relocations")
    if len(numbers) < 3:
        raise rows.refuse("a relocation row lists no placeholder")
    base = rows.pick(tuple(Base), numbers[0], "base of a relocation")
    spelling = rows.pick(tuple(Spelling), numbers[1], "spelling of a relocation")
    return Relocation(base, spelling, tuple(accumulate(numbers[2:])))


def _base(rows: _Rows, value: Any) -> BaseRecord:
    def make(digest: bytes, contents: int, lost: list[Any]) -> BaseRecord:
        return BaseRecord(digest, contents, tuple(rows.strings(lost, "base")))

    (base,) = rows.each([value], "base", (bytes, int, list), make)
    return base


def _contents(rows: _Rows, value: Any) -> tuple[Content, ...]:
    table = rows.mapping(value, "contents")
    if sorted(table) != ["copies", "digests", "foreign", "sizes"]:
        raise rows.refuse(f"the contents table has the columns {sorted(table)}")
    sizes = rows.numbers(table["sizes"], "contents.sizes")
    foreign = rows.numbers(table["foreign"], "contents.foreign")
    digests = table["digests"]
    if not isinstance(digests, bytes) or len(digests) != DIGEST_SIZE * len(sizes) or len(foreign) != len(sizes):
        raise rows.refuse("the columns of the contents table differ in length")
    copies: dict[int, tuple[tuple[int, int], ...]] = {}
    last = -1
    for row in rows.sequence(table["copies"], "contents.copies"):
        number, *flat = rows.numbers(row, "contents.copies") or [-1]
        if len(flat) < 2 or len(flat) % 2 or not last < number < len(sizes):
            raise rows.refuse(f"a row of copies, for content {number} of {len(sizes)}, has another shape")
        last = number
        copies[number] = tuple(zip(flat[::2], flat[1::2]))
    return tuple(
        Content(digests[n * DIGEST_SIZE : (n + 1) * DIGEST_SIZE], size, copies.get(n, ()), foreign[n])
        for n, size in enumerate(sizes)
    )
