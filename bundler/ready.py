"""Whether an installed kernel launches as the bundle's does: a quick look, for the start of a training process.

A look from the bundle's side: the binary and the metadata have the digests of the index, and the group file is the
bundle's too, or leads to files that are there. IR that nobody loads is not read. Of a host binary there is the digest
alone. What is not ready is for ``emit`` to judge, which looks closer.

This is the whole of a hit where nothing is missing, so every system call counts. What kind of file it is, is not asked:
what has the digest of the index is ready.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from bundler import check
from bundler._opening import READ_FLAGS, open_unseen
from bundler.model import Artifact, Base, Content, Entry, Unit
from bundler.relocate import unrestore

__all__ = ["is_ready"]

_GROUP_SIZE = 1 << 16  # bytes; of a larger one, which names a thousand files, not all is read, and ``emit`` judges
_PIECE = 1 << 24  # bytes; room is taken for all that is asked for, and an index may say a terabyte of a small file


def is_ready(entry: Entry, contents: Sequence[Content], root: str) -> bool:
    """Whether the kernel, or host binary, at the place of ``entry`` below ``root`` can be left as it is.

    Args:
        entry: Of the bundle.
        contents: Of the bundle's index.
        root: Absolute path.
    """
    place = os.path.join(root, *entry.path.split("/"))
    try:
        if entry.unit is Unit.HOST_BINARY:
            return _is_equal(place, contents[entry.artifacts[0].content])
        return entry.unit is Unit.KERNEL and _launches_alike(entry, contents, place)
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):  # absent, or damaged
        return False


def _launches_alike(entry: Entry, contents: Sequence[Content], directory: str) -> bool:
    groups = [artifact for artifact in entry.artifacts if check.is_group(artifact.name)]
    if len(groups) != 1:
        return False
    group = groups[0]
    members = [artifact for artifact in entry.artifacts if artifact is not group]
    data = _read(f"{directory}/{group.name}", _GROUP_SIZE)
    is_led = _is_as_restored(group, contents[group.content], data, directory) or _leads_home(directory, data, members)
    return is_led and all(_is_equal(f"{directory}/{member.name}", contents[member.content]) for member in members)


def _is_as_restored(group: Artifact, content: Content, data: bytes, directory: str) -> bool:
    """Whether a group file is what a restore would write, byte for byte."""
    if group.relocation is None or group.relocation.base is not Base.ENTRY:
        return False
    stored = unrestore(data, group.relocation, directory)
    return stored is not None and hashlib.sha256(stored).digest() == content.digest


def _leads_home(directory: str, group: bytes, members: Sequence[Artifact]) -> bool:
    """Whether a group file names ``members``, and every file that it names is in ``directory``."""
    with os.scandir(directory) as found:  # one look at all of them; that the members are whole is seen by reading them
        files = {entry.name for entry in found if entry.is_file(follow_symlinks=False)}
    named = json.loads(group)["child_paths"]
    return {member.name for member in members} <= named.keys() <= files and all(
        place == os.path.join(directory, name) for name, place in named.items()
    )


def _is_equal(path: str, content: Content) -> bool:
    data = _read(path, content.size)
    return len(data) == content.size and hashlib.sha256(data).digest() == content.digest


def _read(path: str, size: int) -> bytes:
    """Return the bytes of a file, and at most one more than ``size``: then it is larger.

    A link in the last part is not followed, and a FIFO has nothing to give.
    """
    fd = open_unseen(path, READ_FLAGS)
    try:
        data = os.read(fd, min(size, _PIECE) + 1)
        if not 0 < len(data) < size:
            return data
        parts, left = [data], size + 1 - len(data)  # a file system may give less than it is asked for
        while left and (more := os.read(fd, min(left, _PIECE))):
            parts.append(more)
            left -= len(more)
        return b"".join(parts)
    finally:
        os.close(fd)
