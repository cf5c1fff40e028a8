"""``triton-bundler run``."""

from __future__ import annotations

import click

from bundler.cli._command import command as _command
from bundler.cli._output import Console
from bundler.cli._runs import RUN_FIELDS, also_option, conclude, program_argument, stdout_of_child

__all__ = ["FIELDS", "command"]

FIELDS = RUN_FIELDS


@_command("run", FIELDS)
@program_argument()
@click.option("--bundle", metavar="FILE", required=True, help="Restored before the command starts.")
@click.option("--save", is_flag=True, help="Add what is new to FILE when the command ends with 0; FILE need not exist.")
@click.option("--save-on-failure", is_flag=True, help="As --save, and also when it ends otherwise.")
@click.option(
    "--root-dir",
    metavar="DIR",
    help="Put all roots below DIR, and point the command there; by default they lie where this host keeps each kind.",
)
@also_option("As for export, where FILE has no such root yet and one is to be saved: pycache.")
def command(
    console: Console,
    program: tuple[str, ...],
    bundle: str,
    save: bool,
    save_on_failure: bool,
    root_dir: str | None,
    also: tuple[str, ...],
) -> int:
    """Restore a bundle, run a command with it, and say what was used and what was compiled.

    The exit code is the command's; 128 and the number of a signal that ended it. Signals go on to the command, and its
    terminal and its open files are ours. When this process is killed, the command gets SIGTERM. With --json its stdout
    goes to stderr.

    A bundle that is damaged, too new or for another GPU is warned of (`error` in the JSON), and the command starts
    cold. When FILE does not exist and is not to be saved, the command does not start, and the exit code is 12. When
    what is new cannot be saved, the exit code is that of the error, if the command ended with 0.

    With --save, FILE becomes the union of what it held and what the command made or used, never less; it is replaced by
    one rename, and not at all when there is nothing new. A damaged FILE is kept as FILE.damaged. With --root-dir,
    everything below DIR is added.

    TRITON_CACHE_DIR stays as it is where it is set. It is not set otherwise: with it, Inductor would keep its kernels
    in other places. TRITON_BUNDLER=0 restores and saves nothing, and runs the command as if it were started without us.

    Where FILE holds byte code (pycache), PYTHONPYCACHEPREFIX is set, PYTHONDONTWRITEBYTECODE is unset, and byte code of
    another Python than the command's is left out, as far as the name of the command tells.
    """
    from bundler import running

    report = running.run(
        program,
        bundle,
        save=save,
        save_on_failure=save_on_failure,
        root_dir=root_dir,
        also=also,
        stdout=stdout_of_child(console),
        warn=console.warn,
    )
    return conclude(console, report)


command.allow_interspersed_args = False
