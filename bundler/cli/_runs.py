"""What ``run`` and ``export`` have in common: fields, JSON and words."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, printable

if TYPE_CHECKING:
    from bundler.outcome import RunReport

__all__ = ["RUN_FIELDS", "also_option", "conclude", "program_argument", "stdout_of_child"]

RUN_FIELDS = {
    "exit_code": Field(int, "The command's own; 128 and the number of a signal that ended it."),
    "signal": Field(str, "Name of that signal; empty without one."),
    "restored": Field(int, "Entries of the bundle that were in place when the command started."),
    "unchanged": Field(int, "Of the restored: had been there before."),
    "used": Field(
        (int, None),
        "Of the restored: were read while the command ran, as access times tell; null where they do not (`noatime`).",
    ),
    "compiled": Field(
        [{"kind": str, "name": str}],
        "What the command compiled: `triton` (name of the kernel), `fxgraph`, `aotautograd` (cache key), `cpp` (path).",
    ),
    "new_entries": Field(int, "Entries that the command made or wrote anew, whatever they are."),
    "bundle": Field(str, "The file."),
    "content_digest": Field((str, None), "Of the bundle as it is now; null when there is none that can be read."),
    "saved": Field(bool, "Whether the bundle was written."),
    "added": Field(int, "Entries that the bundle did not hold before."),
    "seconds": Field(float, "How long the command ran."),
    "restore_seconds": Field(float, "How long the restore before it took."),
    "save_seconds": Field(float, "How long it took after it to wait for quiet, to pack and to write."),
    "seconds_saved": Field(
        (float, None),
        "Compile time that torch measured for the graphs of the bundle, times the part of them that was used; an "
        "estimate, and null where either is not known.",
    ),
    "processes": Field(
        (int, None),
        "Processes that were seen: the command, and what it started. One that lived for less than the time between two "
        "looks (20 to 250 ms) may be missing; null without /proc.",
    ),
    "roots": Field({str: str}, "Where the roots lay, by name."),
    "env": Field({str: str}, "Variables that the command was given."),
    "unset": Field([str], "Variables that the command was not given, though they were set."),
    "warnings": Field([str], "What was warned of."),
}


def program_argument() -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the argument that is the command to run: everything behind ``--``."""
    return click.argument("program", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)


def also_option(text: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the option that asks for kinds of roots that take part in no run by themselves."""
    return click.option("--with", "also", metavar="KIND", multiple=True, help=text)


def stdout_of_child(console: Console) -> int | None:
    """Return where the command's stdout goes: to ours, and words then to stderr; with JSON, to stderr."""
    if not console.as_json:
        console.take_stdout()
        return None
    try:
        number = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        os.fstat(number)
    except (OSError, ValueError):  # closed: then it goes nowhere
        return subprocess.DEVNULL
    return number


def conclude(console: Console, report: RunReport) -> int:
    """Put a report into the JSON, or into words; return the exit code."""
    known = {name: getattr(report, name) for name in RUN_FIELDS if name not in ("compiled", "unset", "warnings")}
    console.report = {
        **known,
        "compiled": [asdict(each) for each in report.compiled],
        "unset": list(report.unset),
        "warnings": list(report.warnings),
    }
    if report.error is not None:
        error = report.error
        console.report["error"] = {"type": type(error).__name__, "message": str(error), **error.fields()}
    _say(console, report)
    if report.failed and not console.as_json:
        console.complain(f"triton-bundler: error: {printable(str(report.error))}")
    return report.status


def _say(console: Console, report: RunReport) -> None:
    ended = f"ended by {report.signal}" if report.signal else f"ended with {report.exit_code}"
    console.say(f"command: {ended} after {report.seconds:.2f} s")
    if report.restored:
        used = "how many were used is not known" if report.used is None else f"{report.used} of them used"
        there = f" ({report.unchanged} had been there)" if report.unchanged else ""
        console.say(f"restored: {counted(report.restored, 'entry')}{there} in {report.restore_seconds:.2f} s, {used}")
    if report.seconds_saved:
        console.say(f"saved: about {report.seconds_saved:.1f} s of compile time")
    kinds = [each.kind for each in report.compiled]
    parts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    console.say(f"new: {counted(report.new_entries, 'entry')}{f' (compiled: {parts})' if parts else ''}")
    console.listing("compiled", [(each.kind, each.name) for each in report.compiled])
    if report.saved:
        console.say(f"bundle: {report.bundle}, {counted(report.added, 'entry')} added, {report.save_seconds:.2f} s")
        console.say(f"content digest: {report.content_digest}")
