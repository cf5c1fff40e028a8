"""A delta and its base, read as the one bundle that they stand for. FORMAT.md section 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bundler.digest import Digest
from bundler.errors import FormatError, MissingBaseError, UsageError, WrongBaseError
from bundler.formats import _rules
from bundler.formats._header import HEADER_SIZE
from bundler.formats.v1 import Reader
from bundler.model import Content, Entry, Index, Profile

__all__ = ["Joined", "check_delta"]


class Joined(Reader):
    """The entries of a delta, and those of its base that the delta has no other build of.

    Contents and frames of the base come first, as if the two payloads were one. Header, signature and both digests are
    those of the delta, which cover the base's content digest.

    Args:
        base: A whole bundle; a file that can seek. Stays the caller's, as ``delta`` does.
        delta: Likewise.

    Raises:
        UsageError: ``delta`` is none, or one of the two is a pipe.
        MissingBaseError: ``base`` is a delta itself.
        WrongBaseError: ``base`` is not the bundle that the delta was made from.
        FormatError: The two do not fit each other, though the digest says so.
    """

    def __init__(self, base: Reader, delta: Reader) -> None:
        record = delta.index.base
        if record is None:
            raise UsageError(f"{delta.name} is a whole bundle, and needs no base: leave {base.name} out")
        if base.index.base is not None:
            raise MissingBaseError(base.name, str(Digest(base.index.base.digest)))
        if base.content_digest.value != record.digest:
            raise WrongBaseError(delta.name, str(Digest(record.digest)), str(base.content_digest))
        for reader in (base, delta):
            if not reader.seekable:
                raise UsageError(f"{reader.name} is a pipe, and a delta is read together with its base: save it first")
        self._base, self._delta = base, delta
        self.name = f"{delta.name} with {base.name}"
        self.seekable = True
        self.header, self.signature = delta.header, delta.signature
        self.index_digest, self.content_digest = delta.index_digest, delta.content_digest
        self.index = _united(base.index, delta.index, self.name)
        _check(self.index, base, delta.header.payload_size, self.bundle_size, self.name)
        self._locate()

    @property
    def bundle_size(self) -> int:
        """Bytes of the two files."""
        return self._base.bundle_size + self._delta.bundle_size

    def _part(self, frame: int) -> tuple[Reader, int]:
        """Return which bundle a frame lies in, and its number there."""
        count = len(self._base.index.frames)
        return (self._base, frame) if frame < count else (self._delta, frame - count)

    def _stored_frame(self, number: int) -> bytes:
        reader, own = self._part(number)
        return reader._stored_frame(own)

    def _decoded(self, number: int) -> bytes:
        reader, own = self._part(number)
        return reader._decoded(own)


def check_delta(base: Reader, index: Index, payload_size: int) -> None:
    """Refuse the index of a delta that no reader would accept together with ``base``.

    Args:
        base: What it stands on.
        index: With ``contents`` and ``frames``.
        payload_size: Bytes of its frames.

    Raises:
        FormatError: The two break a rule of the format (``LimitExceededError``: a limit).
    """
    size = base.bundle_size + payload_size
    _check(_united(base.index, index, base.name), base, payload_size, size, base.name)


def _check(united: Index, base: Reader, payload_size: int, bundle_size: int, name: str) -> None:
    _rules.check(
        united,
        payload_size=base.header.payload_size + payload_size,
        bundle_size=bundle_size,
        offset=HEADER_SIZE,
        name=name,
        spare=len(base.index.contents),  # those of the builds that the delta replaces
    )


def _united(base: Index, delta: Index, name: str) -> Index:
    numbers = _numbers(base, delta, name)
    roots = {root.name: root for root in base.roots}
    for root in delta.roots:
        if roots.setdefault(root.name, root).kind != root.kind:
            kinds = f"{roots[root.name].kind} in the base and of kind {root.kind} in the delta"
            raise FormatError(f"root {root.name!r} is of kind {kinds}", name=name)
        roots[root.name] = root
    newer = {entry.identity for entry in delta.entries}
    entries = [entry for entry in base.entries if entry.identity not in newer]
    entries += [_renumbered(entry, numbers) for entry in delta.entries]
    runtime = base.profile is delta.profile is Profile.RUNTIME
    return Index(
        profile=Profile.RUNTIME if runtime else Profile.FULL,
        roots=tuple(roots[key] for key in sorted(roots)),
        entries=tuple(sorted(entries, key=lambda entry: entry.identity)),
        contents=base.contents + _own_contents(base, delta, numbers),
        frames=base.frames + delta.frames,
        foreign=base.foreign + delta.foreign[1:],
        facts=_facts(base.facts, delta.facts),
        skipped=delta.skipped,
    )


def _numbers(base: Index, delta: Index, name: str) -> list[int]:
    """Return the number that each content of the delta has in the union."""
    there = {content.digest: number for number, content in enumerate(base.contents)}
    numbers = []
    for content in delta.contents[: delta.base_contents]:
        number = there.get(content.digest)
        if number is None or base.contents[number].size != content.size:
            wanted = f"content {Digest(content.digest)} of {content.size} bytes"
            raise FormatError(f"{wanted} is not in the base, where the delta says it lies", name=name)
        numbers.append(number)
    own = len(delta.contents) - delta.base_contents
    return numbers + list(range(len(base.contents), len(base.contents) + own))


def _own_contents(base: Index, delta: Index, numbers: Sequence[int]) -> tuple[Content, ...]:
    shift = len(base.foreign) - 1  # row 0, which is empty, stands once
    return tuple(
        content._replace(
            copies=tuple((gap, numbers[source]) for gap, source in content.copies),
            foreign=content.foreign + shift if content.foreign else 0,
        )
        for content in delta.contents[delta.base_contents :]
    )


def _renumbered(entry: Entry, numbers: Sequence[int]) -> Entry:
    artifacts = tuple(artifact._replace(content=numbers[artifact.content]) for artifact in entry.artifacts)
    return entry._replace(artifacts=artifacts)


def _facts(base: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the delta, and those that it does not state from the base."""
    united = {**base, **delta}
    spent = [facts["compile_milliseconds"] for facts in (base, delta) if type(facts.get("compile_milliseconds")) is int]
    if spent:
        # At least as much: which entries of the base the delta replaces is known, and not what each stands for.
        united["compile_milliseconds"] = max(spent)
    places = [facts["recorded_roots"] for facts in (base, delta) if isinstance(facts.get("recorded_roots"), dict)]
    if places:
        united["recorded_roots"] = {name: path for each in places for name, path in each.items()}
    recorded = [facts["cpu_isa"] for facts in (base, delta) if isinstance(facts.get("cpu_isa"), list)]
    if recorded:  # host binaries may come from either
        united["cpu_isa"] = sorted({str(flag) for isa in recorded for flag in isa})
    return united
