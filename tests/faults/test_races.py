"""Many at once: restores of one bundle, compilers at work, cleaners, and locks that do not work.

Races are run for real, in processes that start at one moment; what a scheduler seldom does is brought about by a call
that is replaced.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler import _atomic, _owner, publish, stage, staging
from bundler.emit import EmitOptions, OnConflict
from bundler.errors import LocalIOError
from bundler.testing import trees
from bundler.testing.faults import judge, without_renameat2

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked, and told apart by /proc"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # forks, beside xdist
]

PROCESSES = 12
NO_SYNC = EmitOptions(sync=False)


class Place:
    """A bundle of four kernels and a module, a root, and what the root holds when it is restored."""

    def __init__(self, base: Path) -> None:
        self.source = base / "source"
        for seed in range(4):
            trees.synthetic_kernel(self.source / "triton" / "0", "add", seed=seed, text=False)
        (self.source / "ab").mkdir()
        (self.source / "ab" / "cab.py").write_text("x = 1\n", encoding="utf-8")
        self.bundle = base / "bundle"
        bundler.pack([f"inductor={self.source}"], self.bundle)
        self.root = base / "root"
        self.restore()
        self.whole = {"whole": trees.snapshot(self.root)}
        self.kernels = trees.kernel_directories(self.root)
        shutil.rmtree(self.root)

    def restore(self, options: EmitOptions = NO_SYNC) -> bundler.bundle.UnpackReport:
        return bundler.unpack(self.bundle, into=self.root, options=options)

    def is_whole(self) -> bool:
        """Whether every entry is there, and no staging."""
        judged = judge(self.root, self.whole)
        return set(judged.entries.values()) == {"whole"} and judged.leftovers == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def together(count: int, work: Callable[[int], Any], *, seconds: int = 60) -> list[Any]:
    """Do ``work(number)`` in ``count`` forks that start at one moment; returns what each returned (JSON values)."""
    start_read, start_write = os.pipe()
    children = []
    for number in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                signal.alarm(seconds)
                os.close(start_write)
                os.read(start_read, 1)  # returns when the parent closes its end
                os.write(write, json.dumps(work(number)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        children.append((pid, read))
    os.close(start_write)
    os.close(start_read)
    results = []
    for pid, read in children:
        with os.fdopen(read, "rb") as file:
            data = file.read()
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"a child ended with wait status {status:#x}"
        results.append(json.loads(data))
    return results


def counts(report: bundler.bundle.UnpackReport) -> dict[str, Any]:
    return {
        "restored": report.restored,
        "unchanged": report.unchanged,
        "repaired": report.repaired,
        "kept": report.kept,
        "warnings": list(report.warnings),
    }


# --- many restores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
@pytest.mark.parametrize("before", ["absent", "damaged", "vacant"])
def test_processes_that_restore_at_once_all_finish_and_all_is_whole(before: str, exchange: bool, place: Place) -> None:
    # The loss: 27 of 7,680 ranks died in a rename or a clean-up, and one of them is enough to stop a job.
    if before != "absent":
        place.restore()
    for kernel in place.kernels if before != "absent" else ():
        for path in kernel.iterdir():
            if before == "vacant" or path.suffix == ".cubin":
                path.unlink()

    def work(number: int) -> dict[str, Any]:
        with nullcontext() if exchange else without_renameat2():
            return counts(place.restore())

    reports = together(PROCESSES, work)
    assert place.is_whole()
    assert all(report["kept"] == 0 and report["warnings"] == [] for report in reports)
    assert all(report["restored"] + report["unchanged"] + report["repaired"] == 5 for report in reports)
    assert sum(report["restored"] + report["repaired"] for report in reports) >= 4


@pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
def test_processes_with_different_builds_leave_one_of_them_whole(exchange: bool, tmp_path: Path) -> None:
    # The loss: the binary of rank A with the shared-memory size of rank B under one key: wrong launches.
    root = tmp_path / "root"
    states = {}
    for seed in range(6):
        trees.synthetic_kernel(tmp_path / str(seed), "add", key="K" * 52, seed=seed, text=False)
        bundler.pack([f"triton={tmp_path / str(seed)}"], tmp_path / f"{seed}.tbundle")
        bundler.unpack(tmp_path / f"{seed}.tbundle", into=root)
        states[str(seed)] = trees.snapshot(root)
        shutil.rmtree(root)

    def work(number: int) -> int:
        with nullcontext() if exchange else without_renameat2():
            return bundler.unpack(tmp_path / f"{number}.tbundle", into=root, options=NO_SYNC).kept

    for _ in range(5):
        kept = together(6, work)
        assert sum(kept) == 5
        assert judge(root, states).entries == {"K" * 52: str(kept.index(0))}
        shutil.rmtree(root)


def test_reader_never_sees_half_a_kernel_while_it_is_replaced(tmp_path: Path) -> None:
    # The loss: Triton finds the group file, and not what it lists.
    root = tmp_path / "root"
    for seed in (0, 1):
        trees.synthetic_kernel(tmp_path / str(seed), "add", key="K" * 52, seed=seed, text=False)
        bundler.pack([f"triton={tmp_path / str(seed)}"], tmp_path / f"{seed}.tbundle")
    bundler.unpack(tmp_path / "0.tbundle", into=root)
    kernel = root / ("K" * 52)
    options = EmitOptions(sync=False, on_conflict=OnConflict.REPLACE)
    stop = time.monotonic() + 1.0

    def write() -> int:
        count = 0
        while time.monotonic() < stop:
            count += bundler.unpack(tmp_path / f"{(count + 1) % 2}.tbundle", into=root, options=options).restored
        return count

    def read() -> int:
        count = 0
        while time.monotonic() < stop:
            # As Triton does; a kernel with a group file, but for one moment without what it lists, is a crash.
            group = json.loads((kernel / "__grp__add.json").read_bytes())["child_paths"]
            assert all(os.path.getsize(path) for path in group.values())
            count += 1
        return count

    replaced, looked = together(2, lambda number: write() if number == 0 else read())
    assert replaced > 1 and looked > 1


@pytest.mark.parametrize("cleared", ["keys", "root", "renamed"])
def test_threads_restore_while_another_clears(cleared: str, place: Place) -> None:
    # The loss: a loader and a compile thread that race on "empty? then rename", and a segmentation fault.
    stop = time.monotonic() + 1.2
    failures: list[str] = []
    done, trashed, rng = [0, 0], [], random.Random(0)

    def restore(number: int) -> None:
        while time.monotonic() < stop:
            try:
                place.restore()
            except BaseException as error:  # noqa: BLE001  # shown below
                failures.append(f"{type(error).__name__}: {error}")
            done[number] += 1

    def clear() -> None:
        while time.monotonic() < stop:
            if cleared == "root":
                shutil.rmtree(place.root, ignore_errors=True)
            for kernel in place.kernels if cleared == "keys" else ():
                shutil.rmtree(kernel, ignore_errors=True)
            if cleared == "renamed" and place.root.exists():
                trash = place.root.with_name(f"trash{len(trashed)}")
                trashed.append(place.root.rename(trash))
                shutil.rmtree(trash, ignore_errors=True)
            time.sleep(rng.uniform(0, 0.04))

    threads = [threading.Thread(target=restore, args=(number,)) for number in (0, 1)] + [threading.Thread(target=clear)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and min(done) > 1
    place.restore()
    assert place.is_whole()


def test_open_file_is_read_to_its_end_while_its_kernel_is_replaced(tmp_path: Path) -> None:
    # The loss: a process that maps a binary, under which the bytes change.
    root = tmp_path / "root"
    for seed in (0, 1):
        trees.synthetic_kernel(tmp_path / str(seed), "add", key="K" * 52, seed=seed)
        bundler.pack([f"triton={tmp_path / str(seed)}"], tmp_path / f"{seed}.tbundle")
    for exchange in (True, False):
        bundler.unpack(tmp_path / "0.tbundle", into=root)
        cubin = root / ("K" * 52) / "add.cubin"
        old = cubin.read_bytes()
        with cubin.open("rb") as file:
            first = file.read(100)
            with nullcontext() if exchange else without_renameat2():
                options = EmitOptions(on_conflict=OnConflict.REPLACE)
                assert bundler.unpack(tmp_path / "1.tbundle", into=root, options=options).restored == 1
            assert first + file.read() == old != cubin.read_bytes()
        shutil.rmtree(root)


# --- Triton at work --------------------------------------------------------------------------------------------------

COMPILER = """
import json, os, sys, time
from pathlib import Path
from triton.runtime.cache import FileCacheManager
from triton import knobs

