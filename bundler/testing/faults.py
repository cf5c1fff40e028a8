"""Crash points: make a restore or a pack fail, or die, at each call that changes a tree; and a judge of what is left.

Every such call goes through a function of ``bundler._atomic``. :func:`crash_points` wraps them all, counts the calls,
and strikes at the one it is told: with an ``OSError``, or with SIGKILL, which nothing can clean up after. Kill in a
process of its own: fork, and let the child restore.

The judge, :func:`judge`, reads group files and compares bytes by itself: it must not believe the code that it judges.

Example:
    >>> from bundler.testing.faults import crash_points
    >>> with crash_points() as calls:
    ...     pass  # a whole restore
    >>> len(calls)  # points to strike at: 0 to len(calls) - 1
    0
"""

from __future__ import annotations

import errno as _errno
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from bundler import _atomic

__all__ = ["POINTS", "Call", "Judgement", "crash_points", "judge", "killed", "without_renameat2"]

POINTS = ("create", "write", "sync", "make_directory", "unlink", "link", "rename", "rename_new", "exchange")
"""The functions of ``bundler._atomic`` that are counted."""

GROUP_PREFIX = "__grp__"
_STAGING = re.compile(r"\.tb-[0-9a-f-]+(\.tmp)?")


class Call(NamedTuple):
    """One call that was made: the function, and what it was about (the first argument; the path for a descriptor)."""

    point: str
    subject: str


def crash_points(
    at: int | None = None,
    *,
    error: int | None = None,
    points: Collection[str] = POINTS,
    to_disk: bool = False,
) -> _CrashPoints:
    """Wrap the functions of ``bundler._atomic`` for the length of a ``with`` block, which gets the list of calls.

    Args:
        at: The number of the call to strike at, from 0; None only counts.
        error: The errno of the ``OSError`` raised there; None kills this process with SIGKILL. A ``write`` has put half
            of its bytes in place by then, anything else has done nothing.
        points: Names out of :data:`POINTS` that are counted.
        to_disk: Whether ``sync`` does what it says. SIGKILL does not lose what the kernel holds, so most tests can do
            without, and are faster.
    """
    return _CrashPoints(at, error, points, to_disk)


