"""``triton-bundler key``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from bundler.cli._command import command as _command
from bundler.cli._fields import Field
from bundler.cli._output import Console
from bundler.errors import LocalIOError, UsageError

__all__ = ["FIELDS", "command"]

FIELDS = {
    "key": Field(str, "Name for the caches of this kind of machine and software."),
    "prefixes": Field([str], "Beginnings of it to fall back on, longest first; each ends in `-`."),
}


@_command("key", FIELDS)
@click.option("--salt", metavar="S", default="", help="What else must be equal, such as a hash of your own operators.")
@click.option(
    "--facts",
    metavar="FILE",
    help="Make the key of these facts and not of this host: JSON, such as inspect --json prints. For a job that runs "
    "on a machine without the GPU.",
)
@click.option("--prefixes", is_flag=True, help="Print the prefixes, one a line, in place of the key.")
def command(console: Console, salt: str, facts: str | None, prefixes: bool) -> int:
    """Print a key for the caches of this kind of machine and software.

    It is made of what decides whether a cache hits: system, Python, torch, Triton, CUDA or ROCm, GPU, the lock file of
    the current directory, and the salt. Names of hosts and runners are not in it.
    """
    from bundler.keys import make_key

    made = make_key(salt=salt, facts=None if facts is None else _facts(facts))
    console.report = {**asdict(made), "prefixes": list(made.prefixes)}
    if "-torch0-" in made.key:
        console.warn("torch is not installed beside this command, so every torch has this key: install both together")
    if not console.as_json:
        for line in made.prefixes if prefixes else (made.key,):
            console.give(line)
    return 0


def _facts(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise LocalIOError.from_os_error(error, "read the facts", path) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): give what `inspect --json` prints, or its facts") from error
    facts = found.get("facts", found) if isinstance(found, dict) else None
    if not isinstance(facts, dict):
        raise UsageError(f"{path} holds no facts: give what `inspect --json` prints, or its facts, as a JSON object")
    return facts
