"""``triton-bundler ls``."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._output import Bytes, Console, counted, size_text
from bundler.cli._stores import one_store, store_option

__all__ = ["FIELDS", "command"]

FIELDS = {
    "store": Field(str, "The store, as it was named."),
    "objects": Field(
        [{"key": str, "size": int, "modified": float, "used": float, "version": str}],
        "What is stored, by key: bytes; when it was written and last read (seconds since the epoch; 0 where the store "
        "does not know); what the store calls this state of it.",
    ),
    "bytes": Field(int, "Bytes of all of them."),
}


@_command("ls", FIELDS)
@click.argument("url", metavar="[STORE]", required=False)
@store_option(required=False)
@click.option("--prefix", metavar="PREFIX", default="", help="Only keys that begin like this.")
def command(console: Console, url: str | None, store: str | None, prefix: str) -> int:
    """List what a store holds."""
    from bundler.retention import ls

    place = one_store(url, store)
    found = ls(place, prefix)
    console.report = {
        "store": place,
        "objects": [
            {
                "key": info.key,
                "size": info.size,
                "modified": info.modified,
                "used": info.used,
                "version": info.version.tag,
            }
            for info in found
        ],
        "bytes": sum(info.size for info in found),
    }
    rows = [(info.key, Bytes(info.size), _time(info.modified)) for info in found]
    console.table("object", ("key", "size", "written"), rows, whole=True)
    console.say(f"total: {counted(len(found), 'object')}, {size_text(console.report['bytes'])}")
    return 0


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
