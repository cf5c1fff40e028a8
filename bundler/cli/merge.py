"""``triton-bundler merge``."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bundler.cli import pack as pack_command
from bundler.cli._command import command as _command
from bundler.cli._command import level_option
from bundler.cli._fields import Field
from bundler.cli._files import STDIN, content_bytes, source
from bundler.cli._output import Console, counted, size_text
from bundler.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from bundler.merging import MergeReport

__all__ = ["FIELDS", "command"]

FIELDS = {
    **{name: field for name, field in pack_command.FIELDS.items() if name not in ("base", "in_base", "lost")},
    "bytes_in": Field(int, "Bytes of the bundles that were merged."),
    "skipped": Field([{"path": str, "reason": str}], "What the bundles say was not packed into them, and why."),
    "conflicts": Field(
        [{"entry": str, "sources": [str], "action": str}],
        "Entries that differ between bundles, and whose was kept: `first`, `last` or `lowest`; `refused` with exit 9.",
    ),
    "candidates": Field({str: int}, "FX graph cache keys that several graphs are kept for, and how many."),
}


@_command("merge", FIELDS)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", required=True, help="Where the union goes; - for stdout.")
@click.option(
    "--on-conflict",
    type=click.Choice(["first", "last", "lowest"]),
    help="Which of different entries is kept: that of the first bundle, of the last, or the one of lowest digest.",
)
@level_option
def command(console: Console, files: tuple[str, ...], output: str, on_conflict: str | None, level: int | None) -> int:
    """Unite several bundles, entry by entry.

    Entries that are identical or equivalent are kept once. Different entries under one name are a conflict: without
    --on-conflict nothing is written, and the exit code is 9. Files of two builds are never mixed.

    A delta and its base, both given, count as one bundle: `merge OLD DELTA -o NEW` makes a whole bundle of the two.
    Of several deltas of one base, merge each with it first, and then the results.

    Without first and last, the result is the same bytes whatever the order of the bundles. One FILE may be - for stdin.
    """
    from bundler.formats.limits import DEFAULT_LEVEL
    from bundler.merging import merge

    if files.count(STDIN) > 1:
        raise UsageError("stdin can be read once: give - once")
    out = console.binary_stdout() if output == "-" else output
    with ExitStack() as stack:
        sources = [stack.enter_context(source(file, again=True)) for file in files]
        progress = stack.enter_context(console.progress("merging", lambda: sum(map(content_bytes, sources))))
        try:
            report = merge(
                sources,
                out,
                on_conflict=on_conflict,
                level=DEFAULT_LEVEL if level is None else level,
                progress=progress,
            )
        except ConflictError as error:
            console.report["conflicts"] = list(error.conflicts)
            console.listing("conflict", [(row["entry"], ", ".join(row["sources"])) for row in error.conflicts])
            raise
    console.report = {**asdict(report), "bundle": output}
    _say(console, report, output)
    return 0


def _say(console: Console, report: MergeReport, output: str) -> None:
    console.say(f"bundle: {'stdout' if output == '-' else output}")
    console.say(f"merged: {counted(report.entries, 'entry')}, {counted(report.files, 'file')}")
    sizes = f"{size_text(report.bytes_in)} became {size_text(report.bytes_out)}"
    console.say(f"size: {sizes}, in {report.seconds:.2f} s")
    console.say(f"content digest: {report.content_digest}")
    console.listing("conflict", [(each.entry, ", ".join(each.sources), each.action) for each in report.conflicts])
    console.listing("several graphs", list(report.candidates.items()))
