"""``triton-bundler pull``."""

from __future__ import annotations

from dataclasses import asdict

import click

from bundler.cli._command import command as _command
from bundler.cli._command import parsed
from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text
from bundler.cli._stores import object_options, one_object
from bundler.digest import Digest

__all__ = ["FIELDS", "command"]

FIELDS = {
    "store": Field(str, "The store."),
    "key": Field(str, "The name of the bundle there."),
    "bundle": Field(str, "The file that was written."),
    "content_digest": Field(str, "Digest of what is in this file."),
    "entries": Field(int, "Entries in it."),
    "bytes_in": Field(int, "Bytes that were read of the stored bundle."),
    "bytes_out": Field(int, "Bytes of the file."),
    "seconds": Field(float, "How long it took."),
}


@_command("pull", FIELDS)
@click.argument("url", metavar="[URL]", required=False)
@object_options
@click.option("-o", "--output", metavar="FILE", required=True, help="Where the bundle goes.")
@click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="Just the entries that match, as for unpack; only the parts that hold them are read. May be repeated.",
)
@click.option(
    "--expect-digest",
    metavar="DIGEST",
    callback=parsed(Digest.parse),
    help="Content digest that the stored bundle must have.",
)
def command(
    console: Console,
    url: str | None,
    store: str | None,
    key: str | None,
    output: str,
    only: tuple[str, ...],
    expect_digest: Digest | None,
) -> int:
    """Write a bundle of a store to a file.

    The bundle is URL, such as s3://bucket/ci/main.tbundle, or --store and --key. All that comes is compared with its
    digest, and read again when it differs; FILE is replaced whole or not at all.
    """
    from bundler.remote import pull

    place, name = one_object(url, store, key)
    with console.progress("pulling") as progress:
        expected = None if expect_digest is None else str(expect_digest)
        report = pull(place, name, output, only=only, expect_digest=expected, progress=progress)
    console.report = asdict(report)
    console.say(f"bundle: {output}, {counted(report.entries, 'entry')}, {size_text(report.bytes_out)}")
    console.say(f"read: {size_text(report.bytes_in)} of {report.key} in {report.store}, in {report.seconds:.2f} s")
    console.say(f"content digest: {report.content_digest}")
    return 0
