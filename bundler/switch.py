"""Environment variables that a training process asks for: they are here alone, since this is quick to load."""

from __future__ import annotations

import os

__all__ = ["ENTRIES", "RAW", "SWITCH", "is_switched_on"]

SWITCH = "TRITON_BUNDLER"
"""Environment variable that switches everything off when it is ``0``."""

ENTRIES = "TRITON_BUNDLER_ENTRIES"
"""Environment variable: ``blob``, or ``raw`` for FX graph entries with torch's own copies of kernel files."""

RAW = "raw"
"""Where entries are bundled with their kernels, a copy costs nothing, and a blob holds each kernel a second time."""


def is_switched_on() -> bool:
    """Whether the environment allows this package to act in a training process."""
    return os.environ.get(SWITCH) != "0"
