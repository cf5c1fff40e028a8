"""Host binaries of a compile: what Triton builds with a C compiler in order to launch kernels.

Triton 3.6 makes a *launcher stub* for each signature of a kernel, and every version makes a *helper* of its driver
(``cuda_utils``, ``hip_utils``), which a process asks for once. Each lies in Triton's cache of that moment, which is
that of the kernels once torch has set ``TRITON_CACHE_DIR``, as ``KEY/NAME``, without a group file: ``KEY`` is the
SHA-256 of what it was compiled from, and ``NAME`` ends in the suffix of this Python's extension modules. Triton asks
for it by that name, wherever its cache is then: so a helper from another cache is right beside the kernels too.

Source: triton/runtime/build.py, ``compile_module_from_src``; triton/runtime/cache.py, ``_base32``;
triton/backends/nvidia/driver.py, ``CudaUtils``.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bundler.model import Entry

__all__ = ["beside", "is_helper", "suffix", "unusable"]

_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}")  # base32 of a SHA-256; hex digits in older versions


def beside(root: str, kernels: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return which of ``files`` lie where Triton keeps the host binaries of ``kernels``, as paths inside the root.

    Args:
        root: Absolute path.
        kernels: Paths of kernel directories inside the root, with ``/``.
        files: Absolute paths.
    """
    parents = {os.path.dirname(os.path.join(root, *kernel.split("/"))) for kernel in kernels}
    found = []
    for file in files:
        directory = os.path.dirname(file)
        if os.path.dirname(directory) in parents and _KEY.fullmatch(os.path.basename(directory)):
            found.append(os.path.relpath(file, root).replace(os.sep, "/"))
    return sorted(found)


def is_helper(path: str) -> bool:
    """Whether Triton's cache has a helper of its driver at ``path``; no file is looked at."""
    directory, name = os.path.split(path)
    end = suffix()
    return bool(end) and name.endswith(f"_utils{end}") and _KEY.fullmatch(os.path.basename(directory)) is not None


def suffix() -> str:
    """Return what the name of an extension module of this Python ends in; "" where that is not known."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or "")


def unusable(entry: Entry, isa: Sequence[str], *, by_device: bool) -> str | None:
    """Say why a host binary of a blob must not, or need not, be restored on this host; None when it is of use.

    Triton compiles without ``-march``, so a blob records no instruction sets. A bundle of a whole root does, and then
    they count.

    Args:
        entry: Of the blob.
        isa: Instruction sets that the bundle records; none in a blob.
        by_device: The root is the directory of one device: then nothing but ``KEY/NAME`` belongs there.
    """
    directory, _, name = entry.path.rpartition("/")
    if _KEY.fullmatch(directory if by_device else directory.rpartition("/")[2]):
        if not suffix() or not name.endswith(suffix()):
            return f"this Python looks for names that end in {suffix() or 'something unknown'}"
    elif by_device:
        return "it does not lie where Triton keeps a host binary"
    if not entry.needs:
        return "what it needs of a host is not known"
    from bundler.host import runs_here  # here, since the hook loads this module wherever Inductor is imported

    return runs_here(entry.needs, isa)
