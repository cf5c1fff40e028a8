"""``capture``: what a part of a program compiles, as a bundle.

torch and Triton read where their caches lie from the environment each time, so setting variables serves also when they
are imported already. What they keep in memory besides is cleared: Inductor's tables of what it compiled, and its pool
of compile workers, which have an environment of their own. Neither is imported for it.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bundler.errors import LocalIOError, NothingToPackError, RequirementError, UsageError
from bundler.exporting import required, seal
from bundler.kinds import KINDS
from bundler.outcome import QUIET_SECONDS
from bundler.packing import PackReport
from bundler.places import Places, fresh_places
from bundler.switch import ENTRIES, RAW, SWITCH, is_switched_on
from bundler.watching import wait_until_quiet

__all__ = ["Capture", "capture", "ranked"]

log = logging.getLogger("bundler")

_QUIET_DEADLINE = 60.0  # seconds
_ONE = threading.Lock()  # the environment is one for all threads

# Module of torch -> function of it that forgets where the caches lay.
_FORGETFUL = (
    ("torch._inductor.utils", "clear_caches"),
    ("torch._inductor.async_compile", "shutdown_compile_workers"),
)


@dataclass(slots=True)
class Capture:
    """A capture. ``path`` is the bundle; ``report`` says what is in it, once the block has ended well."""

    path: str
    report: PackReport | None = None


@contextmanager
def capture(
    out: str | os.PathLike[str], *, require: Iterable[str] = (), quiet_seconds: float = QUIET_SECONDS
) -> Iterator[Capture]:
    """Give a block fresh cache roots, and pack what it compiled when it ends well.

    What was compiled in this process before the block is in memory, and is not compiled again in it: capture the first
    use, or call ``torch._dynamo.reset()`` before. Under ``torchrun`` each rank writes a file of its own,
    ``warm.rank3.tbundle`` for ``warm.tbundle``, to be merged later. With ``TRITON_BUNDLER=0`` the block runs as it
    would without, and nothing is written.

    Args:
        out: The bundle: replaced whole, or not at all.
        require: ``fxgraph``, ``aotautograd``, ``triton``, ``autotune``, ``cpp``: of each there must be something.
        quiet_seconds: How long nothing in the roots may change before they are packed.

    Raises:
        UsageError: An unknown word in ``require``, or a capture within a capture.
        RequirementError: Something required is missing; nothing is written.
        NothingToPackError: The block compiled nothing.
        LocalIOError: The directory of ``out`` is not there, or cannot be written to.

    Example:
        with bundler.capture("warm.tbundle", require=["fxgraph", "triton"]):
            model(batch).sum().backward()
    """
    units = required(require)
    path = ranked(os.fspath(out), os.environ)
    if not is_switched_on():
        log.warning("%s=0: nothing is captured, and %s is not written", SWITCH, path)
        yield Capture(path)
        return
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise LocalIOError(parent, errno.ENOENT, "write the bundle into the directory")
    if not _ONE.acquire(blocking=False):
        raise UsageError("a capture is under way in this process: one at a time, for the environment is one")
    try:
        directory = _directory()
        places = fresh_places((), directory, _as_given(os.environ), follow=False)
        captured = Capture(path)
        with _pointed(places, directory):
            yield captured
            roots = list(places.roots.values())
            wait_until_quiet(roots, {}, quiet_seconds, _QUIET_DEADLINE)
            try:
                captured.report = seal(roots, path, units)
            except (NothingToPackError, RequirementError):
                log.warning("what was compiled before the block is in memory: torch._dynamo.reset() makes it be again")
                raise
            for skipped in captured.report.skipped:
                log.warning("left out of the bundle: %s: %s", skipped.path, skipped.reason)
    finally:
        _ONE.release()


def ranked(path: str, environ: Mapping[str, str]) -> str:
    """Return the file of this rank: ``warm.rank3.tbundle`` where there are several, as ``torchrun`` says."""
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdigit() and world.isdigit() and int(world) > 1):
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.rank{int(rank)}{suffix}"


def _directory() -> str:
    """Make a directory that lasts as long as this process: what was compiled may be loaded from it after the block."""
    directory = tempfile.mkdtemp(prefix="triton-bundler-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not in a fork of it
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def _as_given(environ: Mapping[str, str]) -> dict[str, str]:
    """Leave out a place of kernels that the user did not choose: Inductor sets it when it makes its first one."""
    return {
        name: value
        for name, value in environ.items()
        if not (name in _pointed_kinds() and re.search(r"[/\\]triton[/\\]\d+$", value) and "torch" in sys.modules)
    }


def _pointed_kinds() -> set[str]:
    return {kind.variable for kind in KINDS.values() if kind.pointer is not None and kind.variable is not None}


def _variables() -> set[str]:
    named = {kind.variable for kind in KINDS.values() if kind.variable is not None and not kind.asked}
    return named | {kind.pointer[0] for kind in KINDS.values() if kind.pointer is not None}


@contextmanager
def _pointed(places: Places, directory: str) -> Iterator[None]:
    """Set the variables for the time of a block, and clear what was kept in memory before it and after it."""
    pointing = _variables()
    before = {name: os.environ.get(name) for name in (*pointing, ENTRIES)}
    try:
        for name in pointing:
            os.environ.pop(name, None)
        os.environ.update(places.variables)
        os.environ.setdefault(ENTRIES, RAW)
        _forget()
        yield
        for name in sorted(pointing):
            now = os.environ.get(name, directory)
            if not os.path.abspath(now).startswith(directory):
                log.warning(
                    "%s was set to %s in the block: what was compiled since lies there, and is not in the bundle",
                    name,
                    now,
                )
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _forget()


def _forget() -> None:
    """Make torch forget where its caches lay. What a version does not have, it does not keep either."""
    for module, name in _FORGETFUL:
        function: Callable[[], Any] | None = getattr(sys.modules.get(module), name, None)
        if function is not None:
            function()
        elif module in sys.modules:
            log.warning("%s has no %s: kernels may go to where caches lay before", module, name)
