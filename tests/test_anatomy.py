"""The anatomy of a start: phases that add up, imports told apart, and starts that did not do what they should."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts" / "gpu"
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the start of a process is read from /proc"
)


@pytest.fixture(scope="module")
def anatomy() -> Any:
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield __import__("anatomy")
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def probe(anatomy: Any) -> Any:
    return anatomy.anatomy_probe


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def test_each_moment_belongs_to_the_innermost_phase_and_all_add_up(probe: Any) -> None:
    started = time.monotonic_ns()
    clock = probe.Clock(started)
    inner = clock.timed(lambda: spin(0.03), "inner")

    def both() -> None:
        spin(0.02)
        inner()
        inner()

    clock.timed(both, "outer")()
    clock.stop()
    whole = time.monotonic_ns() - started
    inner()  # after the end nothing counts
    seconds = {phase: value / 1e9 for phase, value in clock.nanoseconds.items()}
    assert seconds["inner"] >= 0.06 and seconds["outer"] >= 0.02
    assert sum(clock.nanoseconds.values()) == pytest.approx(whole, rel=0.05)
    assert (clock.calls["inner"], clock.calls["outer"]) == (2, 1)


def test_a_phase_ends_with_an_error_too(probe: Any) -> None:
    clock = probe.Clock(time.monotonic_ns())

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        clock.timed(fail, "failing")()
    clock.enter("after")
    clock.stop()
    assert set(clock.nanoseconds) == {"start", "failing", "after"}


def test_what_threads_of_python_do_is_not_added_to_what_the_program_waits_for(probe: Any) -> None:
    clock = probe.Clock(time.monotonic_ns())
    work = clock.timed(lambda: spin(0.01), "work")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "work" not in clock.calls
    work()
    assert clock.calls["work"] == 1


def test_the_measuring_itself_is_kept_apart_with_all_that_it_does(probe: Any) -> None:
    clock = probe.Clock(time.monotonic_ns())
    clock.enter(probe.PROBE)
    clock.timed(lambda: spin(0.02), "import: find")()
    clock.leave()
    clock.stop()
    assert clock.nanoseconds[probe.PROBE] >= 20_000_000 and "import: find" not in clock.nanoseconds


def test_functions_and_methods_of_every_kind_are_timed_and_absent_ones_named(probe: Any) -> None:
    class Owner:
        @staticmethod
        def alone(x: int) -> int:
            return x + 1

        @classmethod
        def shared(cls, x: int) -> tuple[str, int]:
            return cls.__name__, x

        def own(self, x: int) -> tuple[bool, int]:
            return isinstance(self, Owner), x

    module = SimpleNamespace(Owner=Owner, plain=lambda x: x)
    clock = probe.Clock(time.monotonic_ns())
    for name in ("plain", "Owner.alone", "Owner.shared", "Owner.own", "gone", "Owner.gone", "Gone.own"):
        clock.wrap(module, name, name)
    assert (module.plain(1), Owner.alone(1), Owner.shared(1), Owner().own(1)) == (1, 2, ("Owner", 1), (True, 1))
    assert set(clock.calls) == {"plain", "Owner.alone", "Owner.shared", "Owner.own"}
    assert [name for name, _ in clock.missing] == ["gone", "Owner.gone", "Gone.own"]


PROGRAM = """
import sys
sys.path.insert(0, {site!r})
import sitecustomize
import package
sitecustomize.clock.enter("the rest")
package.m1.work()
sitecustomize.clock.stop()
import json
clock = sitecustomize.clock
print(json.dumps({{"seconds": clock.nanoseconds, "calls": clock.calls, "missing": clock.missing}}))
"""


def test_imports_from_source_and_from_byte_code_are_told_apart(probe: Any, tmp_path: Path) -> None:
    package = tmp_path / "site" / "package"
    package.mkdir(parents=True)
    for number in range(50):
        (package / f"m{number}.py").write_text("def work():\n    pass\n" * 50)
    (package / "__init__.py").write_text(f"from package import {', '.join(f'm{number}' for number in range(50))}\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    text = (SCRIPTS / "anatomy_probe.py").read_text()
    (hooks / "sitecustomize.py").write_text(text.replace("WRAPPED = {", "WRAPPED = {'package.m1': {'work': 'work'},"))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(site=str(tmp_path / "site")))

    def start(**more: str) -> dict[str, Any]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        spawned = {probe.SPAWNED: str(time.monotonic_ns()), "PYTHONPATH": str(hooks)}
        command = [sys.executable, str(program), probe.ACTIVE]
        done = subprocess.run(command, env={**kept, **spawned, **more}, stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))

    place = str(tmp_path / "byte-code")
    cold = start(PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path / "none"))
    start(PYTHONPYCACHEPREFIX=place)
    warm = start(PYTHONPYCACHEPREFIX=place)
    assert cold["calls"]["import: compile source"] >= 51
    assert "import: compile source" not in warm["calls"]
    assert cold["calls"]["import: run modules"] == warm["calls"]["import: run modules"] >= 51
    assert cold["calls"]["work"] == warm["calls"]["work"] == 1
    assert {"start", "import: find", "import: load byte code", "work", "the rest"} <= set(warm["seconds"])
    assert not cold["missing"] and all(value >= 0 for value in cold["seconds"].values())


def start_of(anatomy: ModuleType, variant: str, round_: int = 0, **result: Any) -> Any:
    result = {"counters": {"fxgraph_cache_hit": 2}, "calls": {}, **result}
    return anatomy.Start("encoder", variant, round_, {"start": 1.0, "tracing": 3.0}, result)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "a cold start that found something": ("cold", {}, "2 graphs were found by a cold start"),
    "a cold start": ("cold+pyc", {"counters": {"fxgraph_cache_miss": 2}}, ""),
    "a hit": ("hot", {}, ""),
    "a hot start that compiled": (
        "hot+pyc",
        {"counters": {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 1}},
        "1 graphs were found, and 1 were not",
    ),
    "a start that found nothing": ("mega", {"counters": {}}, "0 graphs were found, and 0 were not"),
    "byte code that was not used": ("run+pycache", {"calls": {"import: compile source": 900}}, "900 modules"),
    "byte code that was": ("again", {"calls": {"import: compile source": 2}}, ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_start_that_did_not_do_what_its_variant_says_is_found(case: str, anatomy: Any) -> None:
    variant, result, words = WRONG[case]
    said = anatomy.wrong(start_of(anatomy, variant, **result))
    assert words in said and bool(said) == bool(words)


def test_the_table_has_medians_shares_and_the_ratio_to_the_hot_start_of_the_round(anatomy: Any) -> None:
    starts = [start_of(anatomy, "hot", number) for number in range(3)]
    starts += [start_of(anatomy, "run", number) for number in range(3)]
    for number, start in enumerate(starts[3:]):
        start.phases = {"before Python": 1.0, "start": 1.0, "new phase": float(number)}
    broken = start_of(anatomy, "run", 3)
    broken.error = "no result"
    text = anatomy.table([*starts, broken], ["hot", "run", "mega"])
    rows = {
        row.split(" | ")[0].strip("| *"): [cell.strip(" |") for cell in row.split(" | ")[1:]]
        for row in text.splitlines()
    }
    assert rows["seconds"] == ["hot", "run"]
    assert rows["start"] == ["1.00 (25 %)", "1.00 (33 %)"]
    assert rows["new phase"] == ["0.00 (0 %)", "1.00 (33 %)"]
    assert rows["until the first step is done"] == ["**4.00**", "**3.00**"]
    assert rows["of hot"] == ["1.00", "0.75"] and rows["starts"] == ["3", "3"]


@pytest.mark.torch
def test_a_hot_start_of_torch_is_taken_apart(tmp_path: Path) -> None:
    """The whole way on the CPU, with whatever byte code this environment has beside its sources."""
    command = [sys.executable, str(SCRIPTS / "anatomy.py"), "--cpu", "--cases", "prime", "--rounds", "1", "--beside"]
    command += ["--variants", "hot+pyc", "--work", str(tmp_path / "work"), "--json", str(tmp_path / "a.json")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    subprocess.run(command, env=kept, check=True)
    (start,) = json.loads((tmp_path / "a.json").read_text())["starts"]
    phases = start["phases"]
    assert start["error"] == "" and start["result"]["counters"]["fxgraph_cache_hit"] == 2
    assert {"import: run modules", "key: torch's files", "key: Triton's files", "tracing", "hit: FX graphs"} <= set(
        phases
    )
    assert "compile" not in phases and "C++ compiler" not in phases
    assert importlib.util.find_spec("triton") is None or phases["kernel templates"] > 0
