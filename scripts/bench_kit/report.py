"""What a run says: the table of targets, the page with every figure, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_kit.comparisons import GROUPS
from bench_kit.inputs import OWN, Input
from bench_kit.measure import Spread, Table, ratios
from bench_kit.targets import TARGETS
from bench_kit.verdicts import Verdict


@dataclass
class Run:
    """One run of the bench, whole."""

    machine: dict[str, Any]
    inputs: list[Input]
    main: str
    verdicts: list[Verdict]
    tables: dict[tuple[str, str], Table]
    left_out: dict[tuple[str, str], str]
    seconds: float
    quick: bool
    profiles: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return all of it as JSON values: sizes in bytes, times in seconds."""
        return {
            "machine": self.machine,
            "inputs": [{"name": i.name, "about": i.about} for i in self.inputs],
            "judged_on": self.main,
            "quick": self.quick,
            "seconds": round(self.seconds, 1),
            "targets": [verdict.as_json() for verdict in self.verdicts],
            "groups": [_table_json(table) for table in self.tables.values()],
            "left_out": [{"input": i, "group": g, "reason": why} for (i, g), why in self.left_out.items()],
            "profiles": self.profiles,
        }


def _table_json(table: Table) -> dict[str, Any]:
    sides = {
        name: [{key: value for key, value in asdict(sample).items() if value is not None} for sample in samples]
        for name, samples in table.samples.items()
    }
    return {"input": table.input, "group": table.group, "sides": sides, "left_out": table.left_out}


def listing() -> str:
    """Return inputs, groups and targets, for ``--list``."""
    targets = [
        f"  {target.name:16} {target.what} (at most {target.bound:.4g} {target.unit})".replace(" )", ")")
        for target in TARGETS
    ]
    groups = [f"  {group}" for group in GROUPS]
    inputs = f"  NAME of --cache, {', '.join(OWN)}"
    return "\n".join(["inputs:", inputs, "groups:", *groups, "targets:", *targets])


# -- Markdown ----------------------------------------------------------------------------------------------------------


def page(runs: Sequence[Run], chart: Path | None) -> str:
    """Return the page: targets of every run, then every figure of the last one."""
    last = runs[-1]
    lines = ["# Bench: this package beside its peers", ""]
    lines += [f"Made by `scripts/bench` in {sum(run.seconds for run in runs):.0f} s, {len(runs)} run(s). {_METHOD}", ""]
    lines += [*_machine(last), "", "Inputs:", ""]
    lines += [f"- `{i.name}`: {i.about}" for i in last.inputs] + [""]
    if chart:
        lines += [f"![Targets and sizes]({chart.name})", ""]
    lines += ["## Targets", "", f"Judged on `{last.main}`, but for those that name an input of their own.", ""]
    for number, run in enumerate(runs, start=1):
        lines += [f"### Run {number}", ""] * (len(runs) > 1) + [target_table(run.verdicts), ""]
    lines += ["## Every figure", "", _FIGURES, ""]
    for table in last.tables.values():
        lines += [f"### {table.input}: {table.group}", "", *_side_table(table), ""]
    if last.left_out:
        lines += ["## Left out", ""]
        lines += [f"- {i}: {g}: {_cell(why)}" for (i, g), why in last.left_out.items()] + [""]
    if last.profiles:
        lines += ["## Where the time goes", "", "Of targets that are not met: functions by their own time.", ""]
        for name, rows in last.profiles.items():
            lines += [f"### {name}", "", *_profile_table(rows), ""]
    return "\n".join(lines).rstrip() + "\n"


