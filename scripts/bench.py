#!/usr/bin/env python3
"""Measure this package beside its peers, in one run, on one machine, on the same input; ratios, not seconds, count.

    scripts/bench --cache resnet18=PATH --json bench.json --out bench.md --chart bench.svg
    scripts/bench --list                        # inputs, groups and targets
    scripts/bench --only time-10 --only there   # some targets
    scripts/bench --input entry                 # every group on one input, beside the targets
    scripts/bench --quick                       # small inputs, wide bounds: exit code 1 on a clear regression

Sides of a comparison are measured in turn (A B A B), and the ratio is taken pair by pair; a row is judged by the
median. Commands are compared with commands, functions with functions. Targets are those of one cache, the first
``--cache``, or of a tree that the bench makes; some have an input of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from bench_kit import chart, machine, report  # noqa: E402
from bench_kit.comparisons import GROUPS, NEED_KERNELS, NEED_TORCH  # noqa: E402
from bench_kit.context import Bench  # noqa: E402
from bench_kit.guards import GUARDS  # noqa: E402
from bench_kit.inputs import OWN, QUICK, Input, Sizes, make, recorded  # noqa: E402
from bench_kit.processes import BenchError  # noqa: E402
from bench_kit.profiles import profile  # noqa: E402
from bench_kit.targets import TARGETS, Target  # noqa: E402
from bench_kit.verdicts import judge, judge_least  # noqa: E402


def main() -> int:
    """Run the bench; return its exit code."""
    options = _options()
    if options.list:
        print(report.listing())
        return 0
    missing = machine.missing_tools()
    if missing and not options.quick:  # guards that need them are left out
        print(f"scripts/bench: missing: {missing}", file=sys.stderr)
        return 2
    work = Path(options.work or tempfile.mkdtemp(prefix="bench-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    runs: list[report.Run] = []
    try:
        for _ in range(options.runs):
            runs.append(_run(options, work))
            print(report.target_table(runs[-1].verdicts))
            _write(options, runs)
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    return int(options.quick and any(verdict.word == "NOT met" for run in runs for verdict in run.verdicts))


def _write(options: argparse.Namespace, runs: list[report.Run]) -> None:
    if options.json:
        options.json.write_text(json.dumps([run.as_json() for run in runs], indent=1) + "\n")
    if options.out:
        options.out.write_text(report.page(runs, options.chart))
    if options.chart:
        options.chart.write_text(chart.draw(runs))


def _options() -> argparse.Namespace:
    names = sorted({target.name for target in (*TARGETS, *GUARDS)})
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--cache", action="append", default=[], metavar="NAME=PATH", help="a recorded cache; the first is judged")
    add("--input", action="append", default=[], help=f"measure every group on this one: a NAME or {', '.join(OWN)}")
    add("--only", action="append", default=[], choices=names, metavar="TARGET", help="measure and judge these alone")
    add("--rounds", type=int, default=0, help="rounds of each comparison (9; 2 with --quick)")
    add("--runs", type=int, default=1, help="how often all of it is done")
    add("--quick", action="store_true", help="small inputs and wide bounds; exit code 1 when one is passed")
    add("--profile", action="store_true", help="add a profile of each target that is not met")
    add("--work", type=Path, metavar="DIR", help="where to work, and keep inputs for the next run")
    add("--json", type=Path, metavar="FILE")
    add("--out", type=Path, metavar="FILE.md")
    add("--chart", type=Path, metavar="FILE.svg")
    add("--list", action="store_true", help="print inputs, groups and targets")
    return parser.parse_args()


def _run(options: argparse.Namespace, work: Path) -> report.Run:
    started = time.monotonic()
    told = machine.facts(work)
    if not options.quick and told["load_before"] > 0.5:
        _tell(f"the machine is busy (load {told['load_before']:.1f}): figures will be noisy")
    caches = dict(text.split("=", 1) for text in options.cache)
    main_input = next(iter(caches), "own")
    sizes = QUICK if options.quick else Sizes()
    has_torch = importlib.util.find_spec("torch") is not None
    chosen = [target for target in (GUARDS if options.quick else TARGETS) if _is_chosen(target, options)]
    narrow = options.quick or (options.only and not options.input)
    bench = Bench(
        work,
        rounds=options.rounds or (2 if options.quick else 9),
        has_torch=has_torch,
        sides=frozenset(side for target in chosen for side in target.sides(main_input)) if narrow else None,
        tell=_tell,
    )
    shutil.rmtree(work / "made", ignore_errors=True)
    known: dict[str, Input] = {}

    def input_named(name: str) -> Input:
        if name not in known:
            _tell(f"making input {name}")
            known[name] = recorded(name, Path(caches[name]), work) if name in caches else make(name, work, sizes)
        return known[name]

    try:
        for name, group in _plan(chosen, main_input, options):
            if group in NEED_TORCH and not has_torch:
                continue
            try:
                GROUPS[group](bench, input_named(name))
            except BenchError as error:
                bench.left_out[name, group] = str(error)
                _tell(f"{name}: {group}: left out: {error}")
        verdicts = [(judge_least if options.quick else judge)(target, bench.tables, main_input) for target in chosen]
        missed = [verdict.target for verdict in verdicts if verdict.word in ("NOT met", "floor")]
        profiles = {
            target.name: profile(bench, target, input_named(target.input_name(main_input)))
            for target in missed * options.profile
        }
    finally:
        bench.close()
        shutil.rmtree(work / "made", ignore_errors=True)
    return report.Run(
        machine=told,
        inputs=list(known.values()),
        main=main_input,
        verdicts=verdicts,
        tables=bench.tables,
        left_out=bench.left_out,
        seconds=time.monotonic() - started,
        quick=options.quick,
        profiles={name: rows for name, rows in profiles.items() if rows},
    )


def _is_chosen(target: Target, options: argparse.Namespace) -> bool:
    return not options.only or target.name in options.only


def _plan(chosen: list[Target], main_input: str, options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (input, group) in the order of measuring: what the targets need, then what was asked for beside them.

    Without a choice, every input is packed and restored beside the peers, and the judged one in every way.
    """
    caches = _cache_names(options)
    wanted = {(target.input_name(main_input), target.group) for target in chosen}
    for name in options.input:
        wanted |= {(name, group) for group in GROUPS if _applies(group, name)}
    if not (options.only or options.quick or options.input):
        wanted |= {(main_input, group) for group in GROUPS if _applies(group, main_input)}
        wanted |= {(name, group) for name in (*caches, "entry", "layers", "kernels") for group in ("pack", "restore")}
    names = [main_input, *(name for name in (*caches, *OWN) if name != main_input)]
    return sorted(wanted, key=lambda pair: (names.index(pair[0]), list(GROUPS).index(pair[1])))


def _applies(group: str, name: str) -> bool:
    """Whether an input has what a group measures."""
    if group == "scale":
        return name == "kernels"
    return not (name == "entry" and group in NEED_KERNELS) and not (name == "kernels" and group in NEED_TORCH)


def _cache_names(options: argparse.Namespace) -> list[str]:
    """Return the names of the recorded caches."""
    return [text.partition("=")[0] for text in options.cache]


def _tell(text: str) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"\033[K{text}" if sys.stderr.isatty() else f"# {text}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
