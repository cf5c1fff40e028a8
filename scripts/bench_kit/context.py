"""One run of the bench: its processes, its working directory, what was made there, and the tables."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_kit.inputs import Input
from bench_kit.measure import Side, Table, interleave, tree_size
from bench_kit.processes import HERE, Launcher, Sample, Worker

Command = list[str | Path]


class Bench:
    """Holds the processes, the working directory and the tables of one run.

    Args:
        work: Everything is done below it.
        rounds: How often each side is measured.
        has_torch: Whether torch can be imported.
        sides: (input, group, side) of the sides to measure; None for all.
        tell: Told what is being done.
    """

    def __init__(
        self,
        work: Path,
        *,
        rounds: int,
        has_torch: bool,
        sides: frozenset[tuple[str, str, str]] | None,
        tell: Callable[[str], None],
    ) -> None:
        self.work = work
        self.rounds = rounds
        self.sides = sides
        self.has_torch = has_torch
        self.tables: dict[tuple[str, str], Table] = {}
        self.left_out: dict[tuple[str, str], str] = {}
        self._tell = tell
        self.launcher = Launcher(work)
        self.worker = Worker()
        self._torch: Worker | None = None

    @property
    def torch(self) -> Worker:
        """The process that holds torch, started when it is first asked for."""
        if self._torch is None:
            self._tell("importing torch")
            self._torch = Worker(torch=True)
        return self._torch

    def close(self) -> None:
        """End the processes."""
        for process in (self.launcher, self.worker, self._torch):
            if process is not None:
                process.close()

    @property
    def many(self) -> int:
        """Rounds of what is short: noise of others shows most there, and least where there are many."""
        return max(self.rounds, 7) if self.rounds > 2 else 4

    def measure(self, input: Input, group: str, sides: Sequence[Side], rounds: int | None = None) -> Table:
        """Measure sides in turn, and keep the table; where some sides were chosen, these alone."""
        if self.sides is not None:
            sides = [side for side in sides if (input.name, group, side.name) in self.sides]
        rounds = rounds or (min(self.rounds, 2) if input.large else self.rounds)
        table = self.tables.setdefault((input.name, group), Table(input.name, group))
        return interleave(table, sides, rounds, self._tell)

    # -- places --------------------------------------------------------------------------------------------------------

    def place(self, input: Input, name: str) -> Path:
        """Return a path for something made of an input."""
        path = self.work / "made" / input.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def bundle(self, input: Input, level: int = 3, profile: str = "full") -> Path:
        """Return a bundle of an input, packed on first use."""
        path = self.place(input, f"{profile}-{level}.tbundle")
        if not path.exists():
            self._tell(f"{input.name}: packing {path.name}")
            self.launcher.run(
                our_command("pack", input.root, "-o", path, "--level", str(level), "--profile", profile, "-q")
            )
        return path

    def archive(self, input: Input) -> Path:
        """Return ``tar | zstd -3 --long=27`` of an input."""
        path = self.place(input, "archive.tar.zst")
        if not path.exists() and shutil.which("zstd"):  # without it, what reads the archive fails, and is left out
            self.launcher.run(*tar_zstd_stages(input.path, 3), stdout=path)
        return path

    def plan(self, input: Input) -> Path:
        """Return what ``floor.py`` works on."""
        path = self.place(input, "plan-2")  # with another number when what is in it changes
        if not path.exists():
            self.worker.call("write_plan", bundle=self.bundle(input), tree=input.path, plan=path)
        return path

    def installed(self, input: Input) -> Path:
        """Return a tree that a restore left."""
        path = self.place(input, "installed")
        if not path.exists():
            self.launcher.run(our_command("unpack", self.bundle(input), "--into", path, "--no-sync", "-q"))
        return path

    # -- sides ---------------------------------------------------------------------------------------------------------

    def packing(
        self, name: str, stages: Sequence[Command], out: Path, *, ours: bool = False, synced: bool = False
    ) -> Side:
        """A side whose processes make one file: of their stdout, or, ``synced``, by themselves."""

        def prepare() -> None:
            out.unlink(missing_ok=True)
            if synced:
                os.sync()  # what others left in memory is not its own

        return Side(
            name,
            lambda: self.launcher.run(*stages, stdout=None if synced else out),
            prepare=prepare,
            finish=lambda sample: _weigh(sample, out),
            ours=ours,
        )

    def restoring(
        self,
        name: str,
        stages: Sequence[Command],
        into: Path,
        *,
        ours: bool = False,
        make: bool = True,
        synced: bool = False,
    ) -> Side:
        """A side whose processes fill a directory, which is new each time; ``make``: it must be there."""

        def prepare() -> None:
            shutil.rmtree(into, ignore_errors=True)
            into.parent.mkdir(parents=True, exist_ok=True)
            if make:
                into.mkdir()
            if synced:
                os.sync()

        def finish(sample: Sample) -> None:
            _weigh(sample, into)
            shutil.rmtree(into)

        return Side(name, lambda: self.launcher.run(*stages), prepare, finish, ours)

    def working(self, name: str, function: str, *, torch: bool = False, ours: bool = False, **arguments: Any) -> Side:
        """A side that is a function of a worker."""
        worker = self.torch if torch else self.worker
        return Side(name, lambda: worker.measure(function, **arguments), ours=ours)


def _weigh(sample: Sample, path: Path) -> None:
    sample.size, sample.files = tree_size(path)


def our_command(*parts: str | Path) -> Command:
    """Return our command with arguments."""
    return [sys.executable, "-m", "bundler", *parts]


def floor_command(*parts: str | Path) -> Command:
    """Return a floor of ``floor.py`` as a command."""
    return [sys.executable, str(HERE / "floor.py"), *parts]


def tar_stage(tree: Path) -> Command:
    """Return the command that writes a tree to stdout."""
    return ["tar", "-C", tree, "-cf", "-", "."]


def tar_zstd_stages(tree: Path, level: int, *more: str) -> list[Command]:
    """Return the commands of ``tar | zstd --long=27``."""
    return [tar_stage(tree), ["zstd", f"-{level}", "--long=27", *more, "-q", "-c"]]
