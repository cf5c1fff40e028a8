"""A restore that fails, or is killed, at any of its steps: entries are absent or whole, and the next restore completes.

Each scenario is a small tree before and after. Its restore is run once to count the calls that change the tree; then it
is run again and again, and struck at each of them. What is left is judged by ``bundler.testing.faults.judge``, which
shares no code with the restore.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import bundler
from bundler import stage
from bundler.bundle import UnpackReport
from bundler.emit import EmitOptions, OnConflict
from bundler.errors import LocalIOError
from bundler.testing import trees
from bundler.testing.faults import crash_points, judge, killed, without_renameat2

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # forks, beside xdist
]

MOST_POINTS = 150  # of one scenario; beyond that they are sampled
NO_RENAMEAT2 = pytest.mark.parametrize("exchange", [True, False], ids=["renameat2", "plain-rename"])
KILLS = 40  # at random times
CODES = ["ENOSPC", "EDQUOT", "EIO"]

FOREIGN = {"notes.txt": b"mine\n", ".nfs0000000000000001": b"still open\n", "sub/inner.bin": b"\0\1", "sub/deep/x": b""}


@dataclass
class Scenario:
    """A tree before and after a restore, both as snapshots.

    Attributes:
        place: The root; reset to ``before`` for every run.
        bundle: What is restored.
        options: How.
        states: ``before`` and ``after``.
        foreign: Files that belong to no entry.
    """

    place: Path
    bundle: Path
    options: EmitOptions
    states: dict[str, dict[str, bytes]] = field(default_factory=dict)
    foreign: dict[str, bytes] = field(default_factory=dict)

    @property
    def _saved(self) -> Path:
        return self.place.with_name("before")

    def begin(self) -> None:
        """Take what lies at ``place`` for the tree before, and restore into it for the tree after."""
        found = trees.snapshot(self.place)
        self.states["before"] = {path: data for path, data in found.items() if path not in self.foreign}
        shutil.copytree(self.place, self._saved, symlinks=True)
        self.restore()
        found = trees.snapshot(self.place)
        self.states["after"] = {path: data for path, data in found.items() if path not in self.foreign}

    def reset(self) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(self._saved, self.place, symlinks=True)

    def restore(self, *, sync: bool = True) -> UnpackReport:
        return bundler.unpack(self.bundle, into=self.place, options=replace(self.options, sync=sync))

    def calls(self) -> int:
        self.reset()
        with crash_points() as calls:
            self.restore()
        return len(calls)

    def judged(self) -> list[str]:
        """Judge the tree; returns the names of staging in it."""
        for link in [path for path in self._saved.rglob("*") if path.is_symlink()]:
            there = self.place / link.relative_to(self._saved)
            assert there.is_symlink() and os.readlink(there) == os.readlink(link), f"the foreign link {there} was lost"
        return judge(self.place, self.states, foreign=self.foreign).leftovers

    def completes(self) -> None:
        """The next restore removes what the one before left, and brings every entry."""
        report = self.restore(sync=False)
        assert report.warnings == ()
        assert self.judged() == []
        assert {p: d for p, d in trees.snapshot(self.place).items() if p not in self.foreign} == self.states["after"]


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in memory where there is one, and no threads: some thousand restores wait for nothing."""
    monkeypatch.setattr(stage, "_SYNC_THREADS", 1)
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield place
    shutil.rmtree(place)


def empty(base: Path) -> Scenario:
    """Nothing is installed: two kernels, a module, and an FX graph entry are to appear."""
    for seed in (0, 1):
        trees.synthetic_kernel(base / "source" / "triton" / "0", "add", seed=seed, text=False)
    for path, data in {"ab/cab.py": b"x = 1\n", "fxgraph/ab/fab/k": pickle.dumps({"graph": 1})}.items():
        (base / "source" / path).parent.mkdir(parents=True)
        (base / "source" / path).write_bytes(data)
    bundler.pack([f"inductor={base / 'source'}"], base / "bundle")
    (base / "root").mkdir()
    scenario = Scenario(base / "root", base / "bundle", EmitOptions())
    scenario.begin()
    return scenario


