"""Whether an installed entry is the bundle's: identical, equivalent, upgradable, damaged or different. Bytes only.

Compilation is not deterministic to the byte: one kernel compiled under two roots shares every byte of ``.text`` and not
one cubin file, because debug sections hold paths. So what counts is what a launch loads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from bundler import check
from bundler.errors import FormatError
from bundler.model import GROUP_PREFIX, Unit

__all__ = ["Verdict", "build_files", "compare_file", "compare_kernel"]


class Verdict(Enum):
    """How an installed entry stands to the bundle's.

    ``UPGRADE``: the installed one is sound and the same kernel, but has fewer members (a runtime profile).
    ``VACANT``: a directory without any file of a kernel, as Triton makes it when it looks a kernel up.
    """

    VACANT = "vacant"
    IDENTICAL = "identical"
    EQUIVALENT = "equivalent"
    UPGRADE = "upgrade"
    DAMAGED = "damaged"
    DIFFERENT = "different"


def compare_kernel(
    ours: Mapping[str, bytes],
    theirs: Mapping[str, bytes],
    key: str,
    points_home: Callable[[str], bool] = lambda directory: True,
) -> Verdict:
    """Compare two kernel entries of one identity.

    Args:
        ours: The bundle's files by name.
        theirs: The installed files by name; files that belong to no kernel may be among them.
        key: Name of the directory of both.
        points_home: Whether a directory, as a group file of ``theirs`` names it, is where ``theirs`` lie.
    """
    if all(theirs.get(name) == data for name, data in ours.items()):
        return Verdict.IDENTICAL
    if not build_files(theirs, ours):
        return Verdict.VACANT
    mine = {name: check.examine(name, data, Unit.KERNEL, key=key) for name, data in ours.items()}
    found = {name: check.examine(name, data, Unit.KERNEL, key=key) for name, data in theirs.items()}
    groups = {name: facts.group for name, facts in mine.items() if facts.group}
    installed = {name: found[name].group for name in groups if name in found}
    if check.judge(_members(found))[0] or any(group is None for group in installed.values()):
        return Verdict.DAMAGED
    if not all(points_home(group.directory) for group in installed.values() if group):
        return Verdict.DAMAGED
    if set(installed) != set(groups):
        # The directory lacks one of our group files: to Triton that kernel is absent.
        return Verdict.DAMAGED
    listed = {member for group in groups.values() if group for member in group.members}
    present = {member for group in installed.values() if group for member in group.members}
    if not all(_same(name, ours[name], theirs[name]) for name in listed & present if name in ours):
        return Verdict.DIFFERENT
    needed = {name for name in listed if name.endswith(".json")} | set(check.binaries(tuple(listed)))
    if not needed <= present:
        return Verdict.DIFFERENT
    return Verdict.EQUIVALENT if listed <= present else Verdict.UPGRADE


def _members(files: Mapping[str, check.Facts]) -> dict[str, check.Facts]:
    """Leave out files that no group lists: a stray file does not damage a kernel."""
    listed = {member for facts in files.values() if facts.group for member in facts.group.members}
    return {name: facts for name, facts in files.items() if name in listed or check.is_group(name)}


def _same(name: str, ours: bytes, theirs: bytes) -> bool:
    """Whether two members load alike. IR and PTX are not loaded, and so not compared."""
    if ours == theirs or check.suffix(name) in check.IR_SUFFIXES:
        return True
    try:
        if name.endswith(".json"):
            return bool(_without_paths(json.loads(ours)) == _without_paths(json.loads(theirs)))
        from bundler.formats import elf  # only where two binaries differ

        return elf.loadable_digest(ours) == elf.loadable_digest(theirs)
    except (FormatError, ValueError, RecursionError):  # not ELF: a binary of another backend; or a strange bundle
        return False


def _without_paths(value: Any) -> Any:
    """Reduce absolute paths to their last part: the same library lies elsewhere on another host."""
    if isinstance(value, str):
        return value.rpartition("/")[2] if value.startswith("/") else value
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_paths(item) for key, item in value.items()}
    return value


def compare_file(name: str, unit: Unit, ours: bytes, theirs: bytes) -> Verdict:
    """Compare two single-file entries of one identity."""
    if ours == theirs:
        return Verdict.IDENTICAL
    if check.examine(name, theirs, unit).problems:
        return Verdict.DAMAGED
    return Verdict.EQUIVALENT if check.same_source(name, ours, theirs) else Verdict.DIFFERENT


def build_files(theirs: Mapping[str, bytes], new_names: Collection[str]) -> set[str]:
    """Return the names in an installed kernel directory that belong to a build: they go when the build is replaced.

    What is left is foreign and is carried over.

    Args:
        theirs: The installed files by name.
        new_names: Names of the entry that takes their place.
    """
    groups = {name for name in (*theirs, *new_names) if check.is_group(name)}
    stems = tuple(name[len(GROUP_PREFIX) : -len("json")] for name in groups)
    listed: set[str] = set()
    for name in groups & set(theirs):
        with suppress(ValueError, RecursionError, AttributeError, TypeError):  # damaged: then the stem alone tells
            listed.update(map(str, json.loads(theirs[name]).get("child_paths", ())))
    return {name for name in theirs if name in new_names or name in groups | listed or name.startswith(stems)}
