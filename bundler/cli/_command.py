"""What every command has: ``--json``, ``--quiet``, and a console that knows of both."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from bundler.cli._fields import Fields
from bundler.cli._output import Console

__all__ = ["Command", "command", "level_option", "parsed"]

T = TypeVar("T")

_COMMON = (
    (["--json", "as_json"], "Print one JSON object, and nothing else, to stdout."),
    (["--quiet", "-q"], "Print nothing but warnings, errors and what was asked for."),
)


class Command(click.Command):
    """A command that says what is in its JSON."""

    fields: Fields


def command(name: str, fields: Fields) -> Callable[[Callable[..., int]], Command]:
    """Make a command of a function that takes a console and the options, and returns the exit code.

    Args:
        name: What users type.
        fields: What the JSON holds.
    """

    def decorate(function: Callable[..., int]) -> Command:
        @click.pass_obj
        @wraps(function)
        def run(console: Console, /, as_json: bool, quiet: bool, **options: Any) -> int:
            console.as_json = as_json
            console.quiet = quiet
            return function(console, **options)

        made = click.command(name, cls=Command, context_settings={"help_option_names": ["-h", "--help"]})(run)
        made.fields = fields
        made.params += [click.Option(names, is_flag=True, help=text) for names, text in _COMMON]
        return made

    return decorate


def parsed(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return an option callback that reads each text with ``read``; a ``ValueError`` of it is a usage error."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(read(text) for text in value)
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return callback


level_option = click.option(
    "--level",
    metavar="N",
    type=int,
    help="zstd level, 1 to 22; 3 by default. 1 to 4 are one and the same, a quick one, and 19 to 22, the smallest.",
)
"""``--level`` of the commands that write a bundle."""
