"""The command as a process: pipes, strange users, quick help, and what is imported when."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bundler.cli import COMMANDS, main
from bundler.testing import trees


def test_a_bundle_goes_through_a_real_pipe(
    triton: Path, tmp_path: Path, process_environment: dict[str, str], bundle: Path
) -> None:
    root = tmp_path / "there"
    pack = [sys.executable, "-m", "bundler", "pack", f"triton={triton}", "-o", "-"]
    unpack = [sys.executable, "-m", "bundler", "unpack", "-", "--into", str(root), "--json"]
    with subprocess.Popen(pack, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=process_environment) as first:
        second = subprocess.run(unpack, stdin=first.stdout, capture_output=True, env=process_environment, check=False)
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert second.stdout.startswith(b'{"restored": 3, ')
    assert main(["verify", "--root", f"triton={root}", "--quiet"]) == 0


def test_a_reader_that_goes_away_is_no_error_message(
    triton: Path, process_environment: dict[str, str], both: Path
) -> None:
    for argv in (["pack", f"triton={triton}", "-o", "-"], ["inspect", str(both), "--json"]):
        read, write = os.pipe()
        os.close(read)
        command = [sys.executable, "-m", "bundler", *argv]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=process_environment, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, b"")


def test_the_same_command_in_and_outside_of_a_process(process: Any, cli: Any, bundle: Path) -> None:
    for argv in (["verify", bundle, "--json"], ["inspect", bundle, "--json"], ["verify", "--json"], ["--help"]):
        there, here = process(*argv), cli(*argv)
        assert (there.code, there.out, there.err) == (here.code, here.out, here.err)


@pytest.mark.parametrize("argv", [[], ["--help"], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_nothing_heavy_is_imported_before_a_command_runs(argv: list[str], process_environment: dict[str, str]) -> None:
    program = (
        "import sys, bundler.cli\n"
        f"bundler.cli.main({argv!r})\n"
        "heavy = {'msgpack', 'zstandard', 'torch', 'triton', 'numpy', 'ctypes', 'asyncio'}\n"
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=process_environment, check=False)
    assert done.returncode == 0, done.stderr[-200:]


# --- users ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may write to; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def as_user(uid: int, place: Path, argv: list[str], environment: dict[str, str]) -> int:
    """Run a command as another user, in a fork: the interpreter may not be theirs to read."""
    for late in ("concurrent.futures.thread", "ctypes", "symtable", "tempfile"):  # what commands import when they run
        import_module(late)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(place)
            code = main(argv)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


NOBODY = 54321
root_only = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody else"
)


@root_only
@pytest.mark.parametrize("home", [None, "", "/nonexistent"], ids=["no HOME", "empty HOME", "no such HOME"])
def test_a_user_without_a_name_or_a_home_can_do_everything(open_place: Path, home: str | None) -> None:
    trees.synthetic_kernel(open_place / "triton", "add")
    environment = {"PATH": os.environ["PATH"], **({} if home is None else {"HOME": home})}
    bundle, there = str(open_place / "x.tbundle"), str(open_place / "there")
    for argv in (
        ["pack", f"triton={open_place / 'triton'}", "-o", bundle],
        ["unpack", bundle, "--into", there],
        ["verify", bundle],
        ["verify", "--root", there],
        ["inspect", bundle],
        ["diff", bundle, bundle],
        ["repair", bundle, "--root", f"triton={there}"],
    ):
        assert as_user(NOBODY, open_place, [*argv, "--quiet"], environment) == 0, argv
    assert os.stat(there).st_uid == NOBODY


@root_only
def test_a_user_without_a_home_is_told_to_name_a_place(open_place: Path) -> None:
    trees.synthetic_kernel(open_place / "triton", "add")
    assert main(["pack", f"triton={open_place / 'triton'}", "-o", str(open_place / "x.tbundle"), "--quiet"]) == 0
    assert as_user(NOBODY, open_place, ["unpack", str(open_place / "x.tbundle")], {}) == 2


@root_only
def test_a_root_of_another_user_is_refused_with_its_name(open_place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As in an image whose cache was built by root: mode 0755."""
    trees.synthetic_kernel(open_place / "triton", "add")
    assert main(["pack", f"triton={open_place / 'triton'}", "-o", str(open_place / "x.tbundle"), "--quiet"]) == 0
    (open_place / "theirs").mkdir(mode=0o755)
    capfd.readouterr()
    argv = ["unpack", str(open_place / "x.tbundle"), "--into", str(open_place / "theirs")]
    assert as_user(NOBODY, open_place, argv, {}) == 12
    message = capfd.readouterr().err
    assert str(open_place / "theirs") in message and "EACCES" in message


@root_only
@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077], ids=oct)
def test_files_get_what_the_umask_gives_and_old_directories_keep_their_modes(open_place: Path, umask: int) -> None:
    kernel = trees.synthetic_kernel(open_place / "triton", "add")
    assert main(["pack", f"triton={open_place / 'triton'}", "-o", str(open_place / "x.tbundle"), "--quiet"]) == 0
    there = open_place / "there"
    there.mkdir()
    there.chmod(0o751)
    before = os.umask(umask)
    try:
        assert main(["unpack", str(open_place / "x.tbundle"), "--into", str(there), "--quiet"]) == 0
    finally:
        os.umask(before)
    assert there.stat().st_mode & 0o777 == 0o751
    assert (there / kernel.name).stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.stat().st_mode & 0o777 for path in (there / kernel.name).iterdir()} == {0o666 & ~umask}
