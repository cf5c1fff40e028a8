"""``triton-bundler diff``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._files import STDIN, source
from bundler.cli._output import Console, counted
from bundler.errors import UsageError

__all__ = ["FIELDS", "command"]

_CHANGED = [{"entry": str, "files": [str]}]

FIELDS = {
    "added": Field([str], "Entries that only B has, as `name/relative/path`."),
    "removed": Field([str], "Entries that only A has."),
    "changed": Field(_CHANGED, "Entries of both that differ, and which of their files do."),
    "equivalent": Field(_CHANGED, "Entries of both in other bytes, of which a launch loads the same."),
    "same": Field(bool, "Whether nothing was added, removed or changed."),
}


@_command("diff", FIELDS)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
def command(console: Console, a: str, b: str) -> int:
    """Compare two bundles, entry by entry.

    One of A and B may be - for stdin. The exit code is 0 whether they differ or not.
    """
    from bundler.difference import diff

    if a == b == STDIN:
        raise UsageError("stdin can be read once: name a file")
    with ExitStack() as stack:
        report = diff(*(stack.enter_context(source(name, again=True)) for name in (a, b)))
    console.report = {**asdict(report), "same": report.same}
    rows = [("added", entry, "") for entry in report.added]
    rows += [("removed", entry, "") for entry in report.removed]
    rows += [("changed", each.entry, ", ".join(each.files)) for each in report.changed]
    rows += [("equivalent", each.entry, ", ".join(each.files)) for each in report.equivalent]
    for word in ("added", "removed", "changed", "equivalent"):
        console.listing(word, [row[1:] for row in rows if row[0] == word])
    counts = {"added": report.added, "removed": report.removed, "changed": report.changed}
    said = ", ".join(f"{counted(len(found), 'entry')} {word}" for word, found in counts.items() if found)
    console.say(f"result: {said or 'the same entries'}")
    return 0
