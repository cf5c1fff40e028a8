"""Names that tell who made a staging file, so that leftovers of the dead can be told from work of the living.

A name is ``.tb-<boot>-<namespace>-<pid>-<start>-<random>``, each part in hex: first bytes of the boot id, inode of the
PID namespace, process, its start in clock ticks, and 64 random bits. Boot and namespace must be ours before a process
number means anything; the start tells a process from a later one of the same number; the random part keeps two names
apart whatever else is equal (a process number and a seeded random generator repeat across containers).
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from functools import cache

from bundler.kinds import STAGING_PREFIX

__all__ = ["ABANDONED_AFTER", "is_abandoned", "is_ours", "new_name"]

ABANDONED_AFTER = 24 * 3600
"""Seconds after which staging of an unknown owner is taken to be abandoned."""

_DEAD = frozenset("ZXx")  # zombie, and two spellings of dead

_NAME = re.compile(
    re.escape(STAGING_PREFIX)
    + r"(?P<boot>[0-9a-f]+)-(?P<space>[0-9a-f]+)-(?P<pid>[0-9a-f]+)-(?P<start>[0-9a-f]+)-[0-9a-f]{16}(?:\.tmp)?"
)


def new_name() -> str:
    """Return a staging name of this process that nobody else uses."""
    pid = os.getpid()
    boot, space = _place(pid)
    return f"{STAGING_PREFIX}{boot}-{space}-{pid:x}-{_state_of(pid)[1]:x}-{os.urandom(8).hex()}"


def is_ours(name: str) -> bool:
    """Whether this package made the name."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(name: str, modified: float) -> bool:
    """Whether nobody works under ``name`` any more.

    Args:
        name: A staging name.
        modified: Its time of last change, in seconds since the epoch.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    if (match["boot"], match["space"]) == _place(os.getpid()) and match["boot"] != "0":
        pid, start = int(match["pid"], 16), int(match["start"], 16)
        return not _lives(pid, start)
    return time.time() - modified > ABANDONED_AFTER


def _lives(pid: int, start: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's process
        pass
    state, now = _state_of(pid)
    if state in _DEAD:  # killed, and nobody asked for its status: a container without an init keeps it for ever
        return False
    return not (start and now) or start == now


@cache
def _place(pid: int) -> tuple[str, str]:
    """Return (boot, PID namespace) of this process; "0" for both where process numbers tell nothing, as on macOS."""
    boot = space = "0"
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read(8)
        # /proc may be that of another namespace, in which our numbers are those of other processes.
        if os.readlink("/proc/self") == str(pid):
            space = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    return (boot, space) if re.fullmatch(r"[0-9a-f]+", boot) and space != "0" else ("0", "0")


def _state_of(pid: int) -> tuple[str, int]:
    """Return the state of a process and its start in clock ticks since boot; ("", 0) when unknown. Source: proc(5)."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        # The command in brackets may itself hold brackets and blanks.
        fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode("ascii"), int(fields[19])
    return "", 0
