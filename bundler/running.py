"""The verbs ``run`` and ``export``: a command with its caches restored before it starts, or packed after it ended.

What fails before the command has started is raised. What fails later is in the report, beside the exit code of the
command, which must not be lost. A bundle that cannot be restored is no reason not to run the command: it then starts
cold.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bundler import saving
from bundler.bundle import PackReport, Selection, opened, pack, select
from bundler.child import ChildReport, run_child
from bundler.emit import EmitOptions, emit
from bundler.errors import BundlerError, LocalIOError, NothingToPackError, RequirementError, UsageError
from bundler.model import Entry, RootRecord, Unit
from bundler.places import Places, fresh_places, host_places
from bundler.roots import Root
from bundler.triton_bundler import SWITCH
from bundler.watching import Identity, Seen, age, changed, look, wait_until_quiet

__all__ = ["QUIET_SECONDS", "REQUIRABLE", "Compiled", "RunReport", "export", "required", "run", "seal"]

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
    warnings: tuple[str, ...] = ()
    error: BundlerError | None = None
    failed: bool = False

    @property
    def status(self) -> int:
        """What a command line ends with: the command's code, and ours when that is 0 and we failed."""
        if self.exit_code == 0 and self.failed and self.error is not None:
            return self.error.exit_code
        return self.exit_code


class _Notes:
    """Warnings: said at once, since the command may run for days, and kept for the report."""

    def __init__(self, warn: Callable[[str], None] | None) -> None:
        self._warn = warn or partial(log.warning, "%s")
        self.said: list[str] = []

    def add(self, *texts: str) -> None:
        for text in texts:
            self.said.append(text)
            self._warn(text)


@dataclass(slots=True)
class _Restored:
    """What is in place of a bundle before the command starts."""

    places: Places
    entries: dict[Identity, Entry] = field(default_factory=dict)
    unchanged: int = 0
    digest: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: BundlerError | None = None
    seconds: float = 0.0