source, root, stop = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
knobs.cache.dir = root
print("ready", flush=True)
sys.stdin.readline()
rounds = 0
while time.time() < stop:
    for kernel in sorted(source.iterdir()):
        manager = FileCacheManager(kernel.name)
        names = [name for name in os.listdir(kernel) if not name.startswith("__grp__")]
        paths = {name: manager.put((kernel / name).read_bytes(), name) for name in sorted(names)}
        manager.put_group("add.json", paths)
        group = manager.get_group("add.json")
        assert group is None or all(os.path.dirname(path).endswith(kernel.name) for path in group.values())
    rounds += 1
print(rounds)
"""


@pytest.mark.torch
def test_restore_and_triton_fill_one_cache_at_once(place: Place) -> None:
    # The loss: a compiler that dies because the directory which it was about to fill has been swapped for another.
    triton_root = place.root / "triton" / "0"
    triton_root.mkdir(parents=True)
    stop = time.time() + 4
    with _running(COMPILER, place.source / "triton" / "0", triton_root, stop) as compilers:
        rounds = 0
        while time.time() < stop:
            report = place.restore()
            assert report.warnings == ()
            rounds += 1
            # What a killed compiler leaves: files without their group file, which is not a kernel.
            for kernel in place.kernels:
                for group in kernel.glob("__grp__*"):
                    group.unlink()
        compiled = [int(compiler.communicate(timeout=30)[0]) for compiler in compilers]
        assert all(compiler.returncode == 0 for compiler in compilers)
    assert rounds > 1 and min(compiled) > 1
    place.restore()
    assert place.is_whole()


@contextmanager
def _running(program: str, *arguments: object, count: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ``count`` processes of a program, once all of them are ready."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_parent_that_is_removed_right_before_the_rename_is_made_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: Triton's clean-up climbs, and removes each parent that is empty at that moment.
    real, removed = _atomic.rename_new, []

    def remove_first(source: str, source_fd: int, target: str, target_fd: int) -> None:
        parent = os.readlink(f"/proc/self/fd/{target_fd}")
        if parent not in removed and parent.endswith("/triton/0"):
            removed.append(parent)
            os.removedirs(parent)
        real(source, source_fd, target, target_fd)

    monkeypatch.setattr(_atomic, "rename_new", remove_first)
    assert place.restore().restored == 5
    assert removed and place.is_whole()


def test_parent_that_keeps_vanishing_is_an_error_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a restore that never ends.
    real = _atomic.rename_new

    def remove_always(source: str, source_fd: int, target: str, target_fd: int) -> None:
        parent = os.readlink(f"/proc/self/fd/{target_fd}")
        if parent.endswith("/triton/0"):
            os.removedirs(parent)
        real(source, source_fd, target, target_fd)

    monkeypatch.setattr(_atomic, "rename_new", remove_always)
    with pytest.raises(LocalIOError) as caught:
        place.restore()
    assert caught.value.errno == errno.ENOENT and "triton/0/" in caught.value.path
    assert list(place.root.glob(".tb-*")) == []


# --- cleaners --------------------------------------------------------------------------------------------------------

MOMENTS = {
    "first file": (_atomic, "create", 0),
    "fifth file": (_atomic, "create", 4),
    "fifth write": (_atomic, "write", 4),
    "first sync": (_atomic, "sync", 0),
    "compare": (stage, "staged_files", 0),
    "last look": (stage, "staged_files", 2),
    "first rename": (_atomic, "rename_new", 0),
    "third rename": (_atomic, "rename_new", 2),
    "replacement": (_atomic, "exchange", 0),
}


def clean_at(place: Place, moment: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Remove every staging directory once, right before the call that ``moment`` names; returns the removed ones."""
    module, function, at = MOMENTS[moment]
    real, calls, removed = getattr(module, function), [], []

    def clean(*arguments: Any, **options: Any) -> Any:
        calls.append(True)
        if len(calls) == at + 1:
            for path in place.root.glob(".tb-*"):
                removed.append(path.name)
                shutil.rmtree(path)
        return real(*arguments, **options)

    monkeypatch.setattr(module, function, clean)
    monkeypatch.setattr(stage, "_SYNC_THREADS", 1)
    return removed