_METHOD = (
    "Sides of a group are measured in turn, round by round; a value is ours by theirs within one round, and its median "
    "is judged. Commands are measured by a small process that starts them: seconds until the last process of a "
    "pipeline has ended, and the sum of their peaks (which cannot be seen below that of the starter, 10 MB). Nothing "
    "is synced but where a group says so. A floor does only what cannot be left out, in Python, with as few imports as "
    "that takes: where it is above the bound, the verdict is `floor`. `in cpu` is the value in seconds of all "
    "processors, which other work on the machine changes less, and which does not see what runs side by side."
)
_FIGURES = (
    "Medians, with the least and the greatest in brackets. cpu: seconds of all processors. `zstd` without `-T` is what "
    "is typed, and what counts; versions before 1.5.7 then compress in one thread, and later ones do so on fewer than "
    "eight cores. `ratio` is to the first side of the group, round by round."
)


def _machine(run: Run) -> Iterator[str]:
    told = run.machine
    gigabytes = told["memory_bytes"] / 1e9
    yield f"{told['cpu']}, {told['cores']} cores, {gigabytes:.0f} GB, {told['system']}, {told['file_system']};"
    names = ("python", "zstandard", "msgpack", "click", "torch", "triton")
    yield ", ".join(f"{name} {told[name]}" for name in names) + ";"
    yield "; ".join(told[name] for name in ("zstd", "tar", "gzip")) + "."
    yield f"Load before the run: {told['load_before']:.1f}."


def target_table(verdicts: Sequence[Verdict]) -> str:
    """Return one row for each target, as Markdown."""
    head = ("target", "what", "ours", "peer", "value (least-greatest)", "bound", "in cpu", "floor", "verdict")
    return "\n".join(_table(head, map(_target_row, verdicts)))


def _target_row(verdict: Verdict) -> tuple[str, ...]:
    target = verdict.target
    kind = target.measured
    what = target.what if target.input == "main" else f"{target.what} ({target.input})"
    ours = f"{target.ours}: {_amount(verdict.ours, kind)}"
    peer = f"{target.peer}: {_amount(verdict.theirs, kind)}" if target.peer else ""
    value = f"{verdict.value.text()} {target.unit}".strip() if verdict.value else verdict.reason
    floor, cpu = (spread.text() if spread else "" for spread in (verdict.floor, verdict.cpu))
    return target.name, what, ours, peer, value, f"{target.bound:.4g} {target.unit}".strip(), cpu, floor, verdict.word


def _side_table(table: Table) -> list[str]:
    first = next(iter(table.samples), "")
    head = ("side", "seconds", "ratio", "cpu", "peak MB", "bytes", "files", "calls")
    rows = []
    for name, samples in table.samples.items():
        compared = ratios(table.values(name, "seconds"), table.values(first, "seconds"))
        cells = [name, Spread.of(table.values(name, "seconds")).text(), Spread.of(compared).text() if compared else ""]
        cells.append(_median(table.values(name, "cpu"), "{:.3g}"))
        cells.append(_median([value / 1e6 for value in table.values(name, "peak")], "{:.0f}"))
        cells += [_median(table.values(name, measured), "{:,.0f}") for measured in ("size", "files", "calls")]
        rows.append(cells if samples else [name])
    rows += [[name, f"left out: {why}", *[""] * 6] for name, why in table.left_out.items()]
    kept = [n for n in range(len(head)) if n < 2 or any(row[n] for row in rows)]
    return _table([head[n] for n in kept], [[row[n] for n in kept] for row in rows])


def _profile_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    cells = [(row["function"], str(row["calls"]), f"{row['own_ms']:.2f}", f"{row['total_ms']:.2f}") for row in rows]
    return _table(("function", "calls", "own ms", "with what it calls, ms"), cells)


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = [list(head), ["---"] * len(head), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _median(values: Sequence[float], form: str) -> str:
    return form.format(Spread.of(values).median) if values else ""


def _amount(spread: Spread | None, kind: str) -> str:
    if spread is None:
        return "none"
    seconds = f"{spread.median:.3g} s"
    return {"seconds": seconds, "cpu": seconds, "peak": f"{spread.median / 1e6:.0f} MB"}.get(
        kind, f"{spread.median:,.0f}"
    )
