"""The verb ``run``: a command with its caches restored before it starts, and what is new saved after it ended.

What fails before the command has started is raised. What fails later is in the report, beside the exit code of the
command, which must not be lost. A bundle that cannot be restored is no reason not to run the command: it then starts
cold.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bundler import outcome, saving
from bundler.bundle import Selection, select
from bundler.child import run_child
from bundler.emit import EmitOptions, emit
from bundler.errors import BundlerError, LocalIOError, UsageError
from bundler.model import RootRecord
from bundler.outcome import Notes, Ready, RunReport, Strays, bypasses, report_on, settle
from bundler.pinning import pin, python_of
from bundler.places import Places, asked, fresh_places, host_places
from bundler.reading import opened
from bundler.switch import SWITCH
from bundler.watching import Identity, Seen, age, changed, look

__all__ = ["run"]


def run(
    command: Sequence[str],
    bundle: str | os.PathLike[str],
    *,
    save: bool = False,
    save_on_failure: bool = False,
    root_dir: str | os.PathLike[str] | None = None,
    also: Iterable[str] = (),
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
        also: Kinds that have to be asked for, and are not in the bundle (yet): ``pycache``.
        environ: Environment of the command, before ours is added; this process's own by default.
        stdout: Descriptor for the command's stdout.
        warn: Told each warning at once; by default it is logged.

    Raises:
        LocalIOError: There is no such file, and nothing is to be saved; or the command cannot be started.
        UsageError: No command, an unknown word in ``also``, or a system that cannot run one like this.
    """
    path, notes = os.fspath(bundle), Notes(warn)
    kinds = asked(also)
    save = save or save_on_failure
    variables = dict(os.environ if environ is None else environ)
    if save and os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is no file, so that nothing can be saved to it: name a file, or run without --save")
    if not save and not os.path.lexists(path):
        raise LocalIOError(path, errno.ENOENT, "read the bundle (with --save it is made)")
    if variables.get(SWITCH) == "0":
        notes.add(f"{SWITCH}=0: nothing is restored, and nothing saved")
        ready, save, root_dir = Ready(host_places((), variables)), False, None
        ready.places.variables.clear()
    else:
        python = python_of(command, variables)
        ready = _restore(path, partial(_place, root_dir, variables, kinds), Selection(python=python), notes)
        notes.add(*bypasses(variables))
        if save:
            ready.places.keep_copies(variables)
    notes.add(*ready.places.notes)
    roots = list(ready.places.roots.values())
    before = look(roots)
    strays = Strays(roots, variables)
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
        notes.add(*pin(changed(before, after)))
        after = settle(roots, before, outcome.QUIET_SECONDS, notes)
    new = _made(path, ready, before, after)
    report = report_on(child, ready, before, read, new, path)
    notes.add(*strays.notes(), *_unused(ready, read, len(report.compiled)))
    if done:
        chosen = _to_save(ready, root_dir, after, {(seen.root, seen.path) for seen in new} | (read or set()))
        report = _save(report, ready, chosen, new, notes)
    report = replace(report, save_seconds=round(time.monotonic() - started, 6) if done else 0.0)
    return replace(report, warnings=tuple(notes.said))


def _unused(ready: Ready, read: Collection[Identity] | None, compiled: int) -> list[str]:
    """Say it when nothing of what was compiled for the command was used; byte code, which every start uses, apart."""
    if read is None:
        return []
    said = []
    roots = ready.places.roots
    for what, is_asked in (("entries", False), ("files of byte code", True)):
        mine = {identity for identity in ready.entries if roots[identity[0]].kind.asked is is_asked}
        if mine and not mine & set(read):
            also = f", and {compiled} were compiled" if compiled and not is_asked else ""
            why = "is of another model, version or shape" if not is_asked else "is no Python that reads its environment"
            said.append(f"none of {len(mine)} restored {what} was used{also}: the command looks elsewhere, or {why}")
    return said


def _place(
    root_dir: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    also: Collection[str],
    records: Sequence[RootRecord],
) -> Places:
    if root_dir is None:
        return host_places(records, environ, also=also)
    return fresh_places(records, os.fspath(root_dir), environ, also=also)


def _restore(path: str, place: Callable[[Sequence[RootRecord]], Places], selection: Selection, notes: Notes) -> Ready:
    if not saving.is_there(path):
        notes.add(f"{path} is {'empty' if os.path.lexists(path) else 'not there yet'}: a cold start")
        return Ready(place(()))
    started = time.monotonic()
    try:
        with opened(path) as reader:
            places = place(reader.index.roots)
            entries, skipped = select(reader, selection)
            entries = [entry for entry in entries if entry.root in places.roots]
            emitted = emit(reader, entries, places.roots, EmitOptions())
    except BundlerError as error:
        notes.add(f"not restored, a cold start: {error}")
        return Ready(place(()), error=error)
    notes.add(*emitted.warnings)
    if skipped:
        notes.add(f"not restored: {len(skipped)} entries; the first is {skipped[0].entry}: {skipped[0].reason}")
    kept = {conflict.entry for conflict in emitted.conflicts if conflict.action == "kept"}
    if kept:
        notes.add(
            f"not restored: {len(kept)} {'entry' if len(kept) == 1 else 'entries'} of which another build lies here, "
            f"which is kept; the first is {min(kept)}: for the bundle's, give an empty --root-dir"
        )
    return Ready(
        places,
        {entry.identity: entry for entry in entries if str(entry) not in kept},
        emitted.unchanged,
        str(reader.content_digest),
        reader.index.facts,
        seconds=round(time.monotonic() - started, 6),
    )


def _made(path: str, ready: Ready, before: Mapping[Identity, Seen], after: Mapping[Identity, Seen]) -> list[Seen]:
    """Return what the command made or wrote; what it wrote as the bundle has it does not count."""
    new = changed(before, after)
    doubtful = {(seen.root, seen.path) for seen in new} & ready.entries.keys()
    if not doubtful or not os.path.isfile(path):  # a pipe is read once
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


def _to_save(
    ready: Ready,
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
    report: RunReport, ready: Ready, chosen: Mapping[Identity, Seen], new: Iterable[Seen], notes: Notes
) -> RunReport:
    if not chosen and (ready.error is not None or not saving.is_there(report.bundle)):
        notes.add(f"{report.bundle} is not written: the command left no cache entry")
        return report
    try:
        saved = saving.save(report.bundle, ready.places.roots, chosen, {(seen.root, seen.path) for seen in new})
    except BundlerError as error:
        notes.add(f"not saved: {error}")
        return replace(report, error=error, failed=True)
    notes.add(*saved.warnings)
    return replace(report, content_digest=saved.content_digest, added=saved.added, saved=saved.written)