def run(
    command: Sequence[str],
    bundle: str | os.PathLike[str],
    *,
    save: bool = False,
    save_on_failure: bool = False,
    root_dir: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    stdout: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> RunReport:
    """Restore a bundle, run a command, and save what is new.

    Args:
        command: Program and arguments.
        bundle: A path. What is no bundle, or cannot be restored, is warned of, and the command starts cold.
        save: Afterwards write the union of what the bundle holds and what is new, if the command ended with 0.
        save_on_failure: Save also when it did not.
        root_dir: A directory for all roots; by default they lie where this host keeps their kinds.
        environ: Environment of the command, before ours is added; this process's own by default.
        stdout: Descriptor for the command's stdout.
        warn: Told each warning at once; by default it is logged.

    Raises:
        LocalIOError: There is no such file, and nothing is to be saved; or the command cannot be started.
        UsageError: No command, or a system that cannot run one like this.
    """
    path, notes = os.fspath(bundle), _Notes(warn)
    save = save or save_on_failure
    variables = dict(os.environ if environ is None else environ)
    if not save and not os.path.lexists(path):
        raise LocalIOError(path, errno.ENOENT, "read the bundle (with --save it is made)")
    if variables.get(SWITCH) == "0":
        notes.add(f"{SWITCH}=0: nothing is restored, and nothing saved")
        ready, save, root_dir = _Restored(host_places((), variables)), False, None
        ready.places.variables.clear()
    else:
        ready = _restore(path, root_dir, variables, notes)
        notes.add(*_bypasses(variables))
    notes.add(*ready.places.notes)
    roots = list(ready.places.roots.values())
    before = look(roots)
    everything = save and root_dir is None  # what else the command uses, the bundle should hold
    aged = age(roots, before if everything else {each: before[each] for each in ready.entries if each in before})
    if aged.reason:
        notes.add(f"which entries are used cannot be told: {aged.reason}")
    child = run_child(command, ready.places.environment(variables), stdout=stdout)
    after = look(roots)
    read = aged.read(after)
    started = time.monotonic()
    done = save and (child.exit_code == 0 or save_on_failure)
    if done:
        after = _quiet(roots, before, QUIET_SECONDS, notes)
    new = _made(path, ready, before, after)
    report = _report(child, ready, before, read, new, path)
    if done:
        chosen = _to_save(ready, root_dir, after, {(seen.root, seen.path) for seen in new} | (read or set()))
        report = _save(report, ready, chosen, new, notes)
    report = replace(report, save_seconds=round(time.monotonic() - started, 6) if done else 0.0)
    return replace(report, warnings=tuple(notes.said))


def _bypasses(environ: Mapping[str, str]) -> list[str]:
    return [
        f"{name}={value} is set: with it, caches are passed by"
        for name, value in _BYPASSES
        if environ.get(name) == value
    ]


def _restore(
    path: str, root_dir: str | os.PathLike[str] | None, environ: Mapping[str, str], notes: _Notes
) -> _Restored:
    def place(records: Sequence[RootRecord]) -> Places:
        if root_dir is None:
            return host_places(records, environ)
        return fresh_places(records, os.fspath(root_dir), environ)

    if not saving.is_there(path):
        notes.add(f"{path} is {'empty' if os.path.lexists(path) else 'not there yet'}: a cold start")
        return _Restored(place(()))
    started = time.monotonic()
    try:
        with opened(path) as reader:
            places = place(reader.index.roots)
            entries, skipped = select(reader, Selection())
            entries = [entry for entry in entries if entry.root in places.roots]
            emitted = emit(reader, entries, places.roots, EmitOptions())
    except BundlerError as error:
        notes.add(f"not restored, a cold start: {error}")
        return _Restored(place(()), error=error)
    notes.add(*emitted.warnings)
    if skipped:
        notes.add(f"not restored: {len(skipped)} entries; the first is {skipped[0].entry}: {skipped[0].reason}")
    kept = {conflict.entry for conflict in emitted.conflicts if conflict.action == "kept"}
    return _Restored(
        places,
        {entry.identity: entry for entry in entries if str(entry) not in kept},
        emitted.unchanged,
        str(reader.content_digest),
        reader.index.facts,
        seconds=round(time.monotonic() - started, 6),
    )


def _quiet(
    roots: Sequence[Root], before: Mapping[Identity, Seen], seconds: float, notes: _Notes
) -> dict[Identity, Seen]:
    after, quiet = wait_until_quiet(roots, before, seconds, _QUIET_DEADLINE)
    if not quiet:
        notes.add(f"the roots were still written to {_QUIET_DEADLINE:.0f} s after the end: what is whole is packed")
    return after


def _made(path: str, ready: _Restored, before: Mapping[Identity, Seen], after: Mapping[Identity, Seen]) -> list[Seen]:
    """Return what the command made or wrote; what it wrote as the bundle has it does not count."""
    new = changed(before, after)
    doubtful = {(seen.root, seen.path) for seen in new} & ready.entries.keys()
    if not doubtful:
        return new
    same = set()
    try:
        for identity in doubtful:
            with opened(path) as reader:
                options = EmitOptions(dry_run=True)
                if emit(reader, [ready.entries[identity]], ready.places.roots, options).unchanged:
                    same.add(identity)
    except BundlerError:  # the bundle was replaced, or a root is gone: then they count
        pass
    return [seen for seen in new if (seen.root, seen.path) not in same]


def _report(
    child: ChildReport,
    ready: _Restored,
    before: Mapping[Identity, Seen],
    read: Collection[Identity] | None,
    new: Iterable[Seen],
    path: str,
) -> RunReport:
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
        error=ready.error,
    )


def _seconds_saved(ready: _Restored, used: Collection[Identity] | None) -> float | None:
    """Return the compile time in the bundle's facts, times the part of its graphs (or kernels) that was used."""
    milliseconds = ready.facts.get("compile_milliseconds")
    if used is None or not isinstance(milliseconds, int):
        return None
    for unit in (Unit.FXGRAPH, Unit.KERNEL):
        entries = [identity for identity, entry in ready.entries.items() if entry.unit is unit]
        if entries:
            return round(milliseconds / 1000 * sum(each in used for each in entries) / len(entries), 3)
    return None


def _to_save(
    ready: _Restored,
    root_dir: str | os.PathLike[str] | None,
    after: Mapping[Identity, Seen],
    touched: Collection[Identity],
) -> dict[Identity, Seen]:
    """Return what the bundle is to hold: all of a directory that is for this, else what was restored, made or used."""
    own: set[str] = set()
    if root_dir is not None:
        top = os.path.join(os.path.abspath(root_dir), "")
        own = {name for name, root in ready.places.roots.items() if root.path.startswith(top)}
    return {
        identity: seen
        for identity, seen in after.items()
        if identity[0] in own or identity in touched or identity in ready.entries
    }


def _save(
    report: RunReport, ready: _Restored, chosen: Mapping[Identity, Seen], new: Iterable[Seen], notes: _Notes
) -> RunReport:
    if not chosen and not saving.is_there(report.bundle):
        notes.add(f"{report.bundle} is not written: the command left no cache entry")
        return report
    try:
        saved = saving.save(report.bundle, ready.places.roots, chosen, {(seen.root, seen.path) for seen in new})
    except BundlerError as error:
        notes.add(f"not saved: {error}")
        return replace(report, error=error, failed=True)
    notes.add(*saved.warnings)
    return replace(report, content_digest=saved.content_digest, added=saved.added, saved=saved.written)


