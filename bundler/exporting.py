"""The verb ``export``: a command with fresh caches, packed after it ended well; and ``seal``, which packs them."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bundler.child import run_child
from bundler.errors import BundlerError, LocalIOError, NothingToPackError, RequirementError, UsageError
from bundler.model import Unit
from bundler.outcome import (
    QUIET_SECONDS,
    REQUIRABLE,
    Notes,
    Ready,
    RunReport,
    Strays,
    bypasses,
    report_on,
    settle,
)
from bundler.packing import PackReport, pack
from bundler.pinning import pin
from bundler.places import asked, fresh_places
from bundler.roots import Root
from bundler.switch import SWITCH
from bundler.watching import look

__all__ = ["export", "required", "seal"]


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
    also: Iterable[str] = (),
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
        also: Kinds that have to be asked for: ``pycache``, the byte code of what the command imports.
        quiet_seconds: How long nothing in the roots may change.
        environ: See ``run``; so are ``stdout`` and ``warn``.
        stdout: See ``run``.
        warn: See ``run``.

    Raises:
        UsageError: An unknown word in ``require`` or ``also``, or no command.
        LocalIOError: The directory of ``out`` is not there, or the command cannot be started.
    """
    path, notes = os.fspath(out), Notes(warn)
    units, kinds = required(require), asked(also)
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
    notes.add(*bypasses(variables))
    with tempfile.TemporaryDirectory(prefix="triton-bundler-", ignore_cleanup_errors=True) as directory:
        ready = Ready(fresh_places((), directory, variables, follow=False, also=kinds))
        notes.add(*ready.places.notes)
        ready.places.keep_copies(variables)
        roots = list(ready.places.roots.values())
        strays = Strays(roots, variables)
        child = run_child(command, ready.places.environment(variables), stdout=stdout)
        started = time.monotonic()
        notes.add(*strays.notes())
        after = look(roots) if child.exit_code else settle(roots, {}, quiet_seconds, notes)
        report = replace(report_on(child, ready, {}, None, after.values(), path), used=0)
        if child.exit_code == 0:
            notes.add(*pin(after.values()))
            report = _sealed(report, roots, units, {seen.root for seen in after.values()}, notes)
        else:
            notes.add(f"{path} is not written: the command ended with {child.exit_code}")
        seconds = round(time.monotonic() - started, 6)
    return replace(report, save_seconds=seconds, warnings=tuple(notes.said))


def _sealed(
    report: RunReport, roots: Sequence[Root], units: Mapping[str, Unit], filled: Collection[str], notes: Notes
) -> RunReport:
    try:
        packed = seal(roots, report.bundle, units)
    except BundlerError as error:
        return replace(report, error=error, failed=True)
    notes.add(*(f"left out of the bundle: {skipped.path}: {skipped.reason}" for skipped in packed.skipped))
    if all(root.kind.asked for root in roots if root.name in filled):
        notes.add("the command left byte code and no compile cache: it compiled nothing, or kept it elsewhere")
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
