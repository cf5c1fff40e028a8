"""Opening files to read them without leaving a trace, so that it stays true when something was last used."""

from __future__ import annotations

import os

__all__ = ["READ_FLAGS", "open_unseen"]

READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""To read a file of somebody else's tree: a link in the last part is not followed, and a FIFO is not waited for."""

_NOATIME = getattr(os, "O_NOATIME", 0)  # Linux; elsewhere the time of access moves


def open_unseen(name: str, flags: int, directory: int | None = None) -> int:
    """Open a file for reading; its time of access stays where that is allowed, which is for files of one's own."""
    try:
        return os.open(name, flags | _NOATIME, dir_fd=directory)
    except PermissionError:
        return os.open(name, flags, dir_fd=directory)
