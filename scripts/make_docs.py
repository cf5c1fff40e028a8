#!/usr/bin/env python3
"""Write docs/commands.md, the reference of the commands, from their code.

scripts/make_docs.py            write it
scripts/make_docs.py --check    compare it with what would be written; exit with 1 when it differs
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import runpy
import sys
from pathlib import Path

import click

from bundler import cli
from bundler.cli._command import Command
from bundler.cli._fields import describe

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "commands.md"

HEAD = """\
<!-- Written by scripts/make_docs.py: change the code, then run it. -->

# Commands

`triton-bundler COMMAND`, `python -m bundler COMMAND`, and `bundler.cli.main([...])` in a process (which returns the
exit code) are the same. None of them needs torch, Triton or a GPU, except `demo`.

- `--json` prints one JSON object to stdout; warnings go to stderr. Sizes are in bytes, times in seconds, digests are
  written `sha256:<hex>`, entries `name/relative/path`. Fields may be added, and none of those below goes away.
- A command that cannot do what it was asked has `error` in its JSON: `type` and `message`, and the fields of the error.
  One that did it and found something wrong says so in its own fields, and in its exit code.
- Without `--json`, a terminal gets words and tables, the first twenty rows of each; a log gets `key: value` lines, and
  lists as lines with tabs. Names are escaped where they hold something that is not printable.
- Progress is shown on stderr, on a terminal only. `--quiet` leaves warnings, errors, and what was asked for.
- SIGINT, SIGTERM and SIGHUP end a command after what is half written has been removed; what is done stays, whole.
- `TRITON_BUNDLER_DEBUG=1` adds the traceback to a failure.
"""


def commands() -> dict[str, Command]:
    """Every command by name, in the order of the help."""
    context = click.Context(cli.program)
    found = {name: cli.program.get_command(context, name) for name in cli.COMMANDS}
    return {name: command for name, command in found.items() if isinstance(command, Command)}


def page() -> str:
    """The whole page."""
    errors = runpy.run_path(str(Path(__file__).with_name("list_errors.py")))["table"]()
    parts = [HEAD, *(section(name, command) for name, command in commands().items()), f"## Exit codes\n\n{errors}"]
    return "\n".join(parts)


def section(name: str, command: Command) -> str:
    """What is said of one command."""
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    words = [*(str(argument.metavar) for argument in arguments), "[OPTION]..."]
    usage = " ".join([cli.PROGRAM, name, *sorted(words, key=lambda word: word.startswith("--"))])
    lines = [f"## {name}", "", f"    {usage}", "", text(command), "", "| option | does |", "| --- | --- |"]
    lines += [f"| {spelled(option)} | {cell(option.help or '')} |" for option in options]
    lines += ["", "| JSON field | type | holds |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | {cell(describe(f.shape))} | {cell(f.text)} |" for key, f in command.fields.items()]
    return "\n".join(lines) + "\n"


def text(command: Command) -> str:
    """The help of a command, a paragraph a line, as Markdown takes it."""
    return inspect.cleandoc(command.help or "")


def spelled(option: click.Option) -> str:
    """How an option is written: ``-o``, ``--output FILE``."""
    value = ""
    if not option.is_flag:
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        value = " " + (option.metavar or "\\|".join(map(str, choices)))
    names = sorted(option.opts, key=len)
    needed = " (required)" if option.required else ""
    return ", ".join(f"`{name}{value if name == names[-1] else ''}`" for name in names) + needed


def cell(content: str) -> str:
    """Text that may stand in a table."""
    return content.replace("|", "\\|") if "\\|" not in content else content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    new = page()
    old = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if not arguments.check:
        TARGET.parent.mkdir(exist_ok=True)
        TARGET.write_text(new, encoding="utf-8")
    elif old != new:
        changes = difflib.unified_diff(old.splitlines(True), new.splitlines(True), str(TARGET), "the code")
        sys.stderr.writelines(changes)
        print(f"make_docs: {TARGET} is not what the code says: run scripts/make_docs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
