"""``triton-bundler restore``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bundler.cli._command import command as _command
from bundler.cli._command import parsed
from bundler.cli._fields import Field
from bundler.cli._output import Console
from bundler.cli._restored import RESTORED_FIELDS, as_json, print_environment, say, say_environment
from bundler.cli._stores import store_option
from bundler.cli.unpack import read_target
from bundler.errors import NoHitError

if TYPE_CHECKING:
    from bundler.caching import RestoreReport
    from bundler.model import Target

__all__ = ["FIELDS", "command"]

FIELDS = {
    "hit": Field(bool, "Whether a bundle was restored."),
    "matched_key": Field((str, None), "Key of the bundle that was restored; null for a miss."),
    "exact": Field(bool, "Whether that is the key that was asked for."),
    "store": Field(str, "The store."),
    "key": Field(str, "The key that was asked for."),
    "content_digest": Field((str, None), "Content digest of that bundle."),
    "bytes_in": Field(int, "Bytes that were read of it."),
    "seconds_saved": Field(float, "Seconds of compiling that it stands for, as far as its entries say."),
    **RESTORED_FIELDS,
    "warnings": Field([str], "Why a bundle was passed over, and what else went wrong and does not matter."),
    "env": Field({str: str}, "Variables that point torch, Triton and vLLM at the roots; of a miss, at those given."),
}


@_command("restore", FIELDS)
@store_option(required=True)
@click.option("--key", metavar="K", required=True, help="Which bundle, such as triton-bundler key prints.")
@click.option(
    "--restore-key",
    "restore_keys",
    metavar="PREFIX",
    multiple=True,
    help="Without a bundle under K, take the newest whose key begins like this. May be repeated, best first.",
)
@click.option("--require-hit", is_flag=True, help="Exit with 10 when nothing is restored.")
@click.option(
    "--target",
    "targets",
    metavar="TARGET",
    multiple=True,
    callback=parsed(read_target),
    help="Restore for this GPU, such as cuda:90 or hip:gfx942, and not for that of this host. May be repeated.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "fail"]),
    default="keep",
    help="Where a different entry is installed: keep it (the default), replace it, or write nothing and exit with 9.",
)
@click.option("--no-sync", is_flag=True, help="Do not wait until the files are on the disk.")
@click.option(
    "--print-env",
    is_flag=True,
    help="Print export NAME=value lines to stdout, and words to stderr; with --json, env is in the JSON as ever.",
)
@click.argument("roots", metavar="[ROOT]...", nargs=-1)
def command(
    console: Console,
    store: str,
    key: str,
    restore_keys: tuple[str, ...],
    require_hit: bool,
    targets: tuple[Target, ...],
    on_conflict: str,
    no_sync: bool,
    print_env: bool,
    roots: tuple[str, ...],
) -> int:
    """Restore caches before a CI job.

    What is stored under K is restored, else the newest bundle under the first prefix that has one. ROOT is KIND=PATH:
    what is restored, and where to; without any, all that the bundle has goes where this host keeps it.

    A miss is no failure: the exit code is 0, and hit is false. A bundle that is damaged, or that is for another GPU, is
    passed over with a warning. Where the store cannot be reached or read, the exit code is 10.
    """
    from bundler.bundle import Selection
    from bundler.caching import restore
    from bundler.emit import EmitOptions, OnConflict

    print_env = print_env and not console.as_json  # the JSON has it
    if print_env:
        console.take_stdout()
    report = restore(
        store,
        key,
        roots,
        restore_keys=restore_keys,
        selection=Selection(targets=targets or None),
        options=EmitOptions(on_conflict=OnConflict(on_conflict), sync=not no_sync),
    )
    console.report = {
        "hit": report.hit,
        "matched_key": report.matched_key,
        "exact": report.matched_key == key,
        "store": report.store,
        "key": key,
        "content_digest": report.content_digest,
        "bytes_in": report.bytes_in,
        "seconds_saved": report.seconds_saved,
        **as_json(report.unpacked, dry_run=False),
        "warnings": list(report.warnings),
        "seconds": report.seconds,
    }
    _say(console, report)
    if require_hit and not report.hit:
        reason = "; ".join(report.warnings) or f"no bundle is there{', nor under a prefix' if restore_keys else ''}"
        raise NoHitError(report.store, key, reason)
    if print_env:
        print_environment(console, report.unpacked.env)
    else:
        say_environment(console, report.unpacked.env)
    return 0


def _say(console: Console, report: RestoreReport) -> None:
    if not report.hit:
        for warning in report.warnings:
            console.warn(warning)
        console.say(f"miss: {report.key}")
        return
    for warning in report.warnings[: len(report.warnings) - len(report.unpacked.warnings)]:
        console.warn(warning)
    console.say(f"hit: {report.matched_key}")
    if report.seconds_saved:
        console.say(f"stands for: {report.seconds_saved:.1f} s of compiling")
    say(console, report.unpacked, dry_run=False)
