"""Byte code that a run left: tied to the contents of its sources, where Python tied it to their times.

Python notes in a ``.pyc`` when its source was changed and how large it was, and compiles again when either is another.
An image keeps times; an installer does not: pip and uv give each file the time of the installation, so that on any
other machine all of it would be stale. PEP 552 has a second spelling, by a hash of the source that Python compares
before it uses the file. A run's byte code is rewritten to that; only the header changes, and only where the source is
still what Python compiled. It stays as safe as before: what is of another source is not used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence

from bundler import _atomic, check
from bundler.collect import read_file
from bundler.errors import FormatError
from bundler.formats import bytecode
from bundler.watching import Seen

__all__ = ["pin", "python_of"]

_MAGIC = int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")
_BY_CHECKED_HASH = (3).to_bytes(4, "little")  # PEP 552
_SHEBANG = re.compile(rb"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S+)")
_PYTHON = re.compile(r"python(\d)\.(\d+)")
_LINKS = 4  # scripts that start scripts


def pin(entries: Iterable[Seen]) -> list[str]:
    """Tie byte code to the contents of its sources.

    What was made by another Python than this one keeps its times: the hash is Python's own, and may change with it. So
    does what has no source (any more), or another one by now.

    Args:
        entries: Of roots; other things than byte code are passed over.

    Returns:
        A sentence about what keeps its times, if anything does.
    """
    kept, example = 0, ""
    for seen in entries:
        if check.suffix(seen.path) != check.BYTE_CODE_SUFFIX:
            continue
        reason = _pin(seen.place, seen.path)
        kept, example = kept + bool(reason), example or (f"{seen.path}: {reason}" if reason else "")
    if not kept:
        return []
    files = "1 file" if kept == 1 else f"{kept} files"
    return [f"{files} of byte code: of use only where the sources have the same times; {example}"]


def _pin(place: str, path: str) -> str:
    """Rewrite one file; returns why it stays as it is, and "" when it is tied to a hash now, or was before."""
    try:
        status = os.lstat(place)
        if status.st_size > check.WHOLE_LIMIT:
            return f"it has {status.st_size} bytes, and what Python writes has {check.WHOLE_LIMIT} at most"
        if status.st_uid != os.geteuid():
            return "it belongs to somebody else"
        data = read_file(place)
        if data is None:
            return "it changed while it was read"
        found = bytecode.parse(data)
        if found.by_hash:
            return ""
        if found.magic != _MAGIC:
            return "it was made by another Python than the one that runs this"
        source = _source_of(path, found.stamp)
        if source is None:
            return "its source is not there, or not what it was"
        header = data[:4] + _BY_CHECKED_HASH + importlib.util.source_hash(source)
        with _atomic.replacing(place, durable=False) as file:
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))  # Python gave it that of its source
            file.write(header + data[bytecode.HEADER_SIZE :])
    except FormatError:  # collect says so
        return ""
    except OSError as error:
        return f"it cannot be rewritten: {error.strerror}"
    return ""


def _source_of(path: str, stamp: tuple[int, int]) -> bytes | None:
    """Return the source of a file below a root of byte code, if it is the one with this stamp."""
    directory, _, name = path.rpartition("/")
    place = f"/{directory}/{name.rpartition('.' + bytecode.tag_of(name))[0]}.py"
    try:
        status = os.stat(place)
        # As Python takes them, whole seconds and modulo 2 to the 32; and the same again after it was read.
        seen = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
        if seen != stamp or not stat.S_ISREG(status.st_mode) or status.st_size > check.WHOLE_LIMIT:
            return None
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            source = file.read(status.st_size + 1)
        after = os.stat(place)
    except OSError:
        return None
    same = (status.st_mtime_ns, status.st_ino, len(source)) == (after.st_mtime_ns, after.st_ino, status.st_size)
    return source if same else None


def python_of(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the tag of the Python that a command starts, such as ``cpython-311``; "" when its name does not tell.

    Nothing is started for it: links are followed to a name like ``python3.11``, and scripts to their interpreter. A
    shell script may start anything.
    """
    program = command[0] if command else ""
    for _ in range(_LINKS):
        found = shutil.which(program, path=environ.get("PATH"))
        if found is None:
            return ""
        match = _PYTHON.fullmatch(os.path.basename(os.path.realpath(found)))
        if match:
            return f"cpython-{match[1]}{match[2]}"
        try:
            with open(found, "rb") as file:
                line = _SHEBANG.match(file.readline(4096))
        except OSError:
            return ""
        if line is None:
            return ""
        program = os.fsdecode(line[1])
    return ""
