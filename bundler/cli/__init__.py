"""The command line: ``triton-bundler``, ``python -m bundler``, and ``main`` for a call inside a process.

A command is a module of this package with a ``command`` in it; it is imported when it is asked for, and what reads and
writes bundles is imported when it runs. Everything that can end a command comes by here, so that the exit code, the
JSON and the message are made in one place.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from bundler import __version__
from bundler.cli._output import Console
from bundler.cli._signals import StoppedError, stoppable
from bundler.errors import BundlerError, LocalIOError, UsageError

__all__ = ["COMMANDS", "DEBUG", "PROGRAM", "entry_point", "main", "program"]

PROGRAM = "triton-bundler"

COMMANDS = (
    *("pack", "unpack", "verify", "inspect", "diff", "merge", "repair"),
    *("run", "export"),
    *("key", "restore", "save"),
    *("push", "pull", "ls", "rm", "gc"),
    "demo",
)
"""Names of the commands, in the order of the help; each is a module of this package."""

DEBUG = "TRITON_BUNDLER_DEBUG"
"""Environment variable that adds the traceback to a failure."""

_SIGPIPE = 13  # not in ``signal`` on Windows
_KEYBOARD_INTERRUPT = 130


class _Program(click.Group):
    """Loads a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"bundler.cli.{cmd_name}").command
        return command


@click.group(PROGRAM, cls=_Program, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def program() -> None:
    """Compile caches of torch.compile and Triton as one file that can be trusted, and back."""


def entry_point() -> None:
    """Run the command line of this process, and end the process."""
    # Tables of files live as long as the command, and collections of garbage free none of them: for 10,000 kernels they
    # took a fifth of a pack. Only here, in a process of our own.
    gc.set_threshold(200_000, 50, 100)
    code = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            # Nobody reads it any more; what is buffered must not be tried again when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code > 128 and threading.active_count() > 1:
        os._exit(code)  # told to end: what a thread still compresses is for nobody
    sys.exit(code)


def main(argv: list[str]) -> int:
    """Run a command line in this process.

    Args:
        argv: What stands behind the name of the program.

    Returns:
        The exit code. Nothing is raised, and the signal handlers are as they were.
    """
    console = Console(as_json="--json" in _own(argv))
    try:
        with stoppable():
            code = _run(argv, console)
            console.finish()
            return code
    except (Exception, KeyboardInterrupt, StoppedError) as error:  # noqa: BLE001 (reported below, never dropped)
        return _fail(error, console)


def _own(argv: Sequence[str]) -> list[str]:
    """Return what is ours of a command line: all that stands before ``--``."""
    return list(argv[: argv.index("--")] if "--" in argv else argv)


def _run(argv: list[str], console: Console) -> int:
    if not argv:
        with program.make_context(PROGRAM, [], resilient_parsing=True) as context:
            console.complain(program.get_help(context))
        return UsageError.exit_code
    try:
        # Not program.main(): it ends the process when a pipe breaks.
        with program.make_context(PROGRAM, list(argv), obj=console) as context:
            code = program.invoke(context)
            return code if isinstance(code, int) else 0
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code


def _fail(error: BaseException, console: Console) -> int:
    """Report what ended a command; return the exit code."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return 128 + _SIGPIPE  # whoever read our output has gone, and knows
    code, failure = _failure(error)
    if os.environ.get(DEBUG):
        console.complain("".join(traceback.format_exception(error)).rstrip("\n"))
    try:
        console.finish(failure)
    except (OSError, ValueError):  # stdout is full, broken or closed: the exit code still tells
        pass
    return code


def _failure(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and ``error`` of the JSON."""
    if isinstance(error, OSError) and not isinstance(error, BundlerError):
        error = LocalIOError.from_os_error(error, "read or write", "" if error.filename else "a file")
    if isinstance(error, BundlerError):
        return error.exit_code, {"type": type(error).__name__, "message": str(error), **error.fields()}
    if isinstance(error, click.ClickException):
        message = _usage(error)
        return UsageError.exit_code, {"type": "UsageError", "message": message, "reason": message}
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        error = StoppedError(_KEYBOARD_INTERRUPT - 128, "SIGINT")
    if isinstance(error, StoppedError):
        return 128 + error.number, {"type": "StoppedError", "message": str(error), "signal": error.name}
    message = f"unexpected {type(error).__name__}: {error}; this is a fault of {PROGRAM}: set {DEBUG}=1 for a traceback"
    return 1, {"type": type(error).__name__, "message": message}


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}; see `{context.command_path if context else PROGRAM} --help`"