def _half(place: Place) -> None:
    """Install two damaged kernels out of four, so that there is something to compare and to replace."""
    place.restore()
    for kernel in place.kernels[:2]:
        (kernel / "add.cubin").write_bytes(b"")
    for kernel in place.kernels[2:]:
        shutil.rmtree(kernel)
    (place.root / "ab" / "cab.py").unlink()


@pytest.mark.parametrize("moment", MOMENTS)
def test_staging_that_a_cleaner_took_is_staged_again(
    moment: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: tmpwatch on /tmp, and a job that dies at its start once a night.
    _half(place)
    removed = clean_at(place, moment, monkeypatch)
    report = place.restore(EmitOptions())
    assert len(removed) == 1
    assert (report.restored, report.repaired, report.warnings) == (3, 2, ())
    assert place.is_whole()


@pytest.mark.parametrize("moment", MOMENTS)
def test_staging_that_a_cleaner_took_from_a_pipe_is_an_error(
    moment: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: what cannot be read twice is reported as restored.
    _half(place)
    before = trees.snapshot(place.root)
    removed = clean_at(place, moment, monkeypatch)
    with pytest.raises(LocalIOError) as caught, _pipe(place.bundle.read_bytes()) as pipe:
        bundler.unpack(pipe, into=place.root)
    assert caught.value.errno == errno.ENOENT and "keeps removing the staging directory" in str(caught.value)
    assert len(removed) == 1 and list(place.root.glob(".tb-*")) == []
    judge(place.root, {**place.whole, "before": before})


@contextmanager
def _pipe(data: bytes) -> Iterator[io.BufferedReader]:
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as file:
            try:
                file.write(data)
            except BrokenPipeError:
                pass

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        with os.fdopen(read, "rb") as file:
            yield file
    finally:
        feeder.join()


def test_cleaner_that_never_stops_is_an_error_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a restore that never ends.
    real = _atomic.create

    def clean(name: str, directory: int) -> int:
        for path in place.root.glob(".tb-*"):
            shutil.rmtree(path)
        return real(name, directory)

    monkeypatch.setattr(_atomic, "create", clean)
    with pytest.raises(LocalIOError, match="keeps removing the staging directory"):
        place.restore()


def test_root_that_vanishes_before_staging_is_made_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss: a clean-up that removes an empty cache directory as a restore begins.
    real, removed = _atomic.make_directory, []

    def remove_first(name: str, directory: int, mode: int = 0o777) -> None:
        if not removed:
            removed.append(True)
            place.root.rmdir()
        real(name, directory, mode)

    monkeypatch.setattr(_atomic, "make_directory", remove_first)
    assert place.restore().restored == 5
    assert removed and place.is_whole()


def test_root_that_vanishes_with_all_that_is_staged_is_filled_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: "rm -rf ~/.triton" while jobs start, and what they restore goes into a directory that has no name.
    real, removed = publish.publish, []

    def remove_first(*arguments: Any) -> Any:
        if not removed:
            removed.append(True)
            shutil.rmtree(place.root)
        return real(*arguments)

    monkeypatch.setattr(publish, "publish", remove_first)
    assert place.restore().restored == 5
    assert removed and place.is_whole()


def test_root_that_keeps_vanishing_is_an_error_in_the_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _atomic.make_directory

    def remove_always(name: str, directory: int, mode: int = 0o777) -> None:
        place.root.rmdir()
        real(name, directory, mode)

    monkeypatch.setattr(_atomic, "make_directory", remove_always)
    with pytest.raises(LocalIOError) as caught:
        place.restore()
    assert caught.value.errno == errno.ENOENT and caught.value.path == str(place.root)


def test_clean_up_that_is_refused_is_a_warning(place: Place) -> None:
    # The loss: six ranks that died of EBUSY, after all their files were in place.
    def work(number: int) -> list[dict[str, Any]]:
        rng, real = random.Random(number), os.rmdir

        def busy(*arguments: Any, **options: Any) -> None:
            if rng.randrange(50) == 0:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            real(*arguments, **options)

        os.rmdir = busy
        reports = []
        for kernel in (None, *place.kernels):
            if kernel is not None:
                shutil.rmtree(kernel, ignore_errors=True)
            reports.append(counts(place.restore()))
        return reports

    reports = [report for child in together(16, work) for report in child]
    warnings = [warning for report in reports for warning in report["warnings"]]
    assert warnings and all("can be deleted" in warning and str(place.root) in warning for warning in warnings)
    assert place.restore().warnings == ()
    assert place.is_whole()


# --- locks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP", "EINTR", "EIO"])
def test_lock_that_does_not_work_costs_nothing_but_time(
    code: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: eight ranks on an NFS home that cannot lock.
    def refuse(fd: int, operation: int) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(fcntl, "flock", refuse)
    left = _leftover(place)
    reports = together(8, lambda number: counts(place.restore()))
    assert place.is_whole() and not left.exists()
    assert sum(report["restored"] for report in reports) >= 5


def test_no_locks_at_all_is_no_hindrance(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "fcntl", None)
    left = _leftover(place)
    assert place.restore().restored == 5
    assert place.is_whole() and not left.exists()


def _leftover(place: Place) -> Path:
    """Staging of a process that is no more."""
    place.root.mkdir(exist_ok=True)
    (name,) = together(1, lambda number: _owner.new_name())
    (place.root / name / "0").mkdir(parents=True)
    (place.root / name / "0" / "add.cubin").write_bytes(b"half")
    return place.root / name


def test_locks_that_others_hold_do_not_block(place: Place) -> None:
    # The loss: a zombie that holds the lock of a cache, and jobs that hang until a watchdog kills them.
    place.restore()
    (place.kernels[0] / "add.cubin").write_bytes(b"")
    left = _leftover(place)
    held = [place.root, left, *place.kernels, place.root / "ab" / "cab.py", place.bundle]
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for path in held:
                fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
            os.write(ready_write, b"x")
            time.sleep(60)
        finally:
            os._exit(0)
    os.read(ready_read, 1)
    try:
        started = time.monotonic()
        report = place.restore()
        assert time.monotonic() - started < 10
        assert (report.repaired, report.unchanged, report.warnings) == (1, 4, ())
        assert left.is_dir(), "staging under a lock was taken from its writer"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)
    place.restore()
    assert place.is_whole()


# --- namespaces ------------------------------------------------------------------------------------------------------

IN_NAMESPACE = """
import os, random, sys
random.seed(0)
import bundler
from bundler import _owner
from bundler.emit import EmitOptions
random.seed(0)
name = _owner.new_name()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    random.seed(0)
    report = bundler.unpack(sys.argv[1], into=sys.argv[2], options=EmitOptions(sync=False))
    assert report.warnings == () and report.restored + report.unchanged == 5, report
print(os.getpid(), name)
"""


@pytest.fixture
def unshare() -> list[str]:
    """The command that starts a program in a PID namespace of its own."""
    command = ["unshare", "-pf", "--mount-proc"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not make PID namespaces")
    return command


def test_equal_process_numbers_and_seeds_do_not_collide(
    unshare: list[str], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loss: two containers with process 1, a seeded generator, and one temporary name.
    monkeypatch.setenv("PYTHONPATH", str(Path(bundler.__file__).parent.parent))
    command = [*unshare, sys.executable, "-c", IN_NAMESPACE, str(place.bundle), str(place.root)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [child.communicate("go\n", timeout=60)[0].split("\n")[1].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert said[0][0] == said[1][0] == "1", "the process numbers were to be equal"
    assert said[0][1] != said[1][1]
    assert said[0][1].split("-")[2] != said[1][1].split("-")[2], "the names do not tell the namespaces apart"
    assert place.is_whole()


def test_staging_of_another_namespace_waits_a_day(unshare: list[str], place: Place) -> None:
    # The loss: process 4711 of the other container is at work, and here there is no process 4711.
    program = "from bundler import _owner; print(_owner.new_name())"
    command = [*unshare, sys.executable, "-c", program]
    env = {**os.environ, "PYTHONPATH": str(Path(bundler.__file__).parent.parent)}
    name = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()
    left = place.root / name
    left.mkdir(parents=True)
    place.restore()
    assert left.is_dir()
    day = _owner.ABANDONED_AFTER
    os.utime(left, (time.time() - day - 60,) * 2)
    place.restore()
    assert not left.exists() and place.is_whole()
