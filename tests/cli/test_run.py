"""``triton-bundler run`` as a process: exit codes, signals, the terminal, where the output goes, and kills."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli.run import FIELDS
from bundler.testing import programs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a command is run under our eyes on Linux")


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


MAKE = (
    "import os, pathlib; from bundler.testing import trees;"
    "trees.synthetic_kernel(pathlib.Path(os.environ['TRITON_HOME'], '.triton', 'cache'), 'softmax', seed=7)"
)


@pytest.fixture
def environment(process_environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in process_environment.items() if name != "TRITON_CACHE_DIR"}


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Start ``triton-bundler run`` in a process of its own."""

    def go(*argv: object, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bundler", "run", *map(str, argv)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **options}
        return subprocess.Popen(command, cwd=tmp_path, **options)

    return go


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    return path.read_text()


def is_alive(pid: int) -> bool:
    try:
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except FileNotFoundError:
        return False


# --- output and exit codes -----------------------------------------------------------------------------------------


def test_with_json_stdout_is_one_object_and_the_command_s_goes_to_stderr(
    process: Any, bundle: Path, tmp_path: Path, environment: dict[str, str], conform: Callable[..., None]
) -> None:
    command = ["sh", "-c", f"echo out; echo err >&2; cat {tmp_path}/d/triton/.triton/cache/*/*.cubin | wc -c >&2"]
    run = process("run", "--bundle", bundle, "--root-dir", tmp_path / "d", "--json", "--", *command, env=environment)
    assert run.code == 0 and "out\nerr\n" in run.err
    conform(run.json, FIELDS)
    assert (run.json["restored"], run.json["used"], run.json["exit_code"], run.json["compiled"]) == (3, 2, 0, [])


def test_without_json_stdout_is_the_command_s_alone(
    process: Any, bundle: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    argv = ["run", "--bundle", bundle, "--root-dir", tmp_path / "d", "--", "echo", "--json"]
    run = process(*argv, env=environment)
    assert run.out == b"--json\n"
    assert "restored: 3 entries" in run.err and "0 of them used" in run.err and "new: 0 entries" in run.err
    again = process(*argv, env=environment)
    assert "restored: 3 entries (3 had been there) in" in again.err
    quiet = process("run", "-q", *argv[1:], env=environment)
    assert quiet.out == b"--json\n"
    assert [line.partition(": none")[0] for line in quiet.err.splitlines()] == ["triton-bundler: warning"]


def test_stdin_is_the_command_s(process: Any, bundle: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    argv = ["run", "-q", "--bundle", bundle, "--root-dir", tmp_path / "d", "--", "cat"]
    assert process(*argv, env=environment, input=b"through").out == b"through"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_code_is_the_command_s(cli: Any, bundle: Path, tmp_path: Path, script: str, code: int) -> None:
    run = cli("run", "--json", "--bundle", bundle, "--root-dir", tmp_path / "d", "--", "sh", "-c", script)
    assert (run.code, run.json["exit_code"]) == (code, code) and "error" not in run.json


def test_what_we_fail_at_is_in_the_json_and_decides_only_where_the_command_did_not(
    cli: Any, flipped: Path, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.setenv("PYTHONPATH", str(Path(bundler.__file__).parent.parent))
    cold = cli("run", "--json", "--bundle", flipped, "--root-dir", tmp_path / "d", "--", "true")
    assert (cold.code, cold.json["restored"], cold.json["error"]["type"]) == (0, 0, "DigestMismatchError")
    assert "cold start" in cold.err
    absent = cli("run", "--json", "--bundle", tmp_path / "absent", "--", "true")
    assert (absent.code, absent.json["error"]["type"]) == (12, "LocalIOError") and "exit_code" not in absent.json
    unknown = cli("run", "--json", "--bundle", bundle, "--root-dir", tmp_path / "d", "--", "/no/such/command")
    assert (unknown.code, unknown.json["error"]["path"]) == (12, "/no/such/command")
    save = ["run", "--json", "--save", "--bundle", tmp_path / "no" / "x", "--root-dir", tmp_path / "d", "--"]
    assert cli(*save, *python(MAKE)).code == 12
    assert cli(*save, "false").code == 1
    assert cli("run", "--bundle", bundle).code == 2


# --- signals -------------------------------------------------------------------------------------------------------

TRAPPED = """
import os, signal, sys, time
count = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: count.append(number))
open(sys.argv[1], "w").write(str(os.getpid()))
while not count:
    time.sleep(0.02)
time.sleep(0.5)
sys.exit(40 + 10 * (len(count) - 1) + count[0] % 10)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_to_us_reaches_the_command_once_and_we_wait_for_it(
    start: Any, bundle: Path, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(
        "--bundle", bundle, "--root-dir", "d", "--json", "--", *python(TRAPPED), "pid", start_new_session=True
    )
    wait_for(tmp_path / "pid")
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 40 + number % 10, err
    assert json.loads(out)["exit_code"] == process.returncode


def test_a_signal_that_ends_the_command_is_told_and_saved_if_asked(
    start: Any, bundle: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """Preemption: SIGTERM, and a while until SIGKILL."""
    text = MAKE + "; open('pid', 'w').write('x'); import time; time.sleep(60)"
    process = start("--bundle", bundle, "--root-dir", "d", "--save-on-failure", "--json", "--", *python(text))
    wait_for(tmp_path / "pid")
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    report = json.loads(out)
    assert (report["signal"], report["saved"], report["added"]) == ("SIGTERM", True, 1)


def test_the_command_does_not_outlive_us(start: Any, bundle: Path, tmp_path: Path) -> None:
    text = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)"
    process = start("--bundle", bundle, "--root-dir", "d", "--", *python(text))
    pid = int(wait_for(tmp_path / "pid"))
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


TERMINAL = """
import os, signal, sys, time
count = []
signal.signal(signal.SIGINT, lambda number, frame: count.append(number))
print("terminal", os.isatty(0), os.isatty(1), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
while not count:
    time.sleep(0.02)
time.sleep(0.5)
print("times", len(count), flush=True)
sys.exit(6)
"""


def test_a_terminal_passes_through_and_its_interrupt_comes_once(
    environment: dict[str, str], bundle: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bundler", "run", "-q", "--bundle", str(bundle), "--root-dir", str(tmp_path / "d")]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*command, "--", *python(TERMINAL)], environment)
    seen = b""
    while b"True True True" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    try:
        while True:
            seen += os.read(terminal, 1000)
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    assert b"times 1" in seen


# --- kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "number"),
    [
        ("bundler.payload.prefixes", signal.SIGKILL),  # while the new entries are packed
        ("bundler._atomic.sync", signal.SIGKILL),  # the union is written, and not yet on the disk
        ("bundler._atomic.rename", signal.SIGKILL),  # nor under its name
        ("bundler._atomic.rename", signal.SIGTERM),
    ],
)
def test_a_kill_during_the_save_leaves_the_old_file(
    bundle: Path, tmp_path: Path, environment: dict[str, str], leftovers: Any, point: str, number: signal.Signals
) -> None:
    """The restore renames too, so the trap is set when the command has run."""
    before = bundle.read_bytes()
    module, _, name = point.rpartition(".")
    program = (
        f"import os, sys, {module} as at, bundler.running, bundler.cli\n"
        "quiet = bundler.running.settle\n"
        "def trap(*arguments):\n"
        f"    at.{name} = lambda *_, **__: os.kill(os.getpid(), {int(number)})\n"
        "    return quiet(*arguments)\n"
        "bundler.running.settle = trap\n"
        "bundler.cli.entry_point()"
    )
    argv = ["run", "--bundle", str(bundle), "--save", "--root-dir", str(tmp_path / "d"), "--", *python(MAKE)]
    done = subprocess.run([sys.executable, "-c", program, *argv], capture_output=True, env=environment, check=False)
    assert done.returncode == (-9 if number == signal.SIGKILL else 143), done.stderr
    assert bundle.read_bytes() == before
    again = subprocess.run(
        [
            sys.executable,
            "-m",
            "bundler",
            *argv,
        ],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert again.returncode == 0 and not leftovers(tmp_path), again.stderr
    assert len(bundler.inspect(bundle)["entries"]) == 4


# --- real compilers ------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_kernels_of_triton_are_exported_and_hit_elsewhere(
    process: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "warm.tbundle"
    command = [sys.executable, str(programs.COMPILE_TRITON), "--targets=cuda:90", "--kernels=add"]
    made = process("export", "-o", out, "--require", "triton", "--json", "--", *command, env=environment)
    assert made.code == 0, made.err
    assert ["triton", "add"] in [list(each.values()) for each in made.json["compiled"]]
    run = process("run", "--bundle", out, "--root-dir", tmp_path / "there", "--json", "--", *command, env=environment)
    said = json.loads(next(line for line in run.err.splitlines() if line.startswith('{"kernels"')))
    assert (said["hits"], said["compiled"]) == (1, 0)
    assert (run.json["used"] >= 1, run.json["compiled"], run.json["new_entries"]) == (True, [], 0)


@pytest.mark.torch
def test_graphs_of_torch_are_exported_and_hit_elsewhere(
    process: Any, environment: dict[str, str], tmp_path: Path, shared: Path, conform: Callable[..., None]
) -> None:
    (shared / "tmp").mkdir(exist_ok=True)  # for the precompiled header, which torch keeps outside of its cache
    environment["TMPDIR"] = str(shared / "tmp")
    out = tmp_path / "warm.tbundle"
    command = [sys.executable, str(programs.COMPILE_TORCH)]
    argv = ["export", "-o", out, "--require", "fxgraph,aotautograd,cpp", "--json", "--", *command]
    made = process(*argv, env=environment, cwd=tmp_path)
    assert made.code == 0, made.err
    conform(made.json, FIELDS)
    cold = json.loads(next(line for line in made.err.splitlines() if line.startswith('{"fxgraph')))
    kinds = [each["kind"] for each in made.json["compiled"]]
    assert kinds.count("fxgraph") == cold["fxgraph_misses"] and kinds.count("aotautograd") == cold["autograd_misses"]
    assert kinds.count("cpp") == cold["cpp_compiled"] > 0
    there = tmp_path / "else where"
    there.mkdir()
    argv = ["run", "--bundle", out, "--save", "--root-dir", "roots", "--json", "--", *command]
    run = process(*argv, env=environment, cwd=there)
    warm = json.loads(next(line for line in run.err.splitlines() if line.startswith('{"fxgraph')))
    assert (warm["fxgraph_hits"], warm["autograd_hits"]) == (cold["fxgraph_misses"], cold["autograd_misses"])
    assert warm["fxgraph_misses"] == warm["autograd_misses"] == warm["cpp_compiled"] == 0
    assert warm["checksum"] == cold["checksum"]
    assert (run.json["compiled"], run.json["new_entries"], run.json["saved"]) == ([], 0, False)
    assert run.json["used"] > 0 and run.json["seconds_saved"] > 0
