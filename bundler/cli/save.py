"""``triton-bundler save``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bundler.cli._command import command as _command
from bundler.cli._command import level_option, parsed
from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text
from bundler.cli._stores import store_option
from bundler.cli._units import size

if TYPE_CHECKING:
    from bundler.caching import SaveReport

__all__ = ["FIELDS", "command"]

FIELDS = {
    "uploaded": Field(bool, "Whether a bundle was stored."),
    "would_upload": Field(bool, "Whether there is something to store; not done with `--readonly`."),
    "replaced_damaged": Field(bool, "Whether what was stored is damaged, and was (or would be) replaced."),
    "store": Field(str, "The store."),
    "key": Field(str, "The key."),
    "entries": Field(int, "Entries that are stored under the key now."),
    "added": Field(int, "Entries that were added, or would be."),
    "upgraded": Field(int, "Stored entries that got files which a runtime profile had left out."),
    "content_digest": Field((str, None), "Content digest of what is stored now; null when nothing is."),
    "bytes_out": Field(int, "Bytes that were uploaded."),
    "bytes_stored": Field(int, "Bytes of the bundle that is stored now."),
    "conflicts": Field(
        [{"entry": str, "action": str}], "Entries that are stored in another build, which stayed: `kept`."
    ),
    "dropped": Field(
        [{"entry": str, "size": int, "last_used": int}],
        "Entries that were left out to fit `--max-size`, least recently used first: bytes of their files, and when "
        "they were last used (seconds since the epoch, 0 when that is not known).",
    ),
    "skipped": Field([{"path": str, "reason": str}], "What the roots hold and was not saved, and why."),
    "warnings": Field([str], "What else should be known."),
    "attempts": Field(int, "How often it was tried: more than once when others saved at the same time."),
    "seconds": Field(float, "How long it took."),
}


@_command("save", FIELDS)
@store_option(required=True)
@click.option("--key", metavar="K", required=True, help="Which bundle, such as triton-bundler key prints.")
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=parsed(size),
    help="Leave out whole entries, the least recently used first, until the bundle has this size: bytes, 500MB, 2GiB.",
)
@click.option("--readonly", is_flag=True, help="Upload nothing, and say what would be: for pull requests from forks.")
@click.option(
    "--profile",
    type=click.Choice(["full", "runtime"]),
    default="full",
    help="full (the default): all files of a kernel. runtime: what a launch reads, so no IR and no assembly.",
)
@level_option
@click.option("--winners-only", is_flag=True, help="Leave out kernels that autotuning tried and did not choose.")
@click.option(
    "--exclude",
    metavar="GLOB",
    multiple=True,
    help="Leave out what matches, as a path inside a root or as name/path; * matches / too. May be repeated.",
)
@click.argument("roots", metavar="[ROOT]...", nargs=-1)
def command(
    console: Console,
    store: str,
    key: str,
    max_size: int | None,
    readonly: bool,
    profile: str,
    level: int | None,
    winners_only: bool,
    exclude: tuple[str, ...],
    roots: tuple[str, ...],
) -> int:
    """Save caches after a CI job.

    What is stored under K stays, and what the ROOTs have beyond it is added; without a ROOT, those that this host has
    in the usual places (inductor, triton, vllm). Where both have an entry and it differs, the stored one stays. With
    nothing new, nothing is uploaded. Jobs that save at once all end up in the union. Byte code (pycache) is saved only
    when it is named.

    What is stored and damaged is replaced. What is no bundle is left alone: the exit code is 10.
    """
    from bundler.caching import save
    from bundler.formats.limits import DEFAULT_LEVEL

    with console.progress("packing") as progress:
        report = save(
            store,
            key,
            roots,
            max_size=max_size,
            readonly=readonly,
            level=DEFAULT_LEVEL if level is None else level,
            profile=profile,
            winners_only=winners_only,
            exclude=exclude,
            progress=progress,
        )
    console.report = asdict(report)
    _say(console, report, readonly=readonly)
    return 0


def _say(console: Console, report: SaveReport, *, readonly: bool) -> None:
    for warning in report.warnings:
        console.warn(warning)
    what = f"{counted(report.added, 'new entry')}"
    if report.uploaded:
        console.say(f"saved: {report.key}, {what}, {counted(report.entries, 'entry')} in {size_text(report.bytes_out)}")
    elif readonly and report.would_upload:
        console.say(f"read-only: nothing was uploaded; {report.key} would have got {what}")
    else:
        console.say(f"nothing new: {report.key} has {counted(report.entries, 'entry')}")
    console.say(f"content digest: {report.content_digest or 'none'}")
    console.listing("conflict", [(each.entry, each.action) for each in report.conflicts])
    console.listing("dropped", [(each.entry, size_text(each.size)) for each in report.dropped])
    console.listing("skipped", [(each.path, each.reason) for each in report.skipped])