class _CrashPoints:
    """What :func:`crash_points` returns: a context manager that can be used once."""

    def __init__(self, at: int | None, error: int | None, points: Collection[str], to_disk: bool) -> None:
        self._at = at
        self._error = error
        self._points = points
        self._to_disk = to_disk
        self._lock = threading.Lock()  # files are synced by several threads
        self._calls: list[Call] = []
        self._stack = ExitStack()

    def __enter__(self) -> list[Call]:
        for point in POINTS:
            self._stack.enter_context(mock.patch.object(_atomic, point, self._wrapped(point)))
        return self._calls

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _wrapped(self, point: str) -> Callable[..., Any]:
        real = getattr(_atomic, point)

        def call(*arguments: Any, **options: Any) -> Any:
            if point in self._points and self._is_due(point, arguments[0]):
                if point == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                self._strike()
            if point == "sync" and not self._to_disk:
                return None
            return real(*arguments, **options)

        return call

    def _is_due(self, point: str, subject: Any) -> bool:
        name = os.readlink(f"/proc/self/fd/{subject}") if isinstance(subject, int) else str(subject)
        with self._lock:
            self._calls.append(Call(point, name))
            return len(self._calls) - 1 == self._at

    def _strike(self) -> None:
        if self._error is not None:
            raise OSError(self._error, os.strerror(self._error))
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def without_renameat2(code: int = _errno.EXDEV) -> Iterator[None]:
    """Let ``renameat2`` answer as it does where its flags do not work.

    Args:
        code: EXDEV as overlayfs for a directory in a lower layer, EINVAL as a file system without the flags (NFS),
            ENOSYS as an old kernel.
    """

    def refuse(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    with mock.patch.object(_atomic, "_renameat2", refuse):
        yield


def killed(work: Callable[[], object]) -> bool:
    """Run ``work`` in a fork of this process, and return whether SIGKILL ended it; False when it came to its end.

    Raises:
        RuntimeError: It failed in another way; the child has printed why.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)  # a child that hangs ends by itself
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
            raise
        finally:
            os._exit(status)  # nothing of the parent's (buffers, fixtures, reports) is for the child to finish
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL:
        return True
    if ended:
        raise RuntimeError(f"the child ended with wait status {ended:#x}")
    return False


# -- the judge ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """What lies in a root.

    Attributes:
        entries: Path of each kernel directory and of each other file -> the label of the state that it is in, whole;
            ``absent`` when it is not there, or is a kernel without a group file.
        leftovers: Names of staging in the root.
    """

    entries: dict[str, str]
    leftovers: list[str]


def judge(
    root: Path, states: Mapping[str, Mapping[str, bytes]], *, foreign: Mapping[str, bytes] | None = None
) -> Judgement:
    """Say in which state each entry of ``root`` is, and refuse what is in none.

    Args:
        root: The directory to judge; it may be absent.
        states: Label -> path inside the root -> bytes, for every file of the tree in that state
            (``bundler.testing.trees.snapshot``). An entry may be missing from a state.
        foreign: Path -> bytes of the files that belong to no entry and must be there unchanged.

    Raises:
        AssertionError: An entry is in none of the states: not whole, or with files of two of them. A foreign file is
            gone or changed. A file is there that nobody put there.
    """
    foreign = foreign or {}
    found = _snapshot(root)
    leftovers = sorted(filter(_STAGING.fullmatch, os.listdir(root))) if root.is_dir() else []
    found = {path: data for path, data in found.items() if path.split("/")[0] not in leftovers}
    for path, data in foreign.items():
        assert path in found, f"the foreign file {path} was lost"
        assert found.pop(path) == data, f"the foreign file {path} was changed"
    kernels = {os.path.dirname(path) for state in states.values() for path in state if _is_group(path)}
    entries: dict[str, str] = {}
    for kernel in sorted(kernels):
        inside = {path: found.pop(path) for path in list(found) if os.path.dirname(path) == kernel}
        whole = {label: {p: d for p, d in s.items() if os.path.dirname(p) == kernel} for label, s in states.items()}
        entries[kernel] = _judge_kernel(root, kernel, inside, whole)
    for path in sorted({path for state in states.values() for path in state} - _members(states, kernels)):
        data = found.pop(path) if path in found else None
        labels = [label for label, state in states.items() if state.get(path) == data]
        assert data is None or labels, f"{path} is not whole: {len(data)} bytes, in no known state"
        entries[path] = labels[0] if data is not None else "absent"
    assert not found, f"nobody put these there: {sorted(found)}"
    return Judgement(entries, leftovers)


def _judge_kernel(root: Path, kernel: str, inside: dict[str, bytes], whole: Mapping[str, Mapping[str, bytes]]) -> str:
    for label, files in whole.items():
        if files and inside == files:
            return label
    groups = [path for path in inside if _is_group(path)]
    if not groups:
        return "absent"  # to Triton, which asks for the group file first
    for path in groups:
        listed = json.loads(inside[path])["child_paths"]
        missing = [name for name, place in listed.items() if not os.path.exists(place)]
        assert not missing, f"{kernel} has a group file, and lacks {missing}"
        away = [place for place in listed.values() if os.path.dirname(place) != str(root / kernel)]
        assert not away, f"{kernel} points away, to {away}"
    wrong = {
        label: sorted(path for path, _ in set(inside.items()) ^ set(files.items())) for label, files in whole.items()
    }
    raise AssertionError(f"{kernel} is in no known state, or in two; differing from each: {wrong}")


def _is_group(path: str) -> bool:
    return os.path.basename(path).startswith(GROUP_PREFIX)


def _members(states: Mapping[str, Mapping[str, bytes]], kernels: Collection[str]) -> set[str]:
    return {path for state in states.values() for path in state if os.path.dirname(path) in kernels}


def _snapshot(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
