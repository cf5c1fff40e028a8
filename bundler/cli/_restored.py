"""What ``unpack`` and ``repair`` report: fields, JSON and words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text

if TYPE_CHECKING:
    from bundler.bundle import UnpackReport

__all__ = ["RESTORED_FIELDS", "as_json", "print_environment", "say", "say_environment", "total"]

RESTORED_FIELDS = {
    "restored": Field(int, "Entries that were absent, replaced on request, or upgraded from a runtime profile."),
    "unchanged": Field(int, "Entries that were installed already; nothing was written for them."),
    "equivalent": Field(int, "Of the unchanged: other bytes, but a launch loads the same."),
    "upgraded": Field(int, "Of the restored: had the files of a runtime profile only."),
    "repaired": Field(int, "Entries that were installed and damaged, and are whole now."),
    "kept": Field(int, "Entries that differ from the bundle's, and were left as they are."),
    "conflicts": Field([{"entry": str, "action": str}], "Entries that differ; the action is `kept` or `replaced`."),
    "damaged": Field(
        [{"entry": str, "file": str, "reason": str}], "Entries of the bundle that are not whole (with `--salvage`)."
    ),
    "skipped": Field([{"entry": str, "reason": str}], "Entries that this host has no use for, and why."),
    "warnings": Field([str], "What went wrong and does not matter to what was restored."),
    "files_written": Field(int, "Files written."),
    "bytes_written": Field(int, "Bytes of these files."),
    "seconds": Field(float, "How long it took."),
    "env": Field({str: str}, "Variables that point torch, Triton and vLLM at the roots."),
    "roots": Field({str: str}, "Where each root of the bundle went, by its name."),
    "dry_run": Field(bool, "Whether this only says what would be done."),
}


def as_json(report: UnpackReport, *, dry_run: bool) -> dict[str, Any]:
    """Return a report as the fields of the JSON."""
    return {**asdict(report), "dry_run": dry_run}


def total(reports: Sequence[UnpackReport]) -> UnpackReport:
    """Return several reports as one: numbers are added, lists and objects joined."""
    summed = {field.name: getattr(reports[0], field.name) for field in fields(reports[0])}
    for report in reports[1:]:
        for name, value in summed.items():
            more = getattr(report, name)
            summed[name] = {**value, **more} if isinstance(value, dict) else value + more
    return replace(reports[0], **summed)


def say(console: Console, report: UnpackReport, *, dry_run: bool) -> None:
    """Print a report in words; warnings go to stderr whatever else is printed."""
    for warning in report.warnings:
        console.warn(warning)
    if dry_run:
        console.say("dry run: nothing is written; this is what would be done")
    equivalent = f", {report.equivalent} of them equivalent" if report.equivalent else ""
    for what, count, more in (
        ("restored", report.restored, ""),
        ("repaired", report.repaired, ""),
        ("unchanged", report.unchanged, equivalent),
        ("kept", report.kept, ", though different from the bundle's"),
    ):
        if count:
            console.say(f"{what}: {counted(count, 'entry')}{more}")
    size = size_text(report.bytes_written)
    console.say(f"written: {counted(report.files_written, 'file')}, {size}, in {report.seconds:.2f} s")
    console.listing("conflict", [(conflict.entry, conflict.action) for conflict in report.conflicts])
    console.listing("damaged", [(damage.entry, damage.file, damage.reason) for damage in report.damaged])
    console.listing("skipped", [(skipped.entry, skipped.reason) for skipped in report.skipped])
    for name, path in report.roots.items():
        console.say(f"root {name}: {path}")


def say_environment(console: Console, env: Mapping[str, str]) -> None:
    """Print which variables have to be set for the restored roots to be used."""
    for name, value in env.items():
        done = " (it is already)" if os.environ.get(name) == value else ""
        console.say(f"set {name}={shlex.quote(value)}{done}")


def print_environment(console: Console, env: Mapping[str, str]) -> None:
    """Print lines for a shell to evaluate."""
    for name, value in env.items():
        console.give(f"export {name}={shlex.quote(value)}")
