"""A command as a child process: signals, exit code, terminal and open files are those of whoever started us.

The child stays in our process group, and so in the foreground of its terminal. What the terminal sends, it sends to the
whole group; what somebody sends to us alone goes on to the child. The two are told apart by who sent the signal, which
``sigtimedwait`` says and a handler does not: so the signals are blocked while the child runs, and waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from bundler.errors import LocalIOError, UsageError

__all__ = ["ChildReport", "run_child"]

_FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
_FROM_KERNEL = 0x80  # si_code of what a terminal sends: SI_KERNEL, sigaction(2)
_PR_SET_PDEATHSIG = 1  # prctl(2)
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.25  # seconds between two looks at the processes, in the beginning and later


@dataclass(frozen=True, slots=True)
class ChildReport:
    """How a command ended.

    Attributes:
        exit_code: Its own; 128 and the number of the signal when one ended it.
        signal: Name of that signal; "" without one.
        processes: Processes that were seen: the command, and what it started; None where /proc does not tell.
        seconds: How long it ran.
    """

    exit_code: int
    signal: str
    processes: int | None
    seconds: float


def run_child(command: Sequence[str], environ: Mapping[str, str], *, stdout: int | None = None) -> ChildReport:
    """Run a command to its end.

    When this process dies, the command gets SIGTERM.

    Args:
        command: Program and arguments.
        environ: The whole environment.
        stdout: Descriptor for its stdout; ours by default.

    Raises:
        LocalIOError: It cannot be started.
        UsageError: No command, or a system on which signals cannot be waited for.
    """
    if not command:
        raise UsageError("no command given: write it behind --")
    if not hasattr(signal, "sigtimedwait"):
        raise UsageError(f"a command cannot be run under our eyes on {sys.platform}: this needs Linux")
    started = time.monotonic()
    with _held() as (held, caught, mask):
        process = _start(command, environ, stdout, held, mask)
        try:
            family = _Family(process.pid)
            _attend(process, held, caught, family)
        finally:
            if process.poll() is None:  # an error of ours: nobody would wait for it
                process.terminate()
                process.wait()
    code = process.returncode
    name = _signal_name(-code) if code < 0 else ""
    return ChildReport(128 - code if code < 0 else code, name, family.count, round(time.monotonic() - started, 6))


@contextmanager
def _held() -> Iterator[tuple[set[signal.Signals], list[int], set[signal.Signals]]]:
    """Block the signals that go on to the child. Those that are ignored stay ignored, here and there.

    Gives the signals, a list of those that another thread caught, and the mask that the child is to have.
    """
    caught: list[int] = []

    def catch(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    before = {}
    held = {signal.SIGCHLD}
    try:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.Signals[name] for name in _FORWARDED]
            for number in numbers:
                # None: a handler that Python did not install, and could not put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    held.add(number)
                    before[number] = signal.signal(number, catch)
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                # Then the kernel would throw the exit code away.
                before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            yield held, caught, {signal.Signals(number) for number in mask}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdout: int | None,
    held: set[signal.Signals],
    mask: set[signal.Signals],
) -> subprocess.Popen[bytes]:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        return subprocess.Popen(
            list(command),
            env=dict(environ),
            stdout=stdout,
            close_fds=False,  # a job server, a socket of systemd, <(...) of a shell: what is open for it stays open
            preexec_fn=_preparation(held, mask),
        )
    except OSError as error:
        raise LocalIOError.from_os_error(error, "run the command", command[0]) from error
    except ValueError as error:  # a NUL in an argument
        raise UsageError(f"the command cannot be run: {error}") from error


def _preparation(held: set[signal.Signals], mask: set[signal.Signals]) -> Callable[[], None]:
    """Return what the child does before it becomes the command. Everything it needs is loaded by then."""
    import ctypes  # some 5 ms, and missing from some builds of Python

    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    parent = os.getpid()

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:  # died before the line above
                os._exit(128 + signal.SIGTERM)
        for number in held:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def _attend(process: subprocess.Popen[bytes], held: set[signal.Signals], caught: list[int], family: _Family) -> None:
    """Wait for the end of a process, and hand on to it what is sent to us."""
    pause = _FIRST_LOOK
    while process.poll() is None:
        info = signal.sigtimedwait(held, pause)
        if info is None:
            pause = min(2 * pause, _LAST_LOOK)
        elif info.si_signo in held - {signal.SIGCHLD} and info.si_code != _FROM_KERNEL:
            # A thread that waits while another one takes the signal can be woken with a number that is none.
            process.send_signal(info.si_signo)
        while caught:
            process.send_signal(caught.pop())
        family.look()


class _Family:
    """A process and its descendants, as far as they are seen."""

    def __init__(self, pid: int) -> None:
        self._known = os.path.exists(f"/proc/{pid}/task/{pid}/children")
        self._living = {pid}
        self._seen = {pid}

    @property
    def count(self) -> int | None:
        return len(self._seen) if self._known else None

    def look(self) -> None:
        """Look who is there. One whose parent has ended is still known if it was seen before."""
        if not self._known:
            return
        pending, found = list(self._living), set()
        while pending:
            pid = pending.pop()
            if pid in found:
                continue
            children = _children(pid)
            if children is not None:
                found.add(pid)
                pending += children
        self._living = found
        self._seen |= found


def _children(pid: int) -> list[int] | None:
    """Return the children of a process, of all its threads; None when it has ended. Source: proc(5)."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                    children += map(int, file.read().split())
            except OSError:  # the thread has ended
                continue
    except OSError:
        return None
    return children


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
