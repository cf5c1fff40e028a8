"""Sides that are measured in turn, and ratios of what they gave, pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_kit.processes import BenchError, Sample


@dataclass(frozen=True)
class Side:
    """One thing to measure. ``prepare`` and ``finish`` are not measured; ``run`` gives what one round took."""

    name: str
    run: Callable[[], Sample]
    prepare: Callable[[], object] = lambda: None
    finish: Callable[[Sample], object] = lambda sample: None
    ours: bool = False


@dataclass
class Table:
    """The samples of a group of sides that were measured in turn: round by round, every side once."""

    input: str
    group: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    left_out: dict[str, str] = field(default_factory=dict)

    def values(self, side: str, measured: str) -> list[float]:
        """Return one field of one side, a value for each round; empty where it was not measured."""
        found = [getattr(sample, measured) for sample in self.samples.get(side, ())]
        return [float(value) for value in found if value is not None]


def interleave(table: Table, sides: Sequence[Side], rounds: int, tell: Callable[[str], None]) -> Table:
    """Measure the sides in turn, A B C A B C, after one round that is thrown away where there are three or more.

    A side that fails is left out from then on, with the reason.
    """
    table.ours |= {side.name for side in sides if side.ours}
    warm_up = rounds > 2
    for number in range(rounds + warm_up):
        for side in sides:
            if side.name in table.left_out:
                continue
            tell(f"{table.input}: {table.group}: {side.name} ({number + 1 - warm_up} of {rounds})")
            try:
                side.prepare()
                sample = side.run()
                side.finish(sample)
            except BenchError as error:
                table.left_out[side.name] = str(error)
                table.samples.pop(side.name, None)
                continue
            if number or not warm_up:
                table.samples.setdefault(side.name, []).append(sample)
    return table


@dataclass(frozen=True)
class Spread:
    """A median, with the least and the greatest of the values."""

    median: float
    least: float
    greatest: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values, of which there is at least one."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 3) -> str:
        """Return ``median (least-greatest)``, or the median alone where they are the same."""
        median, least, greatest = (f"{value:.{digits}g}" for value in (self.median, self.least, self.greatest))
        return median if least == greatest else f"{median} ({least}-{greatest})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours by theirs, pair by pair, in the order in which they were measured."""
    return [a / b for a, b in zip(ours, theirs) if b]


def tree_size(path: Path) -> tuple[int, int]:
    """Return bytes and number of the regular files below a directory, or of a single file."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files), len(files)
