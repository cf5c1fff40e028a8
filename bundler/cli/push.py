"""``triton-bundler push``."""

from __future__ import annotations

from dataclasses import asdict

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._files import source
from bundler.cli._output import Console, counted, size_text
from bundler.cli._stores import object_options, one_object

__all__ = ["FIELDS", "command"]

FIELDS = {
    "store": Field(str, "The store."),
    "key": Field(str, "The name of the bundle there."),
    "uploaded": Field(bool, "Whether it was sent; false when the store has the same bundle already."),
    "content_digest": Field(str, "Digest of what is in it."),
    "entries": Field(int, "Entries in it."),
    "bytes_out": Field(int, "Bytes that were sent."),
    "version": Field(str, "What the store calls this state of the object (an e-tag)."),
    "seconds": Field(float, "How long it took."),
}


@_command("push", FIELDS)
@click.argument("file", metavar="FILE")
@click.argument("url", metavar="[URL]", required=False)
@object_options
@click.option("--create", is_flag=True, help="Exit with 10 where something is stored under this name already.")
def command(console: Console, file: str, url: str | None, store: str | None, key: str | None, create: bool) -> int:
    """Put a bundle into a store, once it is known to be whole.

    The place is URL, such as s3://bucket/ci/main.tbundle, or --store and --key. FILE may be - for stdin. The bundle
    that is stored there is replaced; what is no bundle is left alone, and the exit code is 10.
    """
    from bundler.remote import push

    place, name = one_object(url, store, key)
    with source(file, again=True) as bundle:
        report = push(bundle, place, name, mode="create" if create else "overwrite")
    console.report = {**asdict(report), "version": report.version.tag}
    did = f"sent: {size_text(report.bytes_out)}" if report.uploaded else "not sent: the store has the same bundle"
    console.say(f"{did}, in {report.seconds:.2f} s")
    console.say(f"stored: {report.key} in {report.store}, {counted(report.entries, 'entry')}")
    console.say(f"content digest: {report.content_digest}")
    return 0
