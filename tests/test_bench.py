"""scripts/bench measures what it says, and its guard fails on a clear regression and on nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.dom.minidom
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bundler

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from bench_kit import chart, report, trace  # noqa: E402
from bench_kit.comparisons import GROUPS, NEED_TORCH  # noqa: E402
from bench_kit.context import Bench  # noqa: E402
from bench_kit.guards import GUARDS  # noqa: E402
from bench_kit.inputs import Input, Sizes, make  # noqa: E402
from bench_kit.measure import Side, Spread, Table, interleave, ratios  # noqa: E402
from bench_kit.processes import BenchError, Launcher, Sample, Worker  # noqa: E402
from bench_kit.targets import TARGETS, Target  # noqa: E402
from bench_kit.verdicts import judge, judge_least  # noqa: E402

SMALL = Sizes(kernels=20, layers=1_000_000, entry=400_000, graph_kernels=3)
TARGET = Target("it", "it", "group", "seconds", "ours", "theirs", 2.0, "floor")


def _table(**seconds: list[float]) -> dict[tuple[str, str], Table]:
    samples = {side: [Sample(value) for value in values] for side, values in seconds.items()}
    return {("own", "group"): Table("own", "group", samples)}


# -- measuring ---------------------------------------------------------------------------------------------------------


def test_sides_are_measured_in_turn_and_the_first_round_is_thrown_away() -> None:
    order: list[str] = []

    def side(name: str) -> Side:
        return Side(name, lambda: order.append(name) or Sample(float(len(order))))  # type: ignore[func-returns-value]

    table = interleave(Table("own", "group"), [side("a"), side("b")], 3, lambda text: None)
    assert order == ["a", "b"] * 4
    assert table.values("a", "seconds") == [3, 5, 7]
    assert table.values("b", "seconds") == [4, 6, 8]


def test_a_side_that_fails_is_left_out_with_the_reason_and_the_others_go_on() -> None:
    def fails() -> Sample:
        raise BenchError("no such peer")

    sides = [Side("a", fails), Side("b", lambda: Sample(1.0))]
    table = interleave(Table("own", "group"), sides, 2, lambda text: None)
    assert table.left_out == {"a": "no such peer"}
    assert table.values("b", "seconds") == [1.0, 1.0]


def test_ratios_are_taken_pair_by_pair() -> None:
    # The machine became ten times slower in between: the ratio of medians would be 5.5, that of each pair is 2.
    assert ratios([2, 20], [1, 10]) == [2, 2]
    assert Spread.of([3, 1, 2]) == Spread(2, 1, 3, 3)


def test_the_peak_of_a_command_is_its_own_and_a_pipeline_is_awaited_to_its_end(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    out = tmp_path / "out"
    large = launcher.run([sys.executable, "-c", "b = bytearray(200 << 20); print('x')"], ["cat"], stdout=out)
    small = launcher.run([sys.executable, "-c", "import time; time.sleep(0.2)"])
    launcher.close()
    assert out.read_text() == "x\n"
    assert large.peak is not None and large.peak > 200 << 20
    assert small.peak is not None and small.peak < 60 << 20
    assert small.seconds >= 0.2


def test_a_command_that_fails_says_what_it_said(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    with pytest.raises(BenchError, match="it went wrong"):
        launcher.run([sys.executable, "-c", "import sys; sys.exit('it went wrong')"])
    with pytest.raises(BenchError, match="FileNotFoundError"):
        launcher.run(["yes"], ["/nonexistent"])  # and what writes to it is ended
    assert launcher.run(["true"]).seconds < 60
    launcher.close()


def test_system_calls_are_read_from_the_last_row_of_a_summary() -> None:
    row = "100.00    0.041767           2     14958       564 total\n"
    assert trace.total(f"% time     seconds  usecs/call     calls    errors syscall\n{row}") == 14958
    assert trace.total("100.00    0.000767           2       311           total\n") == 311


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_a_floor_may_have_a_peer_of_its_own() -> None:
    target = replace(TARGET, floor_peer="small")
    assert target.sides("own") == {("own", "group", side) for side in ("ours", "theirs", "floor", "small")}
    tables = _table(ours=[9.0, 9.0], theirs=[3.0, 3.0], floor=[5.0, 5.0], small=[1.0, 1.0])
    verdict = judge(target, tables, "own")
    assert verdict.word == "floor" and verdict.floor is not None and verdict.floor.median == 5.0


@pytest.mark.parametrize(
    ("ours", "floor", "word"),
    [([1.0, 2.0, 9.0], [0.5], "met"), ([3.0, 3.0], [0.5], "NOT met"), ([3.0, 3.0], [2.5], "floor")],
    ids=["met", "not met", "floor"],
)
def test_a_target_is_judged_by_its_median_and_by_its_floor(ours: list[float], floor: list[float], word: str) -> None:
    tables = _table(ours=ours, theirs=[1.0] * len(ours), floor=floor * len(ours))
    assert judge(TARGET, tables, "own").word == word


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    tables = _table(ours=[1.0])
    tables["own", "group"].left_out["theirs"] = "not installed"
    verdict = judge(TARGET, tables, "own")
    assert (verdict.word, verdict.reason) == ("not measured", "not installed")
    assert judge(TARGET, {}, "own").word == "not measured"


def test_a_guard_is_judged_by_the_least_of_each_side() -> None:
    tables = _table(ours=[9.0, 1.5], theirs=[1.0, 4.0], floor=[1.0, 1.0])
    verdict = judge_least(TARGET, tables, "own")
    assert (verdict.word, verdict.value) == ("met", Spread(1.5, 1.5, 1.5, 2))
    assert judge_least(TARGET, _table(ours=[2.1, 2.2], theirs=[1.0, 1.0]), "own").word == "NOT met"


class _Told(Bench):
    """Keeps the names of sides in place of measuring them."""

    def __init__(self, work: Path) -> None:
        self.work, self.rounds, self.has_torch = work, 1, True
        self.launcher = self.worker = self._torch = SimpleNamespace(  # type: ignore[assignment]
            call=lambda *_, **__: {"seconds": 1.0, "blobs": 1}
        )
        self.names: dict[str, set[str]] = {}

    def bundle(self, input: Input, level: int = 3, profile: str = "full") -> Path:
        path = self.place(input, "bundle")
        path.touch()
        return path

    archive = plan = installed = bundle

    def measure(self, input: Input, group: str, sides: Any, rounds: int | None = None) -> Table:
        self.names[group] = {side.name for side in sides}
        return Table(input.name, group)


def test_every_target_and_guard_names_sides_that_its_group_measures(tmp_path: Path) -> None:
    told = _Told(tmp_path)
    for name, group in GROUPS.items():
        if name != "system calls" or shutil.which("strace"):
            group(told, Input("own", tmp_path, "inductor", "", part=tmp_path))
            assert name in told.names
    for target in (*TARGETS, *GUARDS):
        assert {side for _, _, side in target.sides("own")} <= told.names[target.group], target.name
    assert set(NEED_TORCH) <= set(GROUPS)


# -- inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["own", "kernels", "layers", "entry"])
def test_every_entry_of_a_tree_that_the_bench_makes_is_whole(tmp_path: Path, name: str) -> None:
    made = make(name, tmp_path, SMALL)
    packed = bundler.pack([made.root], tmp_path / "it.tbundle", strict=True)
    assert packed.files == sum(path.is_file() for path in made.path.rglob("*"))
    assert make(name, tmp_path, SMALL).path == made.path


def test_ten_times_the_kernels_are_ten_times_the_kernels_and_no_two_are_alike(tmp_path: Path) -> None:
    made = make("kernels", tmp_path, SMALL)
    assert made.part is not None
    assert (len(list(made.path.iterdir())), len(list(made.part.iterdir()))) == (20, 2)
    assert len({path.read_bytes() for path in made.path.rglob("*.cubin")}) == 20


def test_the_layers_are_equal_and_their_contents_are_stored_once(tmp_path: Path) -> None:
    made = make("layers", tmp_path, SMALL)
    one = sum(path.stat().st_size for path in (made.path / "triton" / "0").rglob("*") if path.is_file())
    bundler.pack([made.root], tmp_path / "it.tbundle")
    assert (tmp_path / "it.tbundle").stat().st_size < one / 4
    assert len(list((made.path / "triton").iterdir())) > 1


def test_floors_make_the_files_and_hash_the_bytes_that_a_restore_does(tmp_path: Path) -> None:
    made = make("own", tmp_path, SMALL)
    bundler.pack([made.root], tmp_path / "it.tbundle")
    worker = Worker()
    given = {"bundle": tmp_path / "it.tbundle", "into": tmp_path / "out"}
    ours, floor = worker.measure("unpack", **given), worker.measure("floor_unpack", tree=made.path, **given)
    with pytest.raises(BenchError, match="no such function"):
        worker.call("no such function")
    worker.close()
    assert ours.files == floor.files == sum(path.is_file() for path in made.path.rglob("*"))
    assert not (tmp_path / "out").exists()


# -- what is written ---------------------------------------------------------------------------------------------------


def test_page_chart_and_json_have_every_target(tmp_path: Path) -> None:
    tables = _table(ours=[3.0, 3.0], theirs=[1.0, 1.0], floor=[0.5, 0.5])
    verdicts = [judge(TARGET, tables, "own"), judge(TARGETS[0], tables, "own")]
    machine = dict.fromkeys(("cpu", "system", "file_system", "python", "zstd", "tar", "gzip", "triton"), "some")
    machine |= dict.fromkeys(("zstandard", "msgpack", "click", "torch"), "some") | {
        "cores": 2,
        "memory_bytes": 1,
        "load_before": 0.0,
    }
    run = report.Run(machine, [], "own", verdicts, tables, {}, 1.0, quick=False)
    page = report.page([run], Path("it.svg"))
    assert "| it | it | ours: 3 s | theirs: 1 s | 3 | 2 |  | 0.5 | NOT met |" in page
    assert "| not measured |" in page and "](it.svg)" in page
    assert [row["verdict"] for row in run.as_json()["targets"]] == ["NOT met", "not measured"]
    drawn = xml.dom.minidom.parseString(chart.draw([run]))
    assert "3 of 2" in [text.firstChild.nodeValue for text in drawn.getElementsByTagName("text")]  # type: ignore[union-attr]


# -- the guard ---------------------------------------------------------------------------------------------------------


def _quick(tmp_path: Path, *arguments: str, path: str = "") -> tuple[int, dict[str, dict[str, Any]], str]:
    """Run the guard; return its exit code, its rows by name, and what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))}
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "--quick", "--json", str(tmp_path / "it.json")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
    said = done.stdout + done.stderr
    assert (tmp_path / "it.json").exists(), said
    (run,) = json.loads((tmp_path / "it.json").read_text())
    return done.returncode, {row["target"]: row for row in run["targets"]}, said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_guard_of_the_bench_is_passed(tmp_path: Path) -> None:
    # The loss: a change makes packing, restoring or looking several times slower or larger, and nobody notices.
    code, rows, said = _quick(tmp_path)
    assert code == 0, said
    measured = {name for name, row in rows.items() if row["verdict"] == "met"}
    assert {"pack-inside", "restore-inside", "there", "memory-pack", "scale-pack", "inspect"} <= measured, said


SLOWED = """
import importlib.util, sys, time

class Slowed:
    def find_spec(self, name, path=None, target=None):
        if name != "bundler.formats._frame":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            decompress = module.decompress
            def slow(*given, **named):
                until = time.process_time() + 0.5
                while time.process_time() < until:
                    pass
                return decompress(*given, **named)
            module.decompress = slow
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Slowed())
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_guard_fails_when_decoding_becomes_slow(tmp_path: Path) -> None:
    # The loss: a guard with bounds so wide that it never fails.
    (tmp_path / "sitecustomize.py").write_text(SLOWED)
    code, rows, said = _quick(tmp_path, "--only", "restore-inside", "--only", "size-3", path=str(tmp_path))
    assert code == 1, said
    assert rows["restore-inside"]["verdict"] == "NOT met"
    assert rows["size-3"]["verdict"] in ("met", "not measured")  # what was not slowed is not blamed
