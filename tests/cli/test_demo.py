"""``demo``: what it needs, and that everything it claims is measured."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bundler.cli import demo
from bundler.cli.demo import FIELDS
from bundler.testing import programs, trees


def test_without_torch_it_says_what_to_install(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = cli("demo")
    assert run.code == 2
    assert "torch and triton" in run.err and "pip install 'triton-bundler[torch]'" in run.err


def test_without_a_compiler_it_says_what_to_install(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    run = cli("demo")
    assert run.code == 2 and "g++" in run.err


class Fakes:
    """Programs that leave synthetic trees, and report hits for what is there already."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}  # on top of what is true

    def run(self, program: Path, arguments: Any = (), *, env: dict[str, str]) -> dict[str, Any]:
        root = Path(env["TRITON_CACHE_DIR" if program == programs.COMPILE_TRITON else "TORCHINDUCTOR_CACHE_DIR"])
        warm = root.exists()
        if program == programs.COMPILE_TRITON:
            names = ("add", "matmul")
            if not warm:
                for name in names:
                    trees.synthetic_kernel(root, name)
            kernels = {name: {"seconds": 0.01 if warm else 1.0} for name in names}
            return {"kernels": kernels, "compiled": 0 if warm else 2, "hits": 2 if warm else 0}
        if not warm:
            trees.synthetic_inductor_root(root, graphs=2)
        hits, misses = (2, 0) if warm else (0, 2)
        report = {
            "fxgraph_hits": hits,
            "fxgraph_misses": misses,
            "autograd_hits": hits // 2,
            "autograd_misses": misses // 2,
            "cpp_compiled": 0 if warm else 4,
            "cpp_headers": 0,
            "step_seconds": 1.0 if warm else 9.0,
            "checksum": "ab",
        }
        return {**report, **(self.report if warm else {})}


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fakes = Fakes()
    monkeypatch.setattr(demo, "_require_tools", lambda: None)
    monkeypatch.setattr(programs, "run", fakes.run)
    return fakes


def test_the_figures_are_as_documented_and_nothing_is_left(
    cli: Any, conform: Any, fakes: Fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = cli("demo", "--json")
    assert run.code == 0, run.json["checks"]
    conform(run.json, FIELDS)
    assert run.json["ok"] and all(check["ok"] for check in run.json["checks"])
    assert run.json["seconds_saved"] == pytest.approx(9.98)
    assert run.json["refused"] == "DigestMismatchError"
    assert os.listdir(tmp_path) == []
    words = cli("demo")
    assert words.code == 0 and words.lines[-1] == "== everything holds"


BROKEN = {
    "a graph that is compiled again": ({"fxgraph_hits": 1, "fxgraph_misses": 1}, "every FX graph was a hit"),
    "an entry that is missed": ({"autograd_hits": 0}, "every AOTAutograd entry was a hit"),
    "a C++ file that is compiled again": ({"cpp_compiled": 1}, "nothing was compiled by C++"),
    "a header that is compiled": ({"cpp_headers": 1}, "nothing was compiled by C++"),
    "other results": ({"checksum": "cd"}, "the results are the same, bit by bit"),
    "no gain": ({"step_seconds": 99.0}, "it was faster"),
}


@pytest.mark.parametrize(("report", "name"), BROKEN.values(), ids=BROKEN.keys())
def test_what_does_not_hold_is_named_and_ends_with_1(
    cli: Any, conform: Any, fakes: Fakes, report: dict[str, Any], name: str
) -> None:
    fakes.report = report
    run = cli("demo", "--json")
    assert run.code == 1 and not run.json["ok"]
    assert [check["name"] for check in run.json["checks"] if not check["ok"]] == [name]
    conform(run.json, FIELDS)


def test_a_program_that_fails_shows_its_output_and_ends_with_1(
    cli: Any, conform: Any, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise programs.ProgramError("compile_torch.py ended with 1\nImportError: libfoo")

    monkeypatch.setattr(programs, "run", fail)
    run = cli("demo", "--json")
    assert run.code == 1 and "ImportError: libfoo" in run.err
    conform(run.json, FIELDS)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_holds_on_this_machine(cli: Any, conform: Any) -> None:
    run = cli("demo", "--json")
    assert run.code == 0, (run.err[-2000:], run.out[-2000:])
    conform(run.json, FIELDS)
    assert run.json["warm"]["kernel_hits"] == 6 and run.json["warm"]["cpp_compiled"] == 0
