"""Whether an installed kernel launches as the bundle's does: a quick look, for the start of a training process.

A look from the bundle's side: the binary and the metadata have the digests of the index, and the group file leads to
files that are there. IR that nobody loads is not read. Of a host binary there is the digest alone. What is not ready is
for ``emit`` to judge, which looks closer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from bundler import check
from bundler.collect import read_file
from bundler.model import Artifact, Content, Entry, Unit

__all__ = ["is_ready"]


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
    members = [artifact for artifact in entry.artifacts if artifact is not groups[0]]
    return _leads_home(directory, groups[0].name, members) and all(
        _is_equal(f"{directory}/{member.name}", contents[member.content]) for member in members
    )


def _leads_home(directory: str, group: str, members: Sequence[Artifact]) -> bool:
    """Whether a group file names ``members``, and every file that it names is in ``directory``."""
    with os.scandir(directory) as found:  # one look at all of them; that the members are whole is seen by reading them
        files = {entry.name for entry in found if entry.is_file(follow_symlinks=False)}
    named = json.loads(read_file(f"{directory}/{group}") or b"")["child_paths"]
    return {member.name for member in members} <= named.keys() <= files and all(
        place == os.path.join(directory, name) for name, place in named.items()
    )


def _is_equal(path: str, content: Content) -> bool:
    data = read_file(path, size=content.size)
    return data is not None and hashlib.sha256(data).digest() == content.digest
