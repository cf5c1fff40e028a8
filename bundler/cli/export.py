"""``triton-bundler export``."""

from __future__ import annotations

import click

from bundler.cli._command import command as _command
from bundler.cli._output import Console
from bundler.cli._runs import RUN_FIELDS, also_option, conclude, program_argument, stdout_of_child

__all__ = ["FIELDS", "command"]

FIELDS = RUN_FIELDS


@_command("export", FIELDS)
@program_argument()
@click.option("-o", "--output", metavar="FILE", required=True, help="Where the bundle goes.")
@click.option(
    "--require",
    metavar="KINDS",
    multiple=True,
    help="Write nothing, and exit with 6, when there is nothing of one of these, separated by commas: fxgraph, "
    "aotautograd, triton, autotune, cpp. May be repeated.",
)
@also_option("Also keep what has to be asked for: pycache, Python's byte code of all that the command imports.")
@click.option(
    "--quiet-seconds",
    metavar="N",
    type=click.FloatRange(min=0),
    default=1.0,
    help="How long no file may have changed before the roots are packed; 1 by default.",
)
def command(
    console: Console,
    program: tuple[str, ...],
    output: str,
    require: tuple[str, ...],
    also: tuple[str, ...],
    quiet_seconds: float,
) -> int:
    """Run a command with fresh cache roots, and pack what it leaves there.

    Nothing is written unless the command ends with 0. Then its roots are packed as soon as nothing changes in them any
    more, for a minute at most. FILE is replaced whole or not at all. The exit code is the command's, and ours when the
    command ended with 0 and FILE could not be written: 6 when something that is required, or everything, is missing.

    The command is run as by `triton-bundler run`. Its roots lie in a temporary directory; where TRITON_CACHE_DIR is
    set, it is set to a place in there.

    With pycache, PYTHONPYCACHEPREFIX names a fresh directory, and PYTHONDONTWRITEBYTECODE is unset. What Python writes
    there is tied to the contents of its sources instead of their times, so that it serves wherever the same versions
    are installed in the same directories. Byte code of your own modules is among it.
    """
    from bundler import exporting

    report = exporting.export(
        program,
        output,
        require=[word for words in require for word in words.split(",") if word],
        also=also,
        quiet_seconds=quiet_seconds,
        stdout=stdout_of_child(console),
        warn=console.warn,
    )
    return conclude(console, report)


command.allow_interspersed_args = False
