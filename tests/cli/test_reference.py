"""The reference is what the code says, and every error has a code of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from bundler.cli import COMMANDS, program

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "scripts"

pytestmark = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="not in a checkout")


def run(script: str, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPTS / script), *argv]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_reference_is_what_the_code_says() -> None:
    done = run("make_docs.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_two_families_of_errors_share_a_code_by_mistake() -> None:
    done = run("list_errors.py", "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_shared_code_is_found() -> None:
    program = (
        "import runpy, sys, bundler.errors as e\n"
        "e.StoreError.exit_code = 3\n"
        "e.TruncatedError.exit_code = 4\n"
        "sys.argv = ['list_errors', '--check']\n"
        f"runpy.run_path({str(SCRIPTS / 'list_errors.py')!r}, run_name='__main__')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "code 3 is shared by FormatError, StoreError" in done.stderr
    assert "FormatError has the codes [3, 4]" in done.stderr


def test_the_table_of_errors_has_every_code_once() -> None:
    rows = [line.split("|")[1].strip() for line in run("list_errors.py").stdout.splitlines()[2:]]
    assert [int(row) for row in rows] == [*range(13), 130, 141]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    command = program.get_command(click.Context(program), name)
    assert command is not None and (command.help or "").strip()
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert {"as_json", "quiet"} <= {option.name for option in options}
    assert not [option.name for option in options if not option.help]
