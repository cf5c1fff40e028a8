"""``triton-bundler unpack``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from bundler.cli._command import command as _command
from bundler.cli._command import parsed
from bundler.cli._files import STDIN, Source, content_bytes, source
from bundler.cli._output import Console
from bundler.cli._restored import RESTORED_FIELDS, as_json, print_environment, say, say_environment
from bundler.cli._several import restore_several
from bundler.errors import DigestMismatchError, UsageError

if TYPE_CHECKING:
    from bundler.bundle import Selection, UnpackReport
    from bundler.emit import EmitOptions
    from bundler.model import Target

__all__ = ["FIELDS", "command", "read_target"]

FIELDS = RESTORED_FIELDS


def read_target(text: str) -> Target:
    """Read ``cuda:90``; a ``ValueError`` says what is wrong."""
    from bundler.model import Target

    target = Target.parse(text)
    if target.backend == "cuda" and not re.fullmatch(r"[0-9]+[a-z]?", target.arch):
        raise ValueError(f"{text!r} is not a target: write cuda:90, not cuda:9.0 and not cuda:sm_90")
    return target


def _device_map(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+):([0-9]+)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a device map: write 0:3 for what was compiled on device 0 and goes to 3")
    return int(match[1]), int(match[2])


@_command("unpack", FIELDS)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--root",
    "roots",
    metavar="KIND=PATH",
    multiple=True,
    help="Where a root goes; NAME:KIND=PATH where the bundle has two of a kind. May be repeated.",
)
@click.option(
    "--into",
    metavar="PATH",
    help="Where roots go that --root does not name: a single one to PATH itself, several to PATH/NAME.",
)
@click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="Restore what matches, as name/path, path, unit or kernel name; * matches / too. May be repeated.",
)
@click.option(
    "--target",
    "targets",
    metavar="TARGET",
    multiple=True,
    callback=parsed(read_target),
    help="Restore for this GPU, such as cuda:90 or hip:gfx942, and not for that of this host. May be repeated.",
)
@click.option(
    "--device-map",
    "devices",
    metavar="A:B",
    multiple=True,
    callback=parsed(_device_map),
    help="What was compiled on device A goes to device B. May be repeated, also for one A.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "fail"]),
    default="keep",
    help="Where a different entry is installed: keep it (the default), replace it, or write nothing and exit with 9.",
)
@click.option("--salvage", is_flag=True, help="Restore what is good of a damaged bundle, then exit with 4.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
@click.option("--force", is_flag=True, help="Restore whatever the target, and host binaries that cannot run here.")
@click.option("--no-sync", is_flag=True, help="Do not wait until the files are on the disk.")
@click.option(
    "--print-env",
    is_flag=True,
    help="Print export NAME=value lines to stdout, and words to stderr; with --json, env is in the JSON as ever.",
)
def command(
    console: Console,
    files: tuple[str, ...],
    roots: tuple[str, ...],
    into: str | None,
    only: tuple[str, ...],
    targets: tuple[Target, ...],
    devices: tuple[tuple[int, int], ...],
    on_conflict: str,
    salvage: bool,
    dry_run: bool,
    force: bool,
    no_sync: bool,
    print_env: bool,
) -> int:
    """Restore bundles into cache roots.

    FILE is a bundle, or - for stdin. Without --root and --into, each root goes where this host keeps its kind. Of
    several files all are checked before anything is written; then they are restored in their order. A delta that
    `pack --base OLD` wrote is given together with OLD, in any order, and the two are restored as one bundle.

    Nothing appears before all of it is verified, and each entry then appears whole or not at all. What is installed
    and the same is left alone; what is installed and damaged is replaced. When there are entries for GPUs and none for
    the GPU of this host, nothing is written, and the exit code is 8.
    """
    from bundler.bundle import Selection
    from bundler.emit import EmitOptions, OnConflict

    if files.count(STDIN) > 1:
        raise UsageError("stdin can be read once: give - once")
    print_env = print_env and not console.as_json  # the JSON has it
    if print_env:
        console.take_stdout()
    selection = Selection(only=only, targets=targets or None, devices=devices, force=force)
    options = EmitOptions(on_conflict=OnConflict(on_conflict), sync=not no_sync, salvage=salvage, dry_run=dry_run)
    with ExitStack() as stack:
        sources = [stack.enter_context(source(file, again=len(files) > 1)) for file in files]
        report = _restore(console, sources, roots, into, selection, options)
    console.report = as_json(report, dry_run=dry_run)
    say(console, report, dry_run=dry_run)
    if print_env:
        print_environment(console, report.env)
    else:
        say_environment(console, report.env)
    return DigestMismatchError.exit_code if report.damaged else 0


def _restore(
    console: Console,
    sources: Sequence[Source],
    roots: Sequence[str],
    into: str | None,
    selection: Selection,
    options: EmitOptions,
) -> UnpackReport:
    from bundler.bundle import unpack
    from bundler.reading import paired

    pairs = paired(sources)
    with console.progress("restoring", lambda: sum(map(content_bytes, sources))) as progress:
        options = replace(options, progress=progress)
        if len(pairs) == 1:
            ((bundle, base),) = pairs
            return unpack(bundle, roots, base=base, into=into, selection=selection, options=options)
        return restore_several(pairs, roots, into, selection, options)
