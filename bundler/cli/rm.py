"""``triton-bundler rm``."""

from __future__ import annotations

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._output import Console
from bundler.cli._stores import one_object, store_option
from bundler.errors import StoreError

__all__ = ["FIELDS", "command"]

FIELDS = {
    "removed": Field([str], "What was removed."),
    "missing": Field([str], "What is not there."),
    "foreign": Field([str], "What is no bundle, and was left alone; the exit code is then 10."),
}


@_command("rm", FIELDS)
@click.argument("names", metavar="URL...", nargs=-1, required=True)
@store_option(required=False)
@click.option("--force", is_flag=True, help="Remove what is no bundle, too.")
def command(console: Console, names: tuple[str, ...], store: str | None, force: bool) -> int:
    """Remove bundles from a store.

    With --store, each URL is a key in it. That something is not there is no failure.
    """
    from bundler.retention import rm

    places = [(store, name) if store else one_object(name, None, None) for name in names]
    console.report = {"removed": [], "missing": [], "foreign": []}
    for (place, key), name in zip(places, names):
        report = rm(place, [key], force=force)
        for what in ("removed", "missing", "foreign"):
            if getattr(report, what):
                console.report[what].append(name)
                console.say(f"{'no bundle, left alone' if what == 'foreign' else what}: {name}")
    return StoreError.exit_code if console.report["foreign"] else 0
