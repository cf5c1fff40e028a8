"""Foreign paths: absolute paths inside artifacts that a restore keeps byte for byte. They are counted, not rewritten.

Triton and Inductor write them into metadata (``extern_libs``), source locations, debug sections and pickles. None of
them is opened when a kernel is loaded, but who reads a bundle wants to know what it says of the machine it came from.
"""

from __future__ import annotations

import re

__all__ = ["RUN", "prefixes"]

# A path follows a quote (JSON, IR, PTX, Python), a NUL (debug sections; the high byte of a pickled length), the 1 that
# stands before the first directory of a DWARF line table, or the length of a short string in a pickle or in byte code.
# The pattern starts with one fixed byte, which the engine finds at memory speed, and then looks back.
# No character may belong to a part and to what parts it, or a row of slashes is matched in every way there is.
_LEAD = rb"""/(?:(?<=["'\x00\x01]/)|(?<=[\x8c\xda\xfa][\x02-\xff]/))"""
_PATH = re.compile(
    _LEAD + rb"((?:[^\x00-\x1f\"'\\/<>|*?:,;()\[\]{}$\x7f-\xff]{1,255}/+){1,64})[^\x00-\x1f\"'\\/<>|*?]{1,255}"
)

# All that a path can be made of, from a lead on. The IR of a kernel names one source in each of its lines, so that what
# is found this quickly is taken apart once, and not a hundred times. What is longer than PATH_MAX is no path.
RUN = re.compile(_LEAD + rb"[^\x00-\x1f\"'\\<>|*?]{3,4095}")
"""A lead and all that a path behind it can be made of."""

_MAX_PREFIXES = 64  # per file; what comes after is cut to two parts, so that a list of sources does not fill the index


def prefixes(data: bytes | bytearray | memoryview, root: str = "") -> tuple[str, ...]:
    """Return the directories of the absolute paths in ``data``, sorted, each once.

    Args:
        data: Bytes of a file, or of a part of it.
        root: Where the root was recorded; paths below it are all given as ``root``. "" when it is not known.
    """
    found: set[bytes] = set()
    for run in set(RUN.findall(data)):
        found.update(_PATH.findall(b'"' + run))
    named = {_shorten("/" + path.decode("ascii").rstrip("/"), root) for path in found}
    if len(named) > _MAX_PREFIXES:
        named = {"/".join(path.split("/")[:3]) for path in named}
    return tuple(sorted(named)[:_MAX_PREFIXES])


def _shorten(path: str, root: str) -> str:
    return root if root and (path + "/").startswith(root.rstrip("/") + "/") else path
