"""``triton-bundler repair``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._files import Source, content_bytes, source
from bundler.cli._output import Console
from bundler.cli._restored import RESTORED_FIELDS, as_json, say
from bundler.cli.verify import PROBLEM

if TYPE_CHECKING:
    from bundler.verifying import EntryProblem

__all__ = ["FIELDS", "command"]

FIELDS = {
    **RESTORED_FIELDS,
    "remaining": Field([PROBLEM], "What `verify --root` still finds; of a dry run, what it would still find."),
}


@_command("repair", FIELDS)
@click.argument("file", metavar="FILE")
@click.option(
    "--root", metavar="KIND=PATH", required=True, help="The root; NAME:KIND=PATH where the bundle has two of a kind."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--no-sync", is_flag=True, help="Do not wait until the files are on the disk.")
def command(console: Console, file: str, root: str, dry_run: bool, no_sync: bool) -> int:
    """Replace what is damaged in an installed root with what a bundle holds.

    Nothing is added, and what differs and is whole stays as it is. FILE may be - for stdin. The exit code is 6 when
    the root still has problems that the bundle cannot cure.
    """
    from bundler.bundle import repair
    from bundler.emit import EmitOptions
    from bundler.errors import IncompleteEntryError

    with source(file, again=dry_run) as bundle:
        with console.progress("repairing", lambda: content_bytes(bundle)) as progress:
            options = EmitOptions(sync=not no_sync, dry_run=dry_run, progress=progress)
            report = repair(bundle, root, options=options)
        remaining = _remaining(bundle, root, dry_run=dry_run)
    console.report = {**as_json(report, dry_run=dry_run), "remaining": [asdict(problem) for problem in remaining]}
    say(console, report, dry_run=dry_run)
    console.listing("remaining", [(p.code, p.entry, p.file, p.detail) for p in remaining])
    return IncompleteEntryError.exit_code if remaining else 0


def _remaining(bundle: Source, root: str, *, dry_run: bool) -> list[EntryProblem]:
    from bundler.reading import opened
    from bundler.verifying import verify_root

    problems = list(verify_root(root).problems)
    if not dry_run:
        return problems
    if not isinstance(bundle, str):
        bundle.seek(0)
    with opened(bundle) as reader:
        cured = {entry.path for entry in reader.index.entries}
    return [problem for problem in problems if problem.entry.partition("/")[2] not in cured]