def damaged(base: Path) -> Scenario:
    """One kernel lacks half of its cubin, one a member; three have a group file of 0, of 10 and of NUL bytes."""
    for number, name in enumerate(("half", "missing", "empty", "short", "blank")):
        trees.synthetic_kernel(base / "source", name, seed=number, text=False)
    bundler.pack([f"triton={base / 'source'}"], base / "bundle")
    root = Path(shutil.copytree(base / "source", base / "root"))
    trees.rehome(root)
    by_name = {next(place.glob("*.cubin")).stem: place for place in trees.kernel_directories(root)}
    cubin = by_name["half"] / "half.cubin"
    cubin.write_bytes(cubin.read_bytes()[: cubin.stat().st_size // 2])
    (by_name["missing"] / "missing.json").unlink()
    changes = {"empty": lambda data: b"", "short": lambda data: data[:10], "blank": lambda data: bytes(len(data))}
    for name, change in changes.items():
        group = by_name[name] / f"__grp__{name}.json"
        group.write_bytes(change(group.read_bytes()))
    scenario = Scenario(root, base / "bundle", EmitOptions())
    _plant(scenario, by_name["half"])
    scenario.begin()
    return scenario


def replaced(base: Path) -> Scenario:
    """Another build of a kernel is installed, with more files, and another text of a module; foreign files beside."""
    kernel = trees.synthetic_kernel(base / "source" / "triton" / "0", "add")
    (base / "source" / "ab").mkdir()
    (base / "source" / "ab" / "cab.py").write_text("x = 1\n", encoding="utf-8")
    bundler.pack([f"inductor={base / 'source'}"], base / "bundle", profile="runtime")
    root = base / "root"
    other = trees.synthetic_kernel(root / "triton" / "0", "add", key=kernel.name, seed=1)
    (root / "ab").mkdir()
    (root / "ab" / "cab.py").write_text("x = 2\n", encoding="utf-8")
    scenario = Scenario(root, base / "bundle", EmitOptions(on_conflict=OnConflict.REPLACE))
    _plant(scenario, other)
    scenario.begin()
    return scenario


def _plant(scenario: Scenario, kernel: Path) -> None:
    """Put foreign files, directories and links into a kernel's directory."""
    for name, data in FOREIGN.items():
        (kernel / name).parent.mkdir(parents=True, exist_ok=True)
        (kernel / name).write_bytes(data)
        scenario.foreign[(kernel / name).relative_to(scenario.place).as_posix()] = data
    (kernel / "link").symlink_to("/nowhere/at/all")
    (kernel / "sub" / "link").symlink_to("../notes.txt")


SCENARIOS = pytest.mark.parametrize("make", [empty, damaged, replaced])


@SCENARIOS
def test_scenarios_change_what_they_say(make: Callable[[Path], Scenario], fast: Path) -> None:
    # Without this, a scenario that restores nothing would pass every test below.
    scenario = make(fast)
    before, after = scenario.states["before"], scenario.states["after"]
    assert before != after and judge(scenario.place, {"after": after}, foreign=scenario.foreign).leftovers == []
    source = trees.snapshot(fast / "source")
    assert {p: d for p, d in after.items() if d != source[p]}.keys() == {p for p in after if "__grp__" in p}
    for path in (p for p in after if "__grp__" in p):
        places = json.loads(after[path])["child_paths"].values()
        assert all(os.path.dirname(place) == str((scenario.place / path).parent) for place in places)


# --- errors ----------------------------------------------------------------------------------------------------------


@NO_RENAMEAT2
@SCENARIOS
@pytest.mark.parametrize("code", CODES)
def test_entries_are_absent_or_whole_when_any_call_fails(
    make: Callable[[Path], Scenario], code: str, exchange: bool, fast: Path
) -> None:
    # The loss: a full disk half way leaves a kernel that is found, and fails at its launch.
    scenario = make(fast)
    with nullcontext() if exchange else without_renameat2():
        points = _sampled(scenario.calls())
        if make is damaged:  # the largest one: each call fails once, with one of the codes
            points = [at for at in points if at % len(CODES) == CODES.index(code)]
        for at in points:
            scenario.reset()
            with pytest.raises(LocalIOError) as caught, crash_points(at, error=getattr(errno, code)) as calls:
                scenario.restore()
            assert caught.value.errno == getattr(errno, code) and caught.value.exit_code == 12
            assert caught.value.path.startswith(str(scenario.place)), "the message must name what was written to"
            assert scenario.judged() == [], f"staging is left after {calls[at]}"
            scenario.completes()


@NO_RENAMEAT2
@SCENARIOS
@pytest.mark.parametrize("code", ["ENOENT", "ESTALE"])
def test_restore_completes_though_a_rename_finds_nothing(
    make: Callable[[Path], Scenario], code: str, exchange: bool, fast: Path
) -> None:
    # The loss: parallel file systems deny for a moment that a file is there, and a rank dies at a good cache.
    scenario = make(fast)
    renames = ("rename", "rename_new", "exchange")
    with nullcontext() if exchange else without_renameat2():
        scenario.reset()
        with crash_points(points=renames) as calls:
            scenario.restore()
        for at in _sampled(len(calls)):
            scenario.reset()
            with crash_points(at, error=getattr(errno, code), points=renames):
                scenario.restore()
            scenario.completes()


def test_nothing_has_appeared_when_staging_fails(fast: Path) -> None:
    # The loss: "nothing was written" is a lie, and a later run finds a few kernels of a model.
    scenario = empty(fast)
    scenario.reset()
    with crash_points() as calls:
        scenario.restore()
    first = next(number for number, call in enumerate(calls) if call.point == "rename_new")
    for at in range(first):
        scenario.reset()
        with pytest.raises(LocalIOError), crash_points(at, error=errno.ENOSPC):
            scenario.restore()
        assert list(scenario.place.iterdir()) == [] or calls[at].point == "make_directory"
        assert trees.snapshot(scenario.place) == {}


# --- SIGKILL ---------------------------------------------------------------------------------------------------------


@NO_RENAMEAT2
@SCENARIOS
def test_entries_are_absent_or_whole_after_a_kill_at_any_call(
    make: Callable[[Path], Scenario], exchange: bool, fast: Path
) -> None:
    # The loss: a preempted job leaves half a kernel behind, and every later job on the node fails.
    scenario = make(fast)

    def restore_and_die(at: int) -> None:
        with nullcontext() if exchange else without_renameat2(), crash_points(at):
            scenario.restore()

    with nullcontext() if exchange else without_renameat2():
        count = scenario.calls()
    for at in _sampled(count):
        scenario.reset()
        assert killed(lambda at=at: restore_and_die(at)), f"call {at} of {count} was not reached"
        assert all(name.startswith(".tb-") for name in scenario.judged())
        scenario.completes()
    scenario.reset()
    assert not killed(lambda: restore_and_die(count))


def test_kernel_is_replaced_in_one_step_where_renameat2_exchanges(fast: Path) -> None:
    # The loss: a kernel that was there all the time is missed for a moment, and compiled by eight ranks.
    scenario = replaced(fast)
    groups = [path for path in scenario.states["before"] if "__grp__" in path]
    for at in _sampled(scenario.calls()):
        scenario.reset()
        killed(lambda at=at: _die(scenario, at))
        assert all((scenario.place / path).exists() for path in groups)


def _die(scenario: Scenario, at: int) -> None:
    with crash_points(at):
        scenario.restore()


@pytest.mark.parametrize("make", [empty, replaced])
def test_kills_at_random_times_leave_nothing_over(make: Callable[[Path], Scenario], tmp_path: Path) -> None:
    # As above with the real timing of a disk, and between the calls that are counted.
    scenario = make(tmp_path)
    scenario.reset()
    started = time.monotonic()
    scenario.restore()
    seconds = time.monotonic() - started
    rng = random.Random(7)
    struck = 0
    for _ in range(KILLS // 2):
        scenario.reset()
        pid = os.fork()
        if pid == 0:
            try:
                scenario.restore()
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0, 1.2 * seconds))
        os.kill(pid, signal.SIGKILL)
        struck += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        scenario.judged()
        scenario.completes()
    assert struck > 1, "the kills came too late to test anything"


def test_child_that_fails_is_not_taken_for_a_killed_one() -> None:
    # Else every test above passes when the restore cannot even be imported.
    with pytest.raises(RuntimeError, match="wait status 0x100"):
        killed(lambda: 1 // 0)


# --- the judge -------------------------------------------------------------------------------------------------------


def test_judge_refuses_what_the_tests_above_look_for(tmp_path: Path) -> None:
    # A judge that accepts everything would let all of them pass.
    one, two = (trees.synthetic_kernel(tmp_path / str(seed), "add", key="K" * 52, seed=seed) for seed in (1, 2))
    root = Path(shutil.copytree(one.parent, tmp_path / "root"))
    trees.rehome(root)
    (kernel,) = trees.kernel_directories(root)
    states = {"one": trees.snapshot(root)}
    assert judge(root, states).entries == {"K" * 52: "one"}
    mixed = (kernel / "add.cubin").read_bytes()
    (kernel / "add.cubin").write_bytes((two / "add.cubin").read_bytes())
    with pytest.raises(AssertionError, match="in no known state"):
        judge(root, states)
    (kernel / "add.cubin").unlink()
    with pytest.raises(AssertionError, match="lacks"):
        judge(root, states)
    (kernel / "__grp__add.json").unlink()
    assert judge(root, states).entries == {"K" * 52: "absent"}
    (kernel / "add.cubin").write_bytes(mixed)
    (root / "stray").touch()
    with pytest.raises(AssertionError, match="nobody put"):
        judge(root, states)
    with pytest.raises(AssertionError, match="was changed"):
        judge(root, states, foreign={"stray": b"x"})
    with pytest.raises(AssertionError, match="was lost"):
        judge(root, states, foreign={"other": b""})
    states["one"]["alone.py"] = b"x = 1\n"
    (root / "stray").rename(root / "alone.py")
    with pytest.raises(AssertionError, match="not whole"):
        judge(root, states)
    shutil.copyfile(one / "__grp__add.json", kernel / "__grp__add.json")
    (root / "alone.py").unlink()
    with pytest.raises(AssertionError, match="points away"):
        judge(root, states)
    (root / ".tb-0-0-0-0-0").mkdir()
    (root / "K" / "x").parent.mkdir()
    shutil.rmtree(kernel)
    assert judge(root, states).leftovers == [".tb-0-0-0-0-0"]


def _sampled(count: int) -> list[int]:
    return sorted(random.Random(count).sample(range(count), min(count, MOST_POINTS)))
