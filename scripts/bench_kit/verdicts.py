"""Verdicts on targets and guards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench_kit.measure import Spread, Table, ratios
from bench_kit.targets import Target

Tables = Mapping[tuple[str, str], Table]


@dataclass(frozen=True)
class Verdict:
    """What became of a target; ``word`` is ``met``, ``NOT met``, ``floor`` or ``not measured``."""

    target: Target
    word: str
    value: Spread | None = None
    floor: Spread | None = None
    ours: Spread | None = None
    theirs: Spread | None = None
    cpu: Spread | None = None  # the value in seconds of the processors, where time is measured
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        target = self.target
        told = {"target": target.name, "what": target.what, "input": target.input, "bound": target.bound}
        spreads = {name: _spread_json(getattr(self, name)) for name in ("value", "floor", "ours", "theirs", "cpu")}
        return {**told, "unit": target.unit, "verdict": self.word, **spreads, "reason": self.reason}


def _spread_json(spread: Spread | None) -> dict[str, float] | None:
    if spread is None:
        return None
    return {"median": spread.median, "least": spread.least, "greatest": spread.greatest, "n": spread.count}


def judge(target: Target, tables: Tables, main: str) -> Verdict:
    """Judge a target by the median of its values, which are taken pair by pair."""
    table = tables.get((target.input_name(main), target.group))
    ours = table.values(target.ours, target.measured) if table else []
    theirs = table.values(target.peer, target.measured) if table and target.peer else []
    if not table or not ours or (target.peer and not theirs):
        return Verdict(target, "not measured", reason=_reason(target, table))
    value = Spread.of(_compared(target, ours, theirs))
    floors = table.values(target.floor, target.measured) if target.floor else []
    beside = table.values(target.floor_peer, target.measured) if target.floor_peer else theirs
    floor = Spread.of(_compared(target, floors, beside)) if floors and (beside or not target.peer) else None
    missed = "floor" if floor and floor.median > target.bound else "NOT met"
    word = "met" if value.median <= target.bound else missed
    return Verdict(
        target, word, value, floor, Spread.of(ours), Spread.of(theirs) if theirs else None, _in_cpu(target, table)
    )


def _in_cpu(target: Target, table: Table) -> Spread | None:
    if target.measured != "seconds":
        return None
    ours, theirs = table.values(target.ours, "cpu"), table.values(target.peer, "cpu")
    values = _compared(target, ours, theirs)
    return Spread.of(values) if values else None


def judge_least(target: Target, tables: Tables, main: str) -> Verdict:
    """Judge a guard by the least of ours and the least of theirs: work of others only ever adds to a time."""
    verdict = judge(target, tables, main)
    if verdict.ours is None:
        return verdict
    least = verdict.ours.least / verdict.theirs.least if verdict.theirs else verdict.ours.least * target.scale
    word = "met" if least <= target.bound else "NOT met"
    return replace(verdict, word=word, value=Spread(least, least, least, verdict.ours.count))


def _compared(target: Target, ours: list[float], theirs: list[float]) -> list[float]:
    if not target.peer:
        return [value * target.scale for value in ours]
    return ratios(ours, theirs * len(ours) if len(theirs) == 1 else theirs)  # a peer may be measured once


def _reason(target: Target, table: Table | None) -> str:
    for side in (target.ours, target.peer):
        if table and side in table.left_out:
            return table.left_out[side]
    return "its group was not measured"
