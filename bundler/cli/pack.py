"""``triton-bundler pack``."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from bundler.cli._command import command as _command
from bundler.cli._command import level_option
from bundler.cli._fields import Field
from bundler.cli._output import Console, counted, size_text

if TYPE_CHECKING:
    from bundler.packing import PackReport

__all__ = ["FIELDS", "command"]

FIELDS = {
    "bundle": Field(str, "The file that was written; `-` for stdout."),
    "content_digest": Field(str, "Digest of what is in it, whatever the host, the compression and the order."),
    "entries": Field(int, "Entries in the bundle."),
    "files": Field(int, "Files of these entries."),
    "bytes_in": Field(int, "Bytes of these files, as they lie on disk."),
    "bytes_out": Field(int, "Bytes of the bundle."),
    "skipped": Field([{"path": str, "reason": str}], "What is not in the bundle, as `name/relative/path`, and why."),
    "seconds": Field(float, "How long it took."),
    "base": Field((str, None), "Content digest of the bundle that a delta needs; null for a whole bundle."),
    "in_base": Field(int, "Entries of the roots that the base has already; 0 without one."),
    "lost": Field([str], "Entries that the base has and the roots have no longer; a restore brings them back."),
}


@_command("pack", FIELDS)
@click.argument("roots", metavar="ROOT...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", required=True, help="Where the bundle goes; - for stdout.")
@click.option(
    "--profile",
    type=click.Choice(["full", "runtime"]),
    default="full",
    help="full (the default): all files of a kernel. runtime: what a launch reads, so no IR and no assembly.",
)
@level_option
@click.option("--strict", is_flag=True, help="Write nothing, and exit with 6, when anything would be skipped.")
@click.option("--winners-only", is_flag=True, help="Leave out kernels that autotuning tried and did not choose.")
@click.option(
    "--exclude",
    metavar="GLOB",
    multiple=True,
    help="Leave out what matches, as a path inside a root or as name/path; * matches / too. May be repeated.",
)
@click.option(
    "--base",
    metavar="OLD",
    help="Write a delta: only what the bundle OLD has not. It is restored with `unpack OLD DELTA`.",
)
def command(
    console: Console,
    roots: tuple[str, ...],
    output: str,
    profile: str,
    level: int | None,
    strict: bool,
    winners_only: bool,
    exclude: tuple[str, ...],
    base: str | None,
) -> int:
    """Pack cache roots into one bundle.

    ROOT is PATH (its kind is told by what lies in it), KIND=PATH or NAME:KIND=PATH, where KIND is inductor, triton,
    vllm, pycache or generic; or mega=FILE, for a file that torch.compiler.save_cache_artifacts() wrote.

    With --base, entries that OLD has, identical or equivalent, are left out, and contents that it has are named by
    their digests. What OLD has and the roots have no longer is listed; nothing is ever deleted at a restore.

    FILE is replaced whole or not at all. With -o - the bundle goes to stdout, and words or JSON go to stderr.
    """
    from bundler import packing
    from bundler.formats.limits import DEFAULT_LEVEL
    from bundler.roots import doubt, resolve

    out = console.binary_stdout() if output == "-" else output
    found = resolve(roots)
    with console.progress("packing") as progress:
        report = packing.pack(
            found,
            out,
            profile=profile,
            level=DEFAULT_LEVEL if level is None else level,
            strict=strict,
            winners_only=winners_only,
            exclude=[*exclude, *_itself([output, base or "-"], [root.path for root in found])],
            base=base,
            progress=progress,
        )
    for warning in filter(None, map(doubt, found)):
        console.warn(warning)
    console.report = {
        "bundle": output,
        "content_digest": report.content_digest,
        "entries": report.entries,
        "files": report.files,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
        "skipped": [{"path": skipped.path, "reason": skipped.reason} for skipped in report.skipped],
        "seconds": report.seconds,
        "base": report.base,
        "in_base": report.in_base,
        "lost": list(report.lost),
    }
    _say(console, report, output)
    return 0


def _itself(bundles: Iterable[str], roots: Sequence[str]) -> list[str]:
    """Return patterns that leave out bundles that lie inside a root: else each pack would hold the last."""
    places = [os.path.realpath(bundle) for bundle in bundles if bundle != "-"]
    inside = [(place, os.path.realpath(root)) for place in places for root in roots]
    return [
        glob.escape(os.path.relpath(path, root).replace(os.sep, "/"))
        for path, root in inside
        if path.startswith(root.rstrip(os.sep) + os.sep)
    ]


def _say(console: Console, report: PackReport, output: str) -> None:
    console.say(f"bundle: {'stdout' if output == '-' else output}")
    nothing = ": the base has all of the roots" if report.base and not report.entries else ""
    console.say(f"packed: {counted(report.entries, 'entry')}, {counted(report.files, 'file')}{nothing}")
    sizes = f"{size_text(report.bytes_in)} became {size_text(report.bytes_out)}"
    smaller = f", {report.bytes_in / report.bytes_out:.1f} times smaller" if report.bytes_in > report.bytes_out else ""
    console.say(f"size: {sizes}{smaller}, in {report.seconds:.2f} s")
    console.say(f"content digest: {report.content_digest}")
    if report.base:
        console.say(f"base: {report.base}, which has {counted(report.in_base, 'entry')} of the roots already")
        console.listing("lost", [(entry, "in the base, and no longer in the roots") for entry in report.lost])
    if report.skipped:
        console.say(f"not packed: {counted(len(report.skipped), 'thing')}; a bundle holds what is whole only")
    console.listing("skipped", [(skipped.path, skipped.reason) for skipped in report.skipped])
