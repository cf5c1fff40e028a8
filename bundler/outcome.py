"""What a run is, for ``run`` and ``export`` alike: what is ready before it, what is watched, and its report."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bundler.child import ChildReport
from bundler.errors import BundlerError
from bundler.model import Entry, Unit
from bundler.places import Places, host_places
from bundler.roots import Root
from bundler.watching import Identity, Seen, changed, look, wait_until_quiet

__all__ = [
    "QUIET_SECONDS",
    "REQUIRABLE",
    "Compiled",
    "Notes",
    "Ready",
    "RunReport",
    "Strays",
    "bypasses",
    "report_on",
    "settle",
]

log = logging.getLogger("bundler")

QUIET_SECONDS = 1.0
"""How long no file of the roots may have changed before they are packed."""

_QUIET_DEADLINE = 60.0  # seconds

REQUIRABLE: Mapping[str, Unit] = {
    "fxgraph": Unit.FXGRAPH,
    "aotautograd": Unit.AOTAUTOGRAD,
    "triton": Unit.KERNEL,
    "autotune": Unit.AUTOTUNE,
    "cpp": Unit.HOST_BINARY,
}
"""What ``require`` may ask for: word -> unit."""

_COMPILED: Mapping[Unit, str] = {unit: word for word, unit in REQUIRABLE.items() if unit is not Unit.AUTOTUNE}

# Variables with which nothing is cached or nothing is looked up, and the value that does it.
_BYPASSES = (
    ("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1"),
    ("TORCHINDUCTOR_FX_GRAPH_CACHE", "0"),
    ("TORCHINDUCTOR_AUTOGRAD_CACHE", "0"),
    ("TRITON_ALWAYS_COMPILE", "1"),
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Something that a run compiled. ``kind`` is ``triton``, ``fxgraph``, ``aotautograd`` or ``cpp``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class RunReport:
    """What happened. Counts are of entries.

    Attributes:
        exit_code: Of the command; 128 and the number of a signal that ended it.
        signal: Name of that signal; "" without one.
        restored: Entries of the bundle that were in place when the command started.
        unchanged: Those of them that had been there before.
        used: Those of them that were read while the command ran; None when that cannot be told.
        compiled: What the command compiled.
        new_entries: Entries that the command made or wrote, those of ``compiled`` among them.
        bundle: The file.
        content_digest: Of the bundle as it is now; None when there is none that can be read.
        saved: Whether the bundle was written.
        added: Entries that it did not hold before.
        seconds: How long the command ran.
        restore_seconds: How long the restore took.
        save_seconds: How long it took to wait, pack and write.
        seconds_saved: Compile time that the bundle's used entries stand for, as torch measured it; None when unknown.
        processes: Processes that were seen, the command and those that it started; None when they cannot be.
        roots: Where the roots lay, by name.
        env: Variables that the command had because of us.
        unset: Variables that it did not have because of us.
        warnings: Everything that was warned of.
        error: What went wrong on our side.
        failed: Whether what was asked for was not done because of it: a bundle was not written.
    """

    exit_code: int
    signal: str = ""
    restored: int = 0
    unchanged: int = 0
    used: int | None = None
    compiled: tuple[Compiled, ...] = ()
    new_entries: int = 0
    bundle: str = ""
    content_digest: str | None = None
    saved: bool = False
    added: int = 0
    seconds: float = 0.0
    restore_seconds: float = 0.0
    save_seconds: float = 0.0
    seconds_saved: float | None = None
    processes: int | None = None
    roots: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    error: BundlerError | None = None
    failed: bool = False

    @property
    def status(self) -> int:
        """What a command line ends with: the command's code, and ours when that is 0 and we failed."""
        if self.exit_code == 0 and self.failed and self.error is not None:
            return self.error.exit_code
        return self.exit_code


class Notes:
    """Warnings: said at once, since the command may run for days, and kept for the report."""

    def __init__(self, warn: Callable[[str], None] | None) -> None:
        self._warn = warn or partial(log.warning, "%s")
        self.said: list[str] = []

    def add(self, *texts: str) -> None:
        """Say warnings, and keep them."""
        for text in texts:
            self.said.append(text)
            self._warn(text)


