"""``import bundler`` is cheap, and brings in nothing that a training process would not want."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HEAVY = ("torch", "triton", "click", "msgpack", "zstandard", "filelock", "numpy", "obstore")
LIMIT_SECONDS = 0.15 if os.environ.get("CI") else 0.05  # other jobs share a CI machine
RUNS = 7

PROGRAM = """
import json, sys, time
before = set(sys.modules)
started = time.perf_counter()
import bundler
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def _import_in_a_new_process() -> dict[str, Any]:
    spec = importlib.util.find_spec("bundler")
    assert spec is not None and spec.submodule_search_locations
    parent = str(Path(next(iter(spec.submodule_search_locations))).parent)
    # The copy under test; no coverage; and byte code, which an installed package has.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTHONDONTWRITE"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "PYTHONPATH": parent},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_import_loads_nothing_heavy() -> None:
    loaded = {name.partition(".")[0] for name in _import_in_a_new_process()["modules"]}
    assert not loaded & set(HEAVY)


def test_import_takes_less_than_the_limit() -> None:
    _import_in_a_new_process()  # writes the byte code
    seconds = statistics.median(_import_in_a_new_process()["seconds"] for _ in range(RUNS))
    assert seconds < LIMIT_SECONDS
