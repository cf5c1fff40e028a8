"""Whether an installed kernel launches as the bundle's does: a quick look, for the start of a training process.

A look from the bundle's side: the binary and the metadata have the digests of the index, and the group file leads to
files that are there. IR that nobody loads is not read. What is not ready is for ``emit`` to judge, which looks closer.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence

from bundler import check
from bundler.collect import read_file
from bundler.model import Artifact, Content, Entry, Unit

__all__ = ["is_ready"]


def is_ready(entry: Entry, contents: Sequence[Content], root: str) -> bool:
    """Whether the kernel at the place of ``entry`` below ``root`` can be left as it is.

    Args:
        entry: Of the bundle.
        contents: Of the bundle's index.
        root: Absolute path.
    """
    directory = os.path.join(root, *entry.path.split("/"))
    groups = [artifact for artifact in entry.artifacts if check.is_group(artifact.name)]
    if entry.unit is not Unit.KERNEL or len(groups) != 1:
        return False
    members = [artifact for artifact in entry.artifacts if artifact is not groups[0]]
    try:
        return _leads_home(os.path.join(directory, groups[0].name), directory, members) and all(
            _is_equal(os.path.join(directory, member.name), contents[member.content]) for member in members
        )
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):  # absent, or damaged
        return False


def _leads_home(path: str, directory: str, members: Sequence[Artifact]) -> bool:
    """Whether a group file names ``members``, and every file that it names is in ``directory``."""
    named = json.loads(read_file(path) or b"")["child_paths"]
    return {member.name for member in members} <= set(named) and all(
        place == os.path.join(directory, name) and _is_file(place) for name, place in named.items()
    )


def _is_file(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _is_equal(path: str, content: Content) -> bool:
    data = read_file(path) if os.lstat(path).st_size == content.size else None
    return data is not None and hashlib.sha256(data).digest() == content.digest
