#!/usr/bin/env python3
"""Show where the seconds between the start of a process and its first step go: cold, hot, mega cache, ours.

Each start is a fresh process with a clock of exclusive phases in it (``anatomy_probe.py``). Variants:

  cold         empty caches
  hot          the caches of a cold start, untouched
  mega         empty caches, and torch's own mega cache loaded before the first step
  entries      a new root with nothing but the FX graph and AOTAutograd entries that our hook made
  run          ``triton-bundler run --bundle``, into empty roots
  run+pycache  the same with a bundle that holds the byte code of a warm start, too
  again        the same once more, with what it restored the first time

Each but the last two runs twice: without any byte code, as in an image that has none (PYTHONDONTWRITEBYTECODE set),
and, with ``+pyc`` behind the name, with byte code for all that is imported. Starts are interleaved, round by round;
medians are shown. "before Python" is what runs before the interpreter of the program starts: the restore of ``run``.

    python3 scripts/gpu/anatomy.py --out anatomy.md --json anatomy.json
    python3 scripts/gpu/anatomy.py --cpu --cases encoder --rounds 3       # no GPU: C++ backend, small models

Needs torch and Triton; of this package's dependencies msgpack, zstandard and click, which may be given as wheels
(``--wheel FILE``) or directories (``--path DIR``). Exit code 1: a start failed, or did not do what its variant says.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anatomy_probe
import prove_inductor

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PLAIN = ("cold", "hot", "mega", "entries", "run")
VARIANTS = (*PLAIN, *(f"{name}+pyc" for name in PLAIN), "run+pycache", "again")
CASES = ("encoder", "resnet")
PROBE = anatomy_probe.PROBE

# Phases in the order in which a start goes through them; what is not listed comes behind, by size.
ORDER = (
    "before Python", "start", "import: find", "import: compile source", "import: load byte code", "import: run modules",
    "import: extensions", "device", "restore: mega cache", "hook", "tracing", "guards", "AOTAutograd", "Inductor",
    "kernel templates", "CPU probed", "key: torch's files", "key: Triton's files", "key: host", "key: graphs",
    "hit: AOTAutograd", "hit: FX graphs", "kernel files", "generated modules", "host code", "kernels: load",
    "kernels: launch", "kernels: tuning", "compile", "compile: wait", "C++ compiler", "C compiler", "backward",
    "the rest",
)  # fmt: skip


@dataclass
class Start:
    """One start, and where its time went. Seconds."""

    case: str
    variant: str
    round: int
    phases: dict[str, float] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)
    bundler: dict[str, Any] = field(default_factory=dict)  # what ``run`` said
    error: str = ""

    @property
    def seconds(self) -> float:
        """From the start of the first process until the first step is done, without the measuring itself."""
        return sum(self.phases.values())


class Anatomy:
    """All starts of all workloads."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.arguments = arguments
        self.work = work
        self.starts: list[Start] = []
        self.began = time.monotonic()
        (work / "logs").mkdir(parents=True)
        site = work / "site"
        site.mkdir()
        shutil.copyfile(HERE / "anatomy_probe.py", site / "sitecustomize.py")
        (site / "prove_kernels.py").write_text(prove_inductor.KERNELS)
        self._make_package()

    def _make_package(self) -> None:
        """Do what installing the package does: its code, and the entry point that torch calls."""
        package = self.work / "package"
        shutil.copytree(REPOSITORY / "bundler", package / "bundler", ignore=shutil.ignore_patterns("__pycache__"))
        info = package / "triton_bundler-0.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton-bundler\nVersion: 0.0\n")
        (info / "entry_points.txt").write_text("[torch.backends]\ntriton_bundler = bundler.integrations:autoload\n")

    # .. one start

    def environment(self, variant: str, root: Path) -> dict[str, str]:
        dropped = ("TRITON_", "TORCHINDUCTOR", "TORCH_LOGS", "TORCH_TRACE", "PYTHON")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        paths = [str(self.work / "site"), *self.arguments.path, str(self.work / "wheels"), str(self.work / "package")]
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths += [path for path in inherited if path and not os.path.isdir(os.path.join(path, "bundler"))]
        environment.update(
            PYTHONPATH=os.pathsep.join(paths),
            TORCHINDUCTOR_CACHE_DIR=str(root / "inductor"),
            TRITON_HOME=str(root / "triton"),
            ANATOMY_SCRIPTS=str(HERE),
        )
        if not variant.endswith("+pyc"):
            environment.update(PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(self.work / "no-byte-code"))
        elif not self.arguments.beside:
            environment["PYTHONPYCACHEPREFIX"] = str(self.work / "byte-code")
        if variant.startswith(("entries", "hook")):
            environment["TRITON_BUNDLER"] = "1"
        if self.arguments.cpu:
            # Else a fresh host waits ten seconds for a header that no cache holds: README, "What it cannot do".
            environment["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
            environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        return environment

    def program(self, case: str, mega: str = "none") -> list[str]:
        device = "cpu" if self.arguments.cpu else "cuda"
        return [sys.executable, str(HERE / "anatomy_probe.py"), anatomy_probe.ACTIVE, case, device, mega]

    def start(
        self,
        case: str,
        variant: str,
        round_: int,
        root: Path,
        command: Sequence[str],
        *,
        keep: bool = True,
        leave: bool = False,
    ) -> Start:
        """Run one start to its end, and read what it printed.

        Args:
            keep: Whether it belongs to the result.
            leave: Whether it ends with its first step, and does not wait for torch's compile workers.
        """
        start = Start(case, variant, round_)
        log = self.work / "logs" / f"{case}-{variant}-{round_}.log"
        environment = self.environment(variant, root)
        environment[anatomy_probe.LEAVE] = "1" if leave else "0"
        environment[anatomy_probe.SPAWNED] = str(time.monotonic_ns())
        output, start.error = prove_inductor._call(command, environment, float(self.arguments.timeout), log)
        for line in output.splitlines():
            if line.startswith(anatomy_probe.RESULT):
                start.result = json.loads(line[len(anatomy_probe.RESULT) :])
            elif line.startswith("{") and '"restore_seconds"' in line:
                start.bundler = json.loads(line)
        if not start.result and not start.error:
            start.error = "no result"
        phases = start.result.get("seconds", {})
        start.phases = {phase: seconds for phase, seconds in phases.items() if phase != PROBE}
        start.error = start.error or wrong(start)
        if keep:
            self.starts.append(start)
        print(
            f"[{time.monotonic() - self.began:6.1f} s] {case:8} {variant:12} #{round_} {start.seconds:6.2f} s"
            + (f"  ERROR {start.error}; see {log}" if start.error else ""),
            flush=True,
        )
        return start

    # .. what the variants start from

    def prepare(self, case: str) -> None:
        """Make roots, a mega cache, entries and bundles; what is timed on the way are the first cold starts."""
        base, wanted = self.work / case, self.arguments.variants
        # What nobody asked to see runs with byte code, which is quicker.
        first = "cold+pyc" if all(variant.endswith("+pyc") for variant in wanted) else "cold"
        if not self.arguments.beside and any(variant.endswith("+pyc") for variant in wanted):
            # Cold and hot, so that there is byte code for what either of them imports.
            for number, variant in enumerate(("cold+pyc", "hot+pyc")):
                self.start(case, variant, -1 - number, base / "prime", self.program(case), keep=False)
        mega = f"save={base / 'mega.bin'}"
        self.start(case, first, 0, base / "cold", self.program(case, mega), keep=first in wanted)
        if needs(wanted, "entries"):
            self.start(case, "hook", -1, base / "hook", self.program(case), keep=False)
            for name in prove_inductor.ENTRIES:
                shutil.copytree(base / "hook" / "inductor" / name, base / "entries" / name)
        if needs(wanted, "run") or "again" in wanted:
            roots = [
                f"inductor={base / 'cold' / 'inductor'}",
                f"triton={base / 'cold' / 'triton' / '.triton' / 'cache'}",
            ]
            there = [root for root in roots if os.path.isdir(root.partition("=")[2])]
            self.bundler(case, "pack", *there, "-o", str(base / "warm.tbundle"))
        if not {"run+pycache", "again"}.isdisjoint(wanted):
            # The byte code of a warm start is a part of that of a cold one.
            shutil.copyfile(base / "warm.tbundle", base / "pycache.tbundle")
            options = ["--save", "--with", "pycache"]
            self.start(case, "run", -2, base, self.run(case, "pycache", base / "made", options), keep=False)

    def bundler(self, case: str, *words: str) -> None:
        command = [sys.executable, "-m", "bundler", *words]
        log = self.work / "logs" / f"{case}-{words[0]}.log"
        output, error = prove_inductor._call(command, self.environment("cold", self.work), 600, log)
        if error:
            raise RuntimeError(f"{shlex.join(command)}: {error}\n{output}")

    def run(self, case: str, bundle: str, root: Path, options: Sequence[str] = ()) -> list[str]:
        file = str(self.work / case / f"{bundle}.tbundle")
        command = [
            sys.executable,
            "-m",
            "bundler",
            "run",
            "--bundle",
            file,
            "--root-dir",
            str(root),
            "--json",
            *options,
        ]
        return [*command, "--", *self.program(case)]

    def one(self, case: str, variant: str, round_: int) -> None:
        """One timed start of a variant."""
        base = self.work / case
        kind, root = variant.removesuffix("+pyc"), base / f"{variant}-{round_}"
        command = self.program(case)
        if kind == "hot":
            root = base / "cold"
        elif kind == "mega":
            command = self.program(case, f"load={base / 'mega.bin'}")
        elif kind == "entries":
            shutil.copytree(base / "entries", root / "inductor")
        elif kind == "again":
            root = base / "made"  # restored, and added to, when the bundle was made
            command = self.run(case, "pycache", root)
        elif kind.startswith("run"):
            command = self.run(case, "pycache" if kind == "run+pycache" else "warm", root)
        self.start(case, variant, round_, root, command, leave=True)
        if kind not in ("hot", "again"):
            shutil.rmtree(root, ignore_errors=True)

    def measure(self) -> None:
        for case in self.arguments.cases:
            self.prepare(case)
            for round_ in range(self.arguments.rounds):
                variants = [name for name in VARIANTS if name in self.arguments.variants]
                for variant in variants if round_ % 2 == 0 else variants[::-1]:
                    cold = variant.startswith("cold")
                    done = any(s.case == case and s.variant == variant and s.round == round_ for s in self.starts)
                    if not done and not (cold and round_ >= self.arguments.cold_rounds):
                        self.one(case, variant, round_)


def needs(wanted: Sequence[str], kind: str) -> bool:
    return any(variant.startswith(kind) for variant in wanted)


def wrong(start: Start) -> str:
    """Return what a start did that its variant does not say; "" for nothing."""
    counters = start.result.get("counters", {})
    hits, misses = (counters.get(f"fxgraph_cache_{what}", 0) for what in ("hit", "miss"))
    if start.variant.startswith(("cold", "hook")):
        return f"{hits} graphs were found by a cold start" if hits else ""
    if misses or not hits:
        return f"{hits} graphs were found, and {misses} were not"
    compiled = start.result.get("calls", {}).get("import: compile source", 0)
    if start.variant in ("run+pycache", "again") and compiled > _OWN_SOURCES:
        return f"{compiled} modules were compiled from source"
    return ""


_OWN_SOURCES = (
    8  # this program's, which is imported by path, and modules that only the first of a kind of start imports
)


# -- tables ------------------------------------------------------------------------------------------------------------


def median(starts: Sequence[Start], phase: str) -> float:
    return statistics.median(start.phases.get(phase, 0.0) for start in starts)


def table(starts: Sequence[Start], variants: Sequence[str]) -> str:
    """Seconds (medians) of each phase and its share of the whole, a column for each variant."""
    columns = {name: [s for s in starts if s.variant == name and not s.error] for name in variants}
    columns = {name: mine for name, mine in columns.items() if mine}
    wholes = {name: statistics.median(start.seconds for start in mine) for name, mine in columns.items()}
    seen = {phase for mine in columns.values() for start in mine for phase in start.phases}
    ordered = [phase for phase in ORDER if phase in seen] + sorted(seen - {*ORDER})
    rows = [["seconds", *columns], ["---"] * (len(columns) + 1)]
    for phase in ordered:
        values = {name: median(mine, phase) for name, mine in columns.items()}
        if max(values.values()) >= 0.01:
            cells = [f"{value:.2f} ({100 * value / wholes[name]:.0f} %)" for name, value in values.items()]
            rows.append([phase, *cells])
    rows.append(["**until the first step is done**", *(f"**{whole:.2f}**" for whole in wholes.values())])
    rows.append(["least", *(f"{min(start.seconds for start in mine):.2f}" for mine in columns.values())])
    rows.append(["starts", *(str(len(mine)) for mine in columns.values())])
    rows.append(["of hot", *(ratio(starts, name) for name in columns)])
    rows.append(["modules compiled", *(str(compiled(mine)) for mine in columns.values())])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def ratio(starts: Sequence[Start], variant: str) -> str:
    """The median over the rounds of the ratio to the untouched hot start of the same round."""
    hot = {start.round: start.seconds for start in starts if start.variant == "hot" and not start.error}
    mine = [s.seconds / hot[s.round] for s in starts if s.variant == variant and not s.error and s.round in hot]
    return f"{statistics.median(mine):.2f}" if mine else "-"


def compiled(starts: Sequence[Start]) -> int:
    return int(statistics.median(start.result["calls"].get("import: compile source", 0) for start in starts))


def page(anatomy: Anatomy, facts: dict[str, str]) -> str:
    """Return the result as Markdown."""
    arguments = anatomy.arguments
    given = [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]
    lines = [
        f"# Where the seconds of a start go: {'a CPU' if arguments.cpu else facts.get('gpus', 'a GPU')}", "",
        f"Made by `{shlex.join(['python3', 'scripts/gpu/anatomy.py', *given])}`.", "",
        "; ".join(f"{name} {value}" for name, value in facts.items()) + ".", "",
        "Medians; each moment belongs to the innermost phase that is open. The variants are told in the script's head.",
    ]  # fmt: skip
    for case in arguments.cases:
        mine = [start for start in anatomy.starts if start.case == case]
        bare = [name for name in arguments.variants if not name.endswith("+pyc")]
        rest = [name for name in arguments.variants if name.endswith("+pyc")]
        for what, names in (("without", bare), ("with", rest)):
            lines += ["", f"## {case}, {what} byte code", "", table(mine, names)] if names else []
        lines += _notes(mine)
    return "\n".join(lines) + "\n"


def _notes(starts: Sequence[Start]) -> list[str]:
    lines = []
    for variant in ("run", "run+pyc", "run+pycache", "again"):
        told = [start.bundler for start in starts if start.variant == variant and start.bundler]
        if told:
            restored = statistics.median(each["restore_seconds"] for each in told)
            there = " that were there" if told[-1]["unchanged"] == told[-1]["restored"] else ""
            lines.append(f"- {variant}: {told[-1]['restored']} entries{there} restored in {restored:.2f} s (median).")
    # A function that moved from one module to another is missing in one of them.
    seen = {phase for start in starts for phase in start.result.get("calls", ())}
    named = (pair for start in starts for pair in start.result.get("missing", ()))
    missing = sorted({name for name, phase in named if phase not in seen})
    lines += [f"- Not in this version, so part of what is around it: {', '.join(missing)}."] if missing else []
    lines += [f"- FAILED: {s.variant} #{s.round}: {s.error}" for s in starts if s.error]
    sums = {json.dumps(start.result.get("sums"), sort_keys=True) for start in starts if not start.error}
    lines.append(
        f"- Outputs of the {len(starts)} starts: {'one and the same' if len(sums) == 1 else f'{len(sums)} kinds'}."
    )
    return ["", *lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="comma-separated: encoder, resnet, mix, prime")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each variant")
    parser.add_argument("--cold-rounds", type=int, default=1, help="of these, cold ones")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one start")
    parser.add_argument("--cpu", action="store_true", help="no GPU: C++ backend, small models")
    parser.add_argument("--beside", action="store_true", help="take byte code for +pyc from beside the sources")
    parser.add_argument("--wheel", action="append", default=[], help="a wheel to unpack for the children")
    parser.add_argument("--path", action="append", default=[], help="a directory for the children's PYTHONPATH")
    parser.add_argument("--work", help="where everything is written (a new temporary directory)")
    parser.add_argument("--json", help="write everything as JSON")
    parser.add_argument("--out", help="write the tables as Markdown")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",") if arguments.cases else list(CASES)
    arguments.variants = arguments.variants.split(",")
    unknown = {*arguments.variants} - {*VARIANTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    arguments.path = [os.path.abspath(path) for path in arguments.path]
    work = Path(arguments.work or tempfile.mkdtemp(prefix="anatomy-")).resolve()
    if work.is_dir() and any(work.iterdir()):
        parser.error(f"{work} is not empty: a start is cold in a new directory only")
    for wheel in arguments.wheel:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "wheels")
    facts = prove_inductor.versions(work)
    facts.pop("ptxas", None)
    if arguments.cpu:
        facts.pop("note", None)  # that there is no driver to ask
    print(json.dumps(facts), flush=True)
    anatomy = Anatomy(arguments, work)
    try:
        anatomy.measure()
    finally:  # what ran so far is told all the same
        text = page(anatomy, facts)
        print("\n" + text, flush=True)
        if arguments.out:
            Path(arguments.out).write_text(text, encoding="utf-8")
        if arguments.json:
            everything = {"versions": facts, "starts": [asdict(start) for start in anatomy.starts]}
            Path(arguments.json).write_text(json.dumps(everything, indent=1), encoding="utf-8")
    return 1 if any(start.error for start in anatomy.starts) else 0


if __name__ == "__main__":
    sys.exit(main())
