"""What the rows of an index must obey beyond their shape; each rule names its harm. FORMAT.md section 3."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from bundler.errors import FormatError, LimitExceededError, UnsafePathError
from bundler.formats.limits import (
    MAX_BLOCK_SIZE,
    MAX_CONTENT_SIZE,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_EXPANSION,
    MAX_FRAME_SIZE,
    MAX_FREE_EXPANSION,
    MAX_NAME_SIZE,
    MAX_PATH_SIZE,
    MAX_PLACEHOLDERS,
    MAX_RELOCATED_SIZE,
)
from bundler.model import Content, Entry, Index, Unit

__all__ = ["check", "check_path", "collision", "own_sizes"]

_RESERVED = ".tb-"  # staging names: kinds.STAGING_PREFIX, which this module may not import
# Parts that are plain at sight, and too few and too short to be above a limit: nearly every path of a cache.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(?:/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}){0,15}")
_ROOT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check(index: Index, *, payload_size: int, bundle_size: int, offset: int, name: str, spare: int = 0) -> None:
    """Refuse an index that a restore could not carry out, or should not.

    Args:
        index: Of the right shape.
        payload_size: Bytes of the payload section, from the header.
        bundle_size: Bytes of the whole file, from the header.
        offset: Where the index starts in the file, for messages.
        name: The file, for messages.
        spare: How many contents, the first ones, may belong to no file.

    Raises:
        FormatError: A rule is broken.
        LimitExceededError: A count or size is above its limit.
        UnsafePathError: A path that could leave the root, or stands for something of ours.
    """
    _check_counts(index, name)
    try:
        _check_base(index)
        _check_frames(index, payload_size)
        _check_contents(index, spare)
        _check_entries(index)
    except _BrokenRuleError as error:
        raise FormatError(str(error), offset, name) from error
    # A small file that unpacks to terabytes is refused before the first byte of it.
    absent = _absent_size(index) if index.base else 0
    size = index.content_size - absent + MAX_PATH_SIZE * (_placeholders(index) + _directories(index))
    if size > MAX_FREE_EXPANSION and size > bundle_size * MAX_EXPANSION:
        raise LimitExceededError("bytes of files per byte of bundle", size // bundle_size, MAX_EXPANSION, name)


def _absent_size(index: Index) -> int:
    """Return the bytes of the files that lie in the base."""
    numbers = (artifact.content for entry in index.entries for artifact in entry.artifacts)
    return sum(index.contents[number].size for number in numbers if number < index.base_contents)


def _placeholders(index: Index) -> int:
    rows = [artifact.relocation for entry in index.entries for artifact in entry.artifacts if artifact.relocation]
    return sum(len(row.offsets) for row in rows)


def _directories(index: Index) -> int:
    """Return how many directories a restore makes at most."""
    return sum(entry.path.count("/") + (entry.unit is Unit.KERNEL) for entry in index.entries)


class _BrokenRuleError(Exception):
    """A rule is broken; becomes a FormatError with its place."""


def _require(holds: bool, what: str) -> None:
    """Raise where a rule of the whole index is broken. Checks of rows do it themselves: a text for each is dear."""
    if not holds:
        raise _BrokenRuleError(what)


def _check_counts(index: Index, name: str) -> None:
    files = max((len(entry.artifacts) for entry in index.entries), default=0)
    for what, count in (
        ("number of roots", len(index.roots)),
        ("number of entries", len(index.entries)),
        ("number of contents", len(index.contents)),
        ("number of frames", len(index.frames)),
        ("number of files in one entry", files),
        ("number of lost entries", len(index.base.lost) if index.base else 0),
    ):
        if count > MAX_COUNT:
            raise LimitExceededError(what, count, MAX_COUNT, name)
    for what, size, limit in (
        ("raw bytes of a frame", max((frame.raw_size for frame in index.frames), default=0), MAX_BLOCK_SIZE),
        ("bytes of a frame as stored", max((frame.stored_size for frame in index.frames), default=0), MAX_FRAME_SIZE),
        ("bytes of a content", max((content.size for content in index.contents), default=0), MAX_CONTENT_SIZE),
    ):
        if size > limit:
            raise LimitExceededError(what, size, limit, name)


def _check_base(index: Index) -> None:
    if index.base is None:
        return
    digest, lost, there = index.base.digest, index.base.lost, index.contents[: index.base_contents]
    _require(len(digest) == 32, f"the digest of the base has {len(digest)} bytes, not 32")
    _require(len(there) == index.base_contents, f"{index.base_contents} of {len(there)} contents lie in the base")
    # What the base knows of a content stands there alone, where it cannot contradict this index.
    bare = all(not content.copies and not content.foreign for content in there)
    _require(bare, "a content that lies in the base has copies, or foreign paths")
    _require(list(lost) == sorted(set(lost)), "the lost entries are not sorted, or one stands twice")


def _check_frames(index: Index, payload_size: int) -> None:
    stored = sum(frame.stored_size for frame in index.frames)
    _require(stored == payload_size, f"the frames are {stored} bytes, the header says {payload_size}")
    for number, frame in enumerate(index.frames):
        _require(len(frame.digest) == 32, f"the digest of frame {number} has {len(frame.digest)} bytes, not 32")
        # Empty frames would let one payload be cut into frames in many ways.
        _require(frame.stored_size > 0 and frame.raw_size > 0, f"frame {number} is empty")


def own_sizes(index: Index) -> list[int]:
    """Return how many bytes each content has of its own, in payload order; the rest are copies, or lie in the base."""
    contents, absent = index.contents, index.base_contents
    own = [c.size - _copied(c, contents) if c.copies else c.size for c in contents[absent:]]
    return [0] * absent + own


def _copied(content: Content, contents: Sequence[Content]) -> int:
    return sum(contents[number].size for _, number in content.copies)


def _check_contents(index: Index, spare: int) -> None:
    contents = index.contents
    for number, content in enumerate(contents):
        for _, source in content.copies:
            # Copies of copies would let a few rows stand for any number of bytes; a later source cannot be streamed.
            if source >= number:
                raise _BrokenRuleError(f"content {number} copies content {source}, which does not stand before it")
            if contents[source].copies:
                raise _BrokenRuleError(f"content {number} copies content {source}, itself made of copies")
            if not contents[source].size:
                raise _BrokenRuleError(f"content {number} copies content {source}, which is empty")
        if content.foreign >= len(index.foreign):
            raise _BrokenRuleError(f"content {number} names row {content.foreign} of foreign paths")
    own = own_sizes(index)
    for number, content in enumerate(contents):
        gaps = sum(gap for gap, _ in content.copies) if content.copies else 0
        if own[number] < gaps:
            raise _BrokenRuleError(f"content {number} has {own[number]} bytes of its own, its copies need {gaps}")
    raw = sum(frame.raw_size for frame in index.frames)
    _require(sum(own) == raw, f"the contents have {sum(own)} bytes of their own, the frames hold {raw}")
    _require(len({content.digest for content in contents}) == len(contents), "a content stands twice")
    used = {artifact.content for entry in index.entries for artifact in entry.artifacts}
    _require(max(used, default=-1) < len(contents), f"a file refers to content {max(used, default=-1)}, out of range")
    # Unused bytes are room for a second, hidden file.
    used |= {source for content in contents for _, source in content.copies} | set(range(spare))
    _require(len(used) == len(contents), f"{len(contents) - len(used)} contents belong to no file")


def _check_entries(index: Index) -> None:
    names = [root.name for root in index.roots]
    _require(names == sorted(set(names)), "the roots are not sorted, or one stands twice")
    for root in index.roots:
        _require(bool(_ROOT_NAME.fullmatch(root.name)), f"root name {root.name!r}")
    _require(index.foreign[:1] == ((),), "row 0 of foreign paths is not empty")
    before: tuple[str, str] = ("", "")
    for entry in index.entries:
        identity = entry.identity
        if identity <= before:
            raise _BrokenRuleError(f"entry {entry} is not sorted, or stands twice")
        before = identity
        if not _PLAIN_PATH.fullmatch(entry.path):
            _check_parts(entry.path, str(entry))
        _check_artifacts(entry, index)
    _check_collisions(index.entries)


def _check_artifacts(entry: Entry, index: Index) -> None:
    names = [artifact.name for artifact in entry.artifacts]
    if not names or names != sorted(set(names)):
        raise _BrokenRuleError(f"the files of {entry} are none, not sorted, or twice there")
    if entry.unit is Unit.KERNEL:
        for name in names:
            if "/" in name:
                raise _BrokenRuleError(f"file {name!r} of kernel {entry} lies in another directory")
            if not _PLAIN_PATH.fullmatch(name):
                _check_parts(name, f"{entry}/{name}")
    elif names != [entry.path.rpartition("/")[2]]:
        raise _BrokenRuleError(f"{entry} does not have the one file of its name")
    for artifact in entry.artifacts:
        if artifact.relocation:
            _check_relocation(entry, artifact.name, artifact.relocation.offsets, index.contents[artifact.content].size)


def _check_relocation(entry: Entry, name: str, offsets: Sequence[int], size: int) -> None:
    for what, count, limit in (
        ("bytes of a file with placeholders", size, MAX_RELOCATED_SIZE),
        ("number of placeholders in a file", len(offsets), MAX_PLACEHOLDERS),
    ):
        if count > limit:
            raise LimitExceededError(what, count, limit, f"{entry}/{name}")
    # The shortest placeholder has six bytes; where one really stands is seen when it is written over.
    apart = all(after - before >= 6 for before, after in pairwise(offsets))
    _require(
        apart and offsets[-1] + 6 <= size, f"the placeholders of {entry}/{name} overlap or lie beyond {size} bytes"
    )


def _check_collisions(entries: Sequence[Entry]) -> None:
    found = collision((entry.root, entry.directory, a.name) for entry in entries for a in entry.artifacts)
    _require(found is None, found or "")


def collision(files: Iterable[tuple[str, str, str]]) -> str | None:
    """Say which file would be written twice, or stands where another needs a directory; None when there is none.

    Args:
        files: (root name, directory inside the root, file name) of each.
    """
    # NUL sorts before every other character and is in no path: what lies below a file would stand right behind it.
    # (A set of all directories would need memory by the square of the depth.)
    paths = sorted("\0".join((root, *_parts(directory), name)) for root, directory, name in files)
    for path, after in pairwise(paths):
        if path == after:
            return f"two entries write {_shown(path)}"
        if after.startswith(path + "\0"):
            return f"{_shown(path)} is a file of one entry and a directory of another"
    return None


def _parts(directory: str) -> list[str]:
    return directory.split("/") if directory else []


def _shown(path: str) -> str:
    return path.replace("\0", "/")


def check_path(path: str, name: str) -> None:
    """Refuse a path that is not a plain one below its root.

    Raises:
        UnsafePathError: Absolute, with an empty part, ``.``, ``..`` or NUL, of a reserved name, or not UTF-8.
        LimitExceededError: A part or the whole is too long, or there are too many parts.
    """
    if not _PLAIN_PATH.fullmatch(path):
        _check_parts(path, name)


def _check_parts(path: str, name: str) -> None:
    """Check a path that is not plain at sight; callers who have thousands make no ``name`` for those that are."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnsafePathError(path, "the name is not UTF-8") from error
    if len(encoded) > MAX_PATH_SIZE:
        raise LimitExceededError("bytes of a path", len(encoded), MAX_PATH_SIZE, name)
    if path.count("/") >= MAX_DEPTH:
        raise LimitExceededError("number of parts of a path", path.count("/") + 1, MAX_DEPTH, name)
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise UnsafePathError(path, f"a bundle holds plain relative paths, and this one has the part {part!r}")
        if "\0" in part:
            raise UnsafePathError(path, "a NUL in a name")
        if part.startswith(_RESERVED):
            raise UnsafePathError(path, f"names that start with {_RESERVED} are reserved for staging")
        if len(part.encode("utf-8")) > MAX_NAME_SIZE:
            raise LimitExceededError("bytes of a file name", len(part.encode("utf-8")), MAX_NAME_SIZE, name)
