"""The one environment variable that switches everything of ours off."""

from __future__ import annotations

import os

__all__ = ["SWITCH", "is_switched_on"]

SWITCH = "TRITON_BUNDLER"
"""Environment variable that switches everything off when it is ``0``."""


def is_switched_on() -> bool:
    """Whether the environment allows this package to act in a training process."""
    return os.environ.get(SWITCH) != "0"
