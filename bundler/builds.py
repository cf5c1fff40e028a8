"""A build of an entry: its files as they would lie in one and the same place, and whether another build loads alike.

Entries come from open bundles, or from trees as drafts; compared with each other, all are builds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bundler import check
from bundler.collect import ChangedError, Draft, File
from bundler.compare import Verdict, compare_file, compare_kernel
from bundler.formats import Reader
from bundler.model import Entry, Relocation, Target, Unit
from bundler.relocate import restore

__all__ = ["Build", "alike", "compare"]


@dataclass(frozen=True, slots=True)
class Build:
    """One build of an entry.

    Attributes:
        unit: What the entry is.
        target: The GPU that it is for.
        directory: Inside the root; where the placeholders lead.
        forms: Of each file by name, raw digest and bytes of its placeholder form, and its placeholders.
        read: Returns the files by name, placeholders written over.
    """

    unit: Unit
    target: Target | None
    directory: str
    forms: Mapping[str, tuple[bytes, int, Relocation | None]]
    read: Callable[[], dict[str, bytes]]

    @classmethod
    def of_entry(cls, reader: Reader, entry: Entry) -> Build:
        """Return an entry of an open bundle."""
        contents = reader.index.contents
        forms = {a.name: (contents[a.content].digest, contents[a.content].size, a.relocation) for a in entry.artifacts}
        return cls(entry.unit, entry.target, entry.directory, forms, partial(_read_entry, reader, entry))

    @classmethod
    def of_draft(cls, draft: Draft) -> Build:
        """Return an entry of a tree. Reading it raises ``ChangedError`` when a file is not what it was."""
        forms = {file.name: (file.digest, file.size, _relocation(file)) for file in draft.files}
        return cls(draft.unit, draft.target, draft.directory, forms, partial(_read_draft, draft))


def compare(ours: Build, theirs: Build) -> Verdict:
    """Compare two builds of one identity as a restore would."""
    if (ours.unit, ours.target) != (theirs.unit, theirs.target):
        return Verdict.DIFFERENT
    if ours.forms == theirs.forms:
        return Verdict.IDENTICAL
    if any(size > check.WHOLE_LIMIT for build in (ours, theirs) for _, size, _ in build.forms.values()):
        return Verdict.DIFFERENT  # too large to parse: such ones are told apart by their digests alone
    mine, others = ours.read(), theirs.read()
    if ours.unit is Unit.KERNEL:
        return compare_kernel(mine, others, ours.directory.rpartition("/")[2])
    (name,) = mine
    return compare_file(name, ours.unit, mine[name], others[name])


def alike(ours: Build, theirs: Build) -> bool:
    """Whether a launch loads the same from two builds of one identity; one may have fewer members."""
    if len(ours.forms) > len(theirs.forms):
        ours, theirs = theirs, ours
    # Members of a runtime profile are some of those of a full one: seen from it, the full one is equivalent.
    return compare(ours, theirs) in (Verdict.IDENTICAL, Verdict.EQUIVALENT)


def _relocation(file: File) -> Relocation | None:
    return file.relocation if file.relocation and file.relocation.offsets else None


def _read_entry(reader: Reader, entry: Entry) -> dict[str, bytes]:
    files = {}
    for artifact in entry.artifacts:
        data = reader.read(artifact.content)
        files[artifact.name] = _placed(data, artifact.relocation, entry.directory, f"{entry}/{artifact.name}")
    return files


def _read_draft(draft: Draft) -> dict[str, bytes]:
    files = {}
    for file in draft.files:
        data = _read_file(draft, file)
        files[file.name] = _placed(data, _relocation(file), draft.directory, f"{draft.root}/{draft.path}/{file.name}")
    return files


def _read_file(draft: Draft, file: File) -> bytes:
    if file.data is not None:
        return file.data
    try:
        data = b"".join(file.reopen())
    except OSError as error:
        raise ChangedError(draft.root, draft.path) from error
    if hashlib.sha256(data).digest() != file.digest:
        raise ChangedError(draft.root, draft.path)
    return data


def _placed(data: bytes, relocation: Relocation | None, directory: str, name: str) -> bytes:
    return data if relocation is None else restore(data, relocation, f"/{directory or '.'}", name=name)
