"""Whether the files of an entry are what they claim to be; bytes only, no torch, Triton or GPU.

A file is *examined* by itself; the files of a kernel entry are then *judged* together. ``collect`` asks before it
packs, ``verify`` asks of bundles and installed trees, and ``emit`` asks before it leaves an installed entry alone, so
that one answer holds everywhere.

The readers of other programs' formats are loaded when the first such file is seen: a hit sees none.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bundler.errors import FormatError, RelocationError
from bundler.model import GROUP_PREFIX, Target, Unit
from bundler.relocate import Group, parse_group

__all__ = [
    "BYTE_CODE_SUFFIX",
    "IR_SUFFIXES",
    "WHOLE_LIMIT",
    "Facts",
    "Problem",
    "examine",
    "examine_large",
    "is_group",
    "judge",
    "same_source",
    "suffix",
]

WHOLE_LIMIT = 64 << 20
"""Bytes up to which a file is parsed whole; of a larger one only the first and last bytes are looked at."""

BYTE_CODE_SUFFIX = ".pyc"
"""What the name of a file of Python's byte code ends in."""

# Intermediate stages; what a group names beside these and the metadata is the binary, whatever its suffix.
IR_SUFFIXES = frozenset({".source", ".ttir", ".ttgir", ".llir", ".ptx", ".amdgcn", ".llvm", ".gluon", ".ttsharedir"})
_ELF_SUFFIXES = frozenset({".cubin", ".hsaco", ".so"})
_MAY_BE_EMPTY = frozenset({".source"})
_NEVER_BLANK = frozenset({".json", BYTE_CODE_SUFFIX})  # wherever they lie


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong: ``code`` from the command contract, the file inside the entry, and a sentence."""

    code: str
    file: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.detail}" if self.file else self.detail


class Facts(NamedTuple):
    """What one file says.

    Attributes:
        problems: What is wrong with the file by itself.
        target: GPU named in kernel metadata, or in the ELF header of a binary.
        group: The group file, parsed, when it is one.
        needs: What a host binary asks of the host, and byte code of Python.
        long: (offset, length) of the long strings of a pickle, in bytes: where copies of other files may stand.
        compile_ns: Nanoseconds of compile time that an FX graph entry says it stands for.
    """

    problems: tuple[Problem, ...] = ()
    target: Target | None = None
    group: Group | None = None
    needs: tuple[str, ...] = ()
    long: tuple[tuple[int, int], ...] = ()
    compile_ns: int = 0


def suffix(name: str) -> str:
    """Return the last suffix of a file name with its dot; "" when there is none."""
    dot = name.rfind(".")
    return name[dot:] if dot > 0 else ""


def is_group(name: str) -> bool:
    """Whether a file of this name lists the members of a kernel."""
    return name.startswith(GROUP_PREFIX) and name.endswith(".json")


def examine(name: str, data: bytes, unit: Unit, *, key: str = "") -> Facts:
    """Check one file by itself.

    Args:
        name: Its name inside the entry.
        data: All of its bytes.
        unit: What the entry is.
        key: Name of the directory that holds a kernel entry.
    """
    ending = suffix(name)
    damage = _blank(name, data, unit, ending)
    if damage is not None:
        return Facts((damage,))
    if unit is Unit.KERNEL and is_group(name):
        return _examine_group(name, data, key)
    if unit in (Unit.FXGRAPH, Unit.AOTAUTOGRAD):
        return _examine_pickle(name, data, unit)
    if ending in _ELF_SUFFIXES and unit in (Unit.KERNEL, Unit.HOST_BINARY):
        return _examine_elf(name, data, unit)
    if unit is Unit.AUTOTUNE or ending == ".json":
        return _examine_json(name, data, unit)
    if unit is Unit.MODULE:
        return _examine_python(name, data)
    if ending == BYTE_CODE_SUFFIX and unit is Unit.FILE:
        return _examine_byte_code(name, data)
    return Facts()


def examine_large(name: str, head: bytes, tail: bytes, unit: Unit, *, nul_only: bool) -> Facts:
    """Check a file above ``WHOLE_LIMIT`` by its first and last bytes (64 each will do) and whether all of it is NUL."""
    problem = None
    if nul_only and unit is not Unit.FILE:
        problem = Problem("nul_filled", name, "every byte is NUL")
    elif unit in (Unit.FXGRAPH, Unit.AOTAUTOGRAD) and (head[:1] != b"\x80" or tail[-1:] != b"."):
        problem = Problem("bad_pickle", name, "no pickle protocol at the start, or no STOP at the end")
    elif suffix(name) in _ELF_SUFFIXES and unit is not Unit.FILE and head[:4] != b"\x7fELF":
        problem = Problem("bad_elf", name, f"starts with {head[:4].hex(' ')}, not with the ELF magic")
    return Facts((problem,) if problem else ())


def _blank(name: str, data: bytes, unit: Unit, ending: str) -> Problem | None:
    if not data:
        anything = unit is Unit.FILE and ending not in _NEVER_BLANK
        if anything or ending in _MAY_BE_EMPTY or name == "__init__.py":
            return None
        return Problem("empty", name, "0 bytes: the write was cut off")
    known = unit is not Unit.FILE or ending in _NEVER_BLANK
    if known and data[0] == 0 and data.count(0) == len(data):
        return Problem("nul_filled", name, f"{len(data)} bytes, all NUL: the data was lost in a crash")
    return None


def _examine_group(name: str, data: bytes, key: str) -> Facts:
    try:
        return Facts(group=parse_group(data, key, name=name))
    except RelocationError as error:
        return Facts((Problem("bad_json", name, error.reason),))


def _examine_pickle(name: str, data: bytes, unit: Unit) -> Facts:
    from bundler.formats import pickles

    try:
        walk = pickles.walk(data)
    except FormatError as error:
        return Facts((Problem("bad_pickle", name, f"{error.what} at byte {error.offset}"),))
    # An AOTAutograd entry's time holds that of its FX graphs, so only these are counted.
    return Facts(long=tuple(walk.long), compile_ns=pickles.compile_nanoseconds(data) if unit is Unit.FXGRAPH else 0)


def _examine_elf(name: str, data: bytes, unit: Unit) -> Facts:
    from bundler.formats import elf

    try:
        elf.parse(data)
        if unit is Unit.HOST_BINARY:
            return Facts(needs=elf.host_needs(data))
        return Facts(target=elf.target(data))
    except FormatError as error:
        return Facts((Problem("bad_elf", name, f"{error.what} at byte {error.offset}"),))


def _examine_json(name: str, data: bytes, unit: Unit) -> Facts:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Facts((Problem("bad_json", name, str(error)),))
    return Facts(target=_target(parsed) if unit is Unit.KERNEL else None)


def _target(metadata: Any) -> Target | None:
    """Read ``{"target": {"backend", "arch", "warp_size"}}``. Source: triton/compiler/compiler.py, CompiledKernel."""
    target = metadata.get("target") if isinstance(metadata, dict) else None
    if not isinstance(target, dict):
        return None
    backend, arch, warp_size = target.get("backend"), target.get("arch"), target.get("warp_size")
    if not isinstance(backend, str) or not isinstance(arch, (str, int)) or not f"{backend}{arch}".isascii():
        return None
    return Target(backend, str(arch), warp_size if type(warp_size) is int and warp_size >= 0 else 0)


_MODULE_NAME = re.compile(r"c([a-z2-7]{51})\.py")


def _is_named_by_content(name: str, data: bytes) -> bool:
    """Whether a module has the name that Inductor gives to just these bytes: then all of them are there.

    Source: torch/_inductor/codecache.py, ``write`` and ``code_hash``: SHA-256 of the source without the white space at
    its ends, in base32.
    """
    match = _MODULE_NAME.fullmatch(name)
    if match is None:
        return False
    if data[:1].isspace() and not data[: -len(data.lstrip())].endswith(b"\n"):  # indented, which the name does not tell
        return False
    from base64 import b32encode  # only roots of Inductor hold such modules

    return b32encode(hashlib.sha256(data.strip()).digest())[:51].decode().lower() == match[1]


def _examine_python(name: str, data: bytes) -> Facts:
    if _is_named_by_content(name, data):  # a hundredth of the time that the parser takes
        return Facts()
    import symtable  # only a few roots hold other modules

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # The same parser, and then a table of names in place of a tree of Python objects: a third of the time. It
            # refuses more than the parser does, so that only what passes is settled.
            symtable.symtable(data, "<module>", "exec")  # type: ignore[arg-type]  # bytes, so that a coding line counts
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            import ast  # only for what is wrong

            try:
                ast.parse(data)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                return Facts((Problem("bad_python", name, str(error)),))
    return Facts()


def _examine_byte_code(name: str, data: bytes) -> Facts:
    from bundler.formats import bytecode

    try:
        found = bytecode.parse(data)
    except FormatError as error:
        return Facts((Problem("bad_python", name, f"{error.what} at byte {error.offset}"),))
    tag = bytecode.tag_of(name)
    if found.python and tag.startswith("cpython-") and tag != found.python:
        detail = f"it is named for {tag}, and its magic number {found.magic} is of {found.python}"
        return Facts((Problem("bad_python", name, detail),))
    return Facts(needs=(f"python:{tag}",) if tag else ())


def same_source(name: str, ours: bytes, theirs: bytes) -> bool:
    """Whether two files are byte code of one source, made by one Python.

    The bytes may differ all the same: what is written as a reference depends on what else was alive at that moment.
    """
    if suffix(name) != BYTE_CODE_SUFFIX:
        return False
    from bundler.formats import bytecode

    try:
        return bytecode.parse(ours) == bytecode.parse(theirs)
    except FormatError:
        return False


def judge(files: Mapping[str, Facts]) -> tuple[tuple[Problem, ...], Target | None]:
    """Check the files of one kernel entry together.

    Args:
        files: What each file of the directory says, by name.

    Returns:
        Every problem, those of single files first; and the target that the entry is for.
    """
    problems = [problem for facts in files.values() for problem in facts.problems]
    groups = {name: facts.group for name, facts in files.items() if facts.group is not None}
    if not groups and not problems:
        problems.append(Problem("missing_member", "", "no group file: the kernel counts as absent"))
    for name, group in groups.items():
        problems += _judge_group(name, group, files)
    targets = {name: facts.target for name, facts in files.items() if facts.target}
    return tuple(problems + _mismatches(targets)), _common_target(targets)


def _judge_group(name: str, group: Group, files: Mapping[str, Facts]) -> list[Problem]:
    problems = [
        Problem("missing_member", member, f"listed in {name}, but not there")
        for member in group.members
        if member not in files
    ]
    metadata = name[len(GROUP_PREFIX) :]
    if metadata not in group.members:
        problems.append(Problem("missing_member", metadata, f"{name} lists no metadata of this name"))
    if not binaries(group.members):
        problems.append(
            Problem("missing_member", "", f"{name} lists no binary, only {', '.join(group.members) or 'nothing'}")
        )
    return problems


def binaries(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return the members of a group that a launch loads: neither metadata nor an intermediate stage."""
    return tuple(m for m in members if not m.endswith(".json") and suffix(m) not in IR_SUFFIXES)


def _mismatches(targets: Mapping[str, Target]) -> list[Problem]:
    """The JSON and the ELF of one kernel must name one GPU, each file against the metadata."""
    stated = {name: target for name, target in targets.items() if name.endswith(".json")}
    found: list[Problem] = []
    for name, target in targets.items():
        for source, other in stated.items():
            if name not in stated and (target.backend, target.arch) != (other.backend, other.arch):
                found.append(Problem("target_mismatch", name, f"the binary is for {target}, {source} says {other}"))
    return found


def _common_target(targets: Mapping[str, Target]) -> Target | None:
    # The metadata states the warp size too; a binary without metadata about its target still names its arch.
    by_metadata = [target for name, target in sorted(targets.items()) if name.endswith(".json")]
    return next(iter(by_metadata or [target for _, target in sorted(targets.items())]), None)
