"""Signals: the exit code is 128 and the signal, nothing half written is left, and the handlers come back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bundler import _atomic
from bundler.cli import _signals, main
from bundler.cli._signals import StoppedError, stoppable
from bundler.testing import trees

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
each_signal = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


@each_signal
def test_a_signal_becomes_its_exit_code_and_an_object(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("bundler.listing.inspect", lambda *_: os.kill(os.getpid(), number))
    before = [signal.getsignal(each) for each in CODES]
    run = cli("inspect", bundle)
    assert run.code == CODES[number]
    assert run.err.startswith(f"triton-bundler: error: stopped by {number.name}") and run.out == b""
    as_json = cli("inspect", bundle, "--json")
    assert as_json.code == CODES[number]
    assert (as_json.json["error"]["type"], as_json.json["error"]["signal"]) == ("StoppedError", number.name)
    assert [signal.getsignal(each) for each in CODES] == before


def test_handlers_come_back_after_success_and_after_an_error(cli: Any, bundle: Path, tmp_path: Path) -> None:
    before = [signal.getsignal(each) for each in CODES]
    assert cli("verify", bundle).code == 0
    assert cli("verify", tmp_path / "absent").code == 12
    assert [signal.getsignal(each) for each in CODES] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_does_not_disturb_the_clean_up() -> None:
    cleaned = False
    with pytest.raises(StoppedError) as caught, stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            cleaned = True
    assert cleaned and caught.value.name == "SIGTERM"


def test_a_signal_after_the_grace_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_signals, "_GRACE", 0.0)
    with pytest.raises(StoppedError) as caught, stoppable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except StoppedError:  # lost, as in a callback from C
            os.kill(os.getpid(), signal.SIGINT)
    assert caught.value.name == "SIGINT"


def test_outside_of_the_main_thread_no_handler_is_touched(bundle: Path) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["verify", str(bundle), "--quiet"])))
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_keyboard_interrupt_that_is_raised_is_one_too(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bundler.listing.inspect", interrupt)
    run = cli("inspect", bundle)
    assert run.code == 130 and "SIGINT" in run.err


# --- at every call that changes a tree -----------------------------------------------------------------------------


CALLS = ("create", "write", "sync", "make_directory", "unlink", "link", "rename", "rename_new", "exchange")


class Strike:
    """Sends SIGTERM to this process right behind one of the calls, whichever it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = -1
        self.count = 0
        for name in CALLS:
            monkeypatch.setattr(_atomic, name, self._wrap(getattr(_atomic, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def striking(*arguments: Any) -> Any:
            result = call(*arguments)
            # In the main thread only: there a signal is handled before the next line, as it is in a real process.
            if threading.current_thread() is threading.main_thread():
                number, self.count = self.count, self.count + 1
                if number == self.at:
                    os.kill(os.getpid(), signal.SIGTERM)
            return result

        return striking

    def each(self, run: Callable[[], int]) -> Sequence[int]:
        """Yield the number of every call of a run."""
        self.at, self.count = -1, 0
        assert run() == 0
        return range(self.count)


def test_a_signal_at_any_call_of_an_unpack_leaves_no_staging_and_no_torn_entry(
    bundle: Path, triton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, leftovers: Any
) -> None:
    strike = Strike(monkeypatch)
    whole = {len(list(path.iterdir())) for path in triton.iterdir()}
    first = ["unpack", str(bundle), "--into", str(tmp_path / "first"), "--quiet"]
    for number in strike.each(lambda: main(first)):
        root = tmp_path / f"r{number}"
        strike.at, strike.count = number, 0
        assert main(["unpack", str(bundle), "--into", str(root), "--quiet"]) in (143, 0), number
        assert not leftovers(root), number
        assert {len(list(path.iterdir())) for path in root.iterdir()} <= whole, number
    assert number > 20


def test_a_signal_while_staging_is_removed_does_not_keep_it(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, leftovers: Any
) -> None:
    remove = shutil.rmtree

    def interrupted(path: str, **options: Any) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert main(["unpack", str(bundle), "--into", str(tmp_path / "r"), "--quiet"]) == 143
    assert not leftovers(tmp_path / "r")
    assert main(["verify", "--root", f"triton={tmp_path / 'r'}", "--quiet"]) == 0


def test_a_signal_at_any_call_of_a_pack_leaves_no_temporary_file(
    triton: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, leftovers: Any
) -> None:
    strike = Strike(monkeypatch)
    out = tmp_path / "x.tbundle"
    argv = ["pack", str(triton), "-o", str(out), "--quiet"]
    for number in strike.each(lambda: main(argv)):
        out.unlink(missing_ok=True)
        strike.at, strike.count = number, 0
        assert main(argv) == 143, number
        assert not leftovers(tmp_path), number
        assert out.exists() == (number > 1), "the bundle is there once it was renamed"
    assert number >= 2


# --- a process of its own ------------------------------------------------------------------------------------------


def _default_signals() -> None:
    for number in CODES:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


@each_signal
def test_a_process_that_waits_for_its_pipe_cleans_up_and_ends(
    bundle: Path, tmp_path: Path, process_environment: dict[str, str], number: signal.Signals, leftovers: Any
) -> None:
    root = tmp_path / "r"
    command = [sys.executable, "-m", "bundler", "unpack", "-", "--into", str(root), "--json"]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=process_environment,
        preexec_fn=_default_signals,
    )
    assert child.stdin is not None
    child.stdin.write(bundle.read_bytes()[:-100])
    child.stdin.flush()
    deadline = time.monotonic() + 60
    while not leftovers(root):
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == CODES[number]
    assert b'"signal": "%s"' % number.name.encode() in out and b"Traceback" not in err
    assert trees.snapshot(root) == {} and not leftovers(root)


def test_a_pack_that_is_told_to_end_does_not_wait_for_its_compressor(
    triton: Path, tmp_path: Path, process_environment: dict[str, str], leftovers: Any
) -> None:
    program = (
        "import os, signal, time, sys, bundler.formats._frame, bundler.cli\n"
        "def compress(*_):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(90)\n"
        "bundler.formats._frame.compress = compress\n"
        "bundler.cli.entry_point()"
    )
    command = [sys.executable, "-c", program, "pack", str(triton), "-o", str(tmp_path / "x.tbundle")]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, env=process_environment, check=False)
    assert done.returncode == 143, done.stderr
    assert time.monotonic() - started < 60
    assert not leftovers(tmp_path)


def test_a_pack_that_is_told_to_end_leaves_the_old_bundle(
    triton: Path, bundle: Path, tmp_path: Path, process_environment: dict[str, str], leftovers: Any
) -> None:
    before = bundle.read_bytes()
    program = (
        "import os, signal, sys, bundler.payload, bundler.cli\n"
        "bundler.payload.prefixes = lambda *_: os.kill(os.getpid(), signal.SIGTERM) or ()\n"
        "sys.exit(bundler.cli.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "pack", str(triton), "-o", str(bundle)]
    done = subprocess.run(command, capture_output=True, env=process_environment, check=False)
    assert done.returncode == 143, done.stderr
    assert bundle.read_bytes() == before
    assert not leftovers(tmp_path)