@dataclass(slots=True)
class Ready:
    """What is in place of a bundle before the command starts."""

    places: Places
    entries: dict[Identity, Entry] = field(default_factory=dict)
    unchanged: int = 0
    digest: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: BundlerError | None = None
    seconds: float = 0.0


class Strays:
    """Where this host keeps caches, when a run is pointed elsewhere: what appears there went astray.

    A library that sets the variables itself, after the start, takes its process away from what was restored for it.
    """

    def __init__(self, roots: Iterable[Root], environ: Mapping[str, str]) -> None:
        ours = {os.path.realpath(root.path) for root in roots}
        theirs = host_places((), environ).roots.values()
        self._roots = [root for root in theirs if os.path.realpath(root.path) not in ours]
        self._before = look(self._roots)

    def notes(self) -> list[str]:
        """Return a sentence for each place to which something was written since."""
        new = changed(self._before, look(self._roots))
        counts = [(root, sum(seen.root == root.name for seen in new)) for root in self._roots]
        return [
            f"meanwhile {count} new or changed entries appeared in {root.path}, where the command was not pointed to: "
            f"it may set {root.kind.variable} itself"
            for root, count in counts
            if count
        ]


def bypasses(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that keeps caches from being written or looked at."""
    return [
        f"{name}={value} is set: with it, caches are passed by"
        for name, value in _BYPASSES
        if environ.get(name) == value
    ]


def settle(
    roots: Sequence[Root], before: Mapping[Identity, Seen], seconds: float, notes: Notes
) -> dict[Identity, Seen]:
    """Wait until the roots are quiet, and return what lies there; after a minute, say so and go on."""
    after, quiet = wait_until_quiet(roots, before, seconds, _QUIET_DEADLINE)
    if not quiet:
        notes.add(f"the roots were still written to {_QUIET_DEADLINE:.0f} s after the end: what is whole is packed")
    return after


def report_on(
    child: ChildReport,
    ready: Ready,
    before: Mapping[Identity, Seen],
    read: Collection[Identity] | None,
    new: Iterable[Seen],
    path: str,
) -> RunReport:
    """Put together what is known when the command has ended.

    Args:
        child: How it ended.
        ready: What was ready for it.
        before: What lay in the roots before it.
        read: What it read of that; None when that cannot be told.
        new: What it made or wrote.
        path: The bundle.
    """
    new = list(new)
    restored = ready.entries.keys() & before.keys()
    used = None if read is None else restored & set(read)
    return RunReport(
        exit_code=child.exit_code,
        signal=child.signal,
        restored=len(restored),
        unchanged=min(ready.unchanged, len(restored)),
        used=None if used is None else len(used),
        compiled=tuple(Compiled(_COMPILED[seen.unit], seen.name) for seen in new if seen.unit in _COMPILED),
        new_entries=len(new),
        bundle=path,
        content_digest=ready.digest,
        seconds=child.seconds,
        restore_seconds=ready.seconds,
        seconds_saved=_seconds_saved(ready, used),
        processes=child.processes,
        roots={name: root.path for name, root in sorted(ready.places.roots.items())},
        env=dict(sorted(ready.places.variables.items())),
        unset=ready.places.unset,
        error=ready.error,
    )


def _seconds_saved(ready: Ready, used: Collection[Identity] | None) -> float | None:
    """Return the compile time in the bundle's facts, times the part of its graphs (or kernels) that was used."""
    milliseconds = ready.facts.get("compile_milliseconds")
    if used is None or not isinstance(milliseconds, int):
        return None
    for unit in (Unit.FXGRAPH, Unit.KERNEL):
        entries = [identity for identity, entry in ready.entries.items() if entry.unit is unit]
        if entries:
            return round(milliseconds / 1000 * sum(each in used for each in entries) / len(entries), 3)
    return None
