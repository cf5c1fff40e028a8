#!/usr/bin/env python3
"""Measure what restored byte code saves of an import: without any, beside the sources, and from a bundle.

Each start is a fresh process that imports some modules and says how long it was on its way, from the moment at which it
was started. The variants run in turn, round by round, so that what else the machine does falls on all alike:

  none      no byte code, and none written: packages installed without, PYTHONDONTWRITEBYTECODE set
  beside    byte code where this environment has it, in __pycache__ beside the sources
  times     byte code of a bundle, in a new PYTHONPYCACHEPREFIX, tied to the times of the sources, as Python writes it
  hashes    the same, tied to the contents of the sources, as ``export --with pycache`` makes it

    python3 scripts/measure_pycache.py --out docs/results/pycache-cpu.md --json pycache.json

Needs the package and the modules. Exit code 1 when a module was compiled from source in spite of restored byte code.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
VARIANTS = ("none", "beside", "times", "hashes")
MODULES = "torch,torch._dynamo,torch._inductor.compile_fx,triton"

PROGRAM = """
import sys, time
entered = time.monotonic()
import importlib.machinery, json, os, warnings
compiled = []
source_to_code = importlib.machinery.SourceFileLoader.source_to_code
def counted(self, data, path, **options):
    compiled.append(path)
    return source_to_code(self, data, path, **options)
importlib.machinery.SourceFileLoader.source_to_code = counted
warnings.simplefilter("ignore")
for name in sys.argv[2].split(","):
    __import__(name)
done = time.monotonic()
with open(sys.argv[1], "w") as file:
    json.dump({"done": done, "entered": entered, "compiled": len(compiled), "modules": len(sys.modules)}, file)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=MODULES, help="what is imported, separated by commas")
    parser.add_argument("--rounds", type=int, default=7, help="how often each variant runs")
    parser.add_argument("--out", help="write the result as Markdown")
    parser.add_argument("--json", help="write every figure as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="measure-pycache-") as place:
        result = Measurement(Path(place), arguments.modules).measure(arguments.rounds)
    given = [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]
    result["command"] = shlex.join(["python3", "scripts/measure_pycache.py", *given])
    text = page(result)
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text, encoding="utf-8")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    wrong = [run for variant in ("times", "hashes") for run in result["runs"][variant] if run["compiled"]]
    return 1 if wrong else 0


class Measurement:
    """Bundles of both kinds, and the starts with and without them."""

    def __init__(self, place: Path, modules: str) -> None:
        self._place = place
        self._modules = modules
        self._program = place / "program.py"
        self._program.write_text(PROGRAM)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        paths = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        # No entry point of torch: what one imports lies elsewhere for a child of ours than for another.
        self._environment = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self._ours = {**self._environment, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

    def measure(self, rounds: int) -> dict[str, Any]:
        hashes = self._export()
        times = self._pack_times()
        prefixes = {name: self._place / f"restored-{name}" for name in ("times", "hashes")}
        restored = {name: self._restore(bundle, name) for name, bundle in (("times", times), ("hashes", hashes))}
        runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for number in range(rounds):
            for variant in VARIANTS if number % 2 == 0 else VARIANTS[::-1]:
                prefix = prefixes.get(variant, self._place / "empty" if variant == "none" else None)
                runs[variant].append(self._start(prefix))
        files = list(prefixes["hashes"].rglob("*.pyc"))
        return {
            "versions": versions(),
            "modules": self._modules,
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "bundle_bytes": hashes.stat().st_size,
            "restored": restored,
            "runs": runs,
        }

    def _command(self) -> list[str]:
        return [sys.executable, str(self._program), str(self._place / "told.json"), self._modules]

    def _start(self, prefix: Path | None, **more: str) -> dict[str, float]:
        environment = {**self._environment, **more}
        if prefix is not None:
            environment["PYTHONPYCACHEPREFIX"] = str(prefix)
        started = time.monotonic()
        subprocess.run(self._command(), env=environment, check=True)
        told = json.loads((self._place / "told.json").read_text())
        return {"seconds": told["done"] - started, "compiled": told["compiled"], "modules": told["modules"]}

    def _export(self) -> Path:
        """Make a bundle as a user does: byte code tied to contents."""
        out = self._place / "hashes.tbundle"
        self._bundler("export", "-o", str(out), "--with", "pycache", "--", *self._command())
        return out

    def _pack_times(self) -> Path:
        """Make a bundle of byte code as Python writes it."""
        prefix, out = self._place / "written", self._place / "times.tbundle"
        environment = {**self._environment, "PYTHONPYCACHEPREFIX": str(prefix)}
        environment.pop("PYTHONDONTWRITEBYTECODE")
        subprocess.run(self._command(), env=environment, check=True)
        self._bundler("pack", f"pycache={prefix}", "-o", str(out))
        return out

    def _restore(self, bundle: Path, name: str) -> dict[str, float]:
        """Restore durably, as the commands do, and without waiting for the disk; both into new directories."""
        waited = self._bundler("unpack", str(bundle), "--into", str(self._place / f"restored-{name}"))
        quick = self._bundler("unpack", str(bundle), "--into", str(self._place / f"quick-{name}"), "--no-sync")
        again = self._bundler("unpack", str(bundle), "--into", str(self._place / f"restored-{name}"))
        return {"synced": waited["seconds"], "unsynced": quick["seconds"], "unchanged": again["seconds"]}

    def _bundler(self, *words: str) -> dict[str, Any]:
        verb, *rest = words
        command = [sys.executable, "-m", "bundler", verb, "--json", *rest]
        done = subprocess.run(command, env=self._ours, stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))


def versions() -> dict[str, str]:
    found = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
    }
    for name in ("torch", "triton", "triton-bundler"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def median(runs: Mapping[str, list[dict[str, float]]], variant: str, name: str = "seconds") -> float:
    return statistics.median(run[name] for run in runs[variant])


def page(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    runs, restored = result["runs"], result["restored"]
    none = median(runs, "none")
    rows = ["| byte code | runs | compiled | median s | least s | of none |", "| --- | --- | --- | --- | --- | --- |"]
    for variant in VARIANTS:
        seconds = [run["seconds"] for run in runs[variant]]
        ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(runs[variant], runs["none"]))
        compiled = median(runs, variant, "compiled")
        rows.append(
            f"| {variant} | {len(seconds)} | {compiled:.0f} | {median(runs, variant):.2f} | {min(seconds):.2f} "
            f"| {ratio:.2f} |"
        )
    saved = none - median(runs, "hashes")
    took, quick, again = (restored["hashes"][name] for name in ("synced", "unsynced", "unchanged"))
    lines = [
        "# Byte code from a bundle: what an import saves", "",
        f"Made by `{result['command']}`.", "",
        "; ".join(f"{name} {value}" for name, value in result["versions"].items()) + ".", "",
        f"A fresh process imports `{result['modules']}`:",
        "seconds from its start until all is imported. `none`: no byte code, none written. `beside`: in `__pycache__`,",
        "as pip leaves it. `times`: restored from a bundle, as Python writes it. `hashes`: the same, tied to the",
        "contents of the sources, as `export --with pycache` makes it. The variants ran in turn; of none: the median",
        "over the rounds of the ratio within a round; compiled: modules compiled from source.", "",
        *rows, "",
        f"The bundle: {result['files']:,} files, {result['bytes']:,} bytes, {result['bundle_bytes']:,} in the bundle.",
        f"Restored in {took:.2f} s, in {quick:.2f} s with `--no-sync`; compared in {again:.2f} s when it is there.",
        f"A start then saves {saved:.2f} s.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
