"""Laws of staging names: whose they are, and whether their owner is still at work."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bundler import _owner, kinds

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="owners are told by /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # forks, beside xdist
]

DAY = 24 * 3600


@pytest.fixture
def child() -> Iterator[Callable[[], tuple[str, int]]]:
    """``child()``: start a process that lives on; returns a name of its making, and its number."""
    started: list[int] = []

    def start() -> tuple[str, int]:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, _owner.new_name().encode())
                time.sleep(60)
            finally:
                os._exit(0)
        os.close(write)
        started.append(pid)
        name = os.read(read, 200).decode()
        os.close(read)
        return name, pid

    yield start
    for pid in started:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


def test_name_is_ours_short_and_no_entry_of_any_kind() -> None:
    name = _owner.new_name()
    assert _owner.is_ours(name) and _owner.is_ours(name + ".tmp")
    assert name.startswith(kinds.STAGING_PREFIX) and len(name) < 80
    assert all(kinds.excluded(kind, name) and kinds.excluded(kind, f"a/{name}") for kind in kinds.KINDS.values())


@pytest.mark.parametrize(
    "name", ["", ".tb-", ".tb-x", "tb-1-1-1-1-0123456789abcdef", ".tb-1-1-1-1-0123456789abcdef.tmp2", "tmp.pid_1_2"]
)
def test_other_names_are_not_ours_and_never_abandoned(name: str) -> None:
    # The loss: somebody's directory that happens to be old.
    assert not _owner.is_ours(name) and not _owner.is_abandoned(name, 0)


def test_names_differ_whatever_the_seed() -> None:
    # The loss: two ranks with one seed and one process number in two containers write into one directory.
    names = set()
    for _ in range(100):
        random.seed(0)
        names.add(_owner.new_name())
    assert len(names) == 100


def test_own_name_is_not_abandoned_however_old() -> None:
    assert not _owner.is_abandoned(_owner.new_name(), 0)


def test_name_is_abandoned_as_soon_as_its_process_is_dead(child: Callable[[], tuple[str, int]]) -> None:
    # The loss: leftovers of a killed job that fill a disk for a day.
    name, pid = child()
    assert not _owner.is_abandoned(name, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert _owner.is_abandoned(name, time.time())


def test_name_of_a_zombie_is_abandoned(child: Callable[[], tuple[str, int]]) -> None:
    # The loss: in a container without an init, whoever was killed stays a zombie, and its leftovers stay for ever.
    name, pid = child()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while b") Z " not in Path(f"/proc/{pid}/stat").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _owner.is_abandoned(name, time.time())


def test_name_of_an_earlier_process_of_the_same_number_is_abandoned(child: Callable[[], tuple[str, int]]) -> None:
    # The loss: process numbers come round again, and leftovers of the first are taken for work of the second.
    name, _ = child()
    parts = name.split("-")
    parts[4] = f"{int(parts[4], 16) - 1:x}"
    assert _owner.is_abandoned("-".join(parts), time.time())


@pytest.mark.parametrize("part", [1, 2], ids=["boot", "namespace"])
def test_name_from_elsewhere_is_abandoned_after_a_day(part: int) -> None:
    # The loss: a process number that means nothing here is taken for dead, and a writer loses its files.
    parts = _owner.new_name().split("-")
    parts[part] = "1234"
    name = "-".join(parts)
    assert not _owner.is_abandoned(name, time.time() - DAY + 60)
    assert not _owner.is_abandoned(name, time.time() + DAY), "a clock that is ahead is no proof of death"
    assert _owner.is_abandoned(name, time.time() - DAY - 60)


def test_process_of_somebody_else_lives(monkeypatch: pytest.MonkeyPatch, child: Callable[[], tuple[str, int]]) -> None:
    name, _ = child()

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        assert not _owner.is_abandoned(name, 0)
        # Not even its start can be read: /proc is mounted with hidepid.
        patch.setattr(_owner, "_state_of", lambda pid: ("", 0))
        assert not _owner.is_abandoned(name, 0)


def test_name_with_a_process_number_that_no_system_has_is_left_alone() -> None:
    parts = _owner.new_name().split("-")
    parts[3] = "f" * 30
    assert not _owner.is_abandoned("-".join(parts), 0)


def test_name_tells_the_namespace_that_the_process_is_in_now() -> None:
    # The loss: a library loaded before os.unshare, and a child whose process 2 is taken for that of the parent.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    space = f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    assert _owner.new_name().split("-")[1:4] == [boot, space, f"{os.getpid():x}"]


def test_command_with_brackets_and_blanks_does_not_move_the_fields(tmp_path: Path) -> None:
    program = tmp_path / ") Z 1 2 ("
    os.symlink(sys.executable, program)
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [str(program), "-S", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONHOME": sys.base_prefix},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        state, start = _owner._state_of(process.pid)
        assert state in "SRD" and start > 0
    finally:
        process.kill()
        process.communicate()


class Proc:
    """``open``, ``os.readlink`` and ``os.stat`` of a host whose /proc says something else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        _owner._place.cache_clear()

    def says(self, module: Any, function: str, answer: Callable[..., Any]) -> None:
        self._monkeypatch.setattr(module, function, answer, raising=False)


@pytest.fixture
def proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proc]:
    yield Proc(monkeypatch)
    _owner._place.cache_clear()


def missing(*arguments: object, **options: object) -> None:
    raise FileNotFoundError


@pytest.mark.parametrize("case", ["no /proc", "no namespaces", "no boot id", "another namespace's /proc"])
def test_where_process_numbers_tell_nothing_only_age_counts(case: str, proc: Proc, tmp_path: Path) -> None:
    # The loss: macOS, or a container that sees its host's /proc, where a number is that of another process.
    if case == "no /proc":
        proc.says(_owner, "open", missing)
    elif case == "no boot id":
        (tmp_path / "boot").write_text("not hexadecimal")
        real = open
        proc.says(_owner, "open", lambda path, *a, **o: real(tmp_path / "boot" if "boot" in path else path, *a, **o))
    elif case == "no namespaces":
        proc.says(os, "readlink", missing)
    else:
        proc.says(os, "readlink", lambda path: "1")
    name = _owner.new_name()
    assert re.match(r"\.tb-0-0-[0-9a-f]+-", name) and _owner.is_ours(name)
    assert not _owner.is_abandoned(name, time.time() - DAY + 60)
    assert _owner.is_abandoned(name, time.time() - DAY - 60)