# -- export ----------------------------------------------------------------------------------------------------------


def required(words: Iterable[str]) -> dict[str, Unit]:
    """Return the units that ``require`` asks for, by the word for each.

    Raises:
        UsageError: An unknown word.
    """
    units = {}
    for word in words:
        if word not in REQUIRABLE:
            raise UsageError(f"{word!r} cannot be required; known are {', '.join(REQUIRABLE)}")
        units[word] = REQUIRABLE[word]
    return units


def export(
    command: Sequence[str],
    out: str | os.PathLike[str],
    *,
    require: Iterable[str] = (),
    quiet_seconds: float = QUIET_SECONDS,
    environ: Mapping[str, str] | None = None,
    stdout: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> RunReport:
    """Run a command with fresh roots, wait until they are quiet, and pack them, if it ended with 0.

    Args:
        command: Program and arguments.
        out: The bundle: replaced whole, or not at all.
        require: Of each of these (see ``REQUIRABLE``) there must be something, else nothing is written.
        quiet_seconds: How long nothing in the roots may change.
        environ: See ``run``; so are ``stdout`` and ``warn``.
        stdout: See ``run``.
        warn: See ``run``.

    Raises:
        UsageError: An unknown word in ``require``, or no command.
        LocalIOError: The directory of ``out`` is not there, or the command cannot be started.
    """
    path, notes = os.fspath(out), _Notes(warn)
    units = required(require)
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(parent):
        raise LocalIOError(parent, errno.ENOENT, "write the bundle into the directory")
    variables = dict(os.environ if environ is None else environ)
    if variables.get(SWITCH) == "0":
        child = run_child(command, variables, stdout=stdout)
        error = UsageError(f"{SWITCH}=0: nothing is exported; unset it")
        notes.add(str(error))
        report = RunReport(child.exit_code, child.signal, seconds=child.seconds, processes=child.processes)
        return replace(report, bundle=path, error=error, failed=True, warnings=tuple(notes.said))
    notes.add(*_bypasses(variables))
    with tempfile.TemporaryDirectory(prefix="triton-bundler-", ignore_cleanup_errors=True) as directory:
        ready = _Restored(fresh_places((), directory, variables, follow=False))
        notes.add(*ready.places.notes)
        child = run_child(command, ready.places.environment(variables), stdout=stdout)
        started = time.monotonic()
        roots = list(ready.places.roots.values())
        after = look(roots) if child.exit_code else _quiet(roots, {}, quiet_seconds, notes)
        report = replace(_report(child, ready, {}, None, after.values(), path), used=0)
        if child.exit_code == 0:
            report = _sealed(report, roots, units, notes)
        else:
            notes.add(f"{path} is not written: the command ended with {child.exit_code}")
        seconds = round(time.monotonic() - started, 6)
    return replace(report, save_seconds=seconds, warnings=tuple(notes.said))


def _sealed(report: RunReport, roots: Sequence[Root], units: Mapping[str, Unit], notes: _Notes) -> RunReport:
    try:
        packed = seal(roots, report.bundle, units)
    except BundlerError as error:
        return replace(report, error=error, failed=True)
    notes.add(*(f"left out of the bundle: {skipped.path}: {skipped.reason}" for skipped in packed.skipped))
    return replace(report, saved=True, added=packed.entries, content_digest=packed.content_digest)


def seal(roots: Iterable[Root], out: str, units: Mapping[str, Unit]) -> PackReport:
    """Pack roots that were fresh, those of them that anything was written to.

    Raises:
        RequirementError: There is nothing of one of ``units``.
        NothingToPackError: There is nothing at all.
        LocalIOError: They cannot be read, or the bundle not written.
    """
    roots = list(roots)
    seen = look(roots)
    names = ", ".join(root.name for root in roots)
    there = {each.unit for each in seen.values()}
    missing = [word for word, unit in units.items() if unit not in there]
    if missing:
        raise RequirementError(names, ", ".join(missing))
    if not seen:
        raise NothingToPackError(names, "the roots of the run are empty")
    written = [root for root in roots if any(identity[0] == root.name for identity in seen)]
    try:
        return pack(written, out, only=seen.keys(), require=units.values())
    except RequirementError as error:
        torn = error.missing.split(", ")
        missing = [word for word, unit in units.items() if unit.value in torn]
        raise RequirementError(names, f"{', '.join(missing)} (what is there is not whole)") from None
