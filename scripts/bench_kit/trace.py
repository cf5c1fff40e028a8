"""System calls of a pipeline, counted by ``strace -f -c``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench_kit.processes import Launcher, Sample


def count(launcher: Launcher, stages: Sequence[Sequence[str | Path]], log: Path, out: Path) -> Sample:
    """Run a pipeline, each process and its children under strace; the seconds are those of the traced run."""
    logs = [log.with_name(f"{log.name}-{number}") for number in range(len(stages))]
    traced = [["strace", "-f", "-c", "-q", "-o", place, *stage] for place, stage in zip(logs, stages)]
    sample = launcher.run(*traced, stdout=out)
    return replace(sample, cpu=None, peak=None, calls=sum(total(place.read_text()) for place in logs))


def total(summary: str) -> int:
    """Return the number of calls in the last row of a summary of ``strace -c``."""
    rows = re.findall(r"^\s*100\.00\s+[\d.]+\s+\d*\s+(\d+)\s.*total$", summary, re.MULTILINE)
    return int(rows[-1])
