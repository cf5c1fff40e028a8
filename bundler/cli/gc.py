"""``triton-bundler gc``."""

from __future__ import annotations

from dataclasses import asdict

import click

from bundler.cli._command import command as _command
from bundler.cli._command import parsed
from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text
from bundler.cli._stores import one_store, store_option
from bundler.cli._units import duration, size

__all__ = ["FIELDS", "command"]

FIELDS = {
    "store": Field(str, "The store."),
    "removed": Field(
        [{"key": str, "size": int, "age": float, "reason": str}],
        "Bundles that were removed, or would be: bytes, seconds since they were last used, and why.",
    ),
    "kept": Field(int, "Objects that stay."),
    "foreign": Field([str], "What is no bundle, or changed meanwhile, and was left alone."),
    "bytes_before": Field(int, "Bytes that were stored."),
    "bytes_after": Field(int, "Bytes that are stored now, or would be."),
    "dry_run": Field(bool, "Whether this only says what would be done."),
}


@_command("gc", FIELDS)
@click.argument("url", metavar="[STORE]", required=False)
@store_option(required=False)
@click.option("--prefix", metavar="PREFIX", default="", help="Look only at keys that begin like this.")
@click.option(
    "--max-size",
    metavar="SIZE",
    callback=parsed(size),
    help="What may stay in all: bytes, 500MB, 20GiB. The least recently used bundles go first.",
)
@click.option(
    "--max-age",
    metavar="TIME",
    callback=parsed(duration),
    help="Remove what nobody used for so long: seconds, 36h, 14d.",
)
@click.option("--keep", metavar="GLOB", multiple=True, help="Keys that stay whatever the limits. May be repeated.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
def command(
    console: Console,
    url: str | None,
    store: str | None,
    prefix: str,
    max_size: int | None,
    max_age: float | None,
    keep: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Remove old bundles from a store, until it is small enough.

    Give --max-size, --max-age, or both. What is no bundle is never removed.
    """
    from bundler.retention import gc

    place = one_store(url, store)
    report = gc(place, prefix=prefix, max_size=max_size, max_age=max_age, keep=keep, dry_run=dry_run)
    console.report = asdict(report)
    if dry_run:
        console.say("dry run: nothing is removed; this is what would be done")
    console.listing("removed", [(each.key, size_text(each.size), each.reason) for each in report.removed])
    console.listing("no bundle, left alone", [(key,) for key in report.foreign])
    console.say(f"kept: {counted(report.kept, 'object')}, {size_text(report.bytes_after)}")
    console.say(f"freed: {size_text(report.bytes_before - report.bytes_after)}")
    return 0
