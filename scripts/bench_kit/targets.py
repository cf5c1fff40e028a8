"""The targets: which side of which group, beside which other one, under which bound; and the guards of CI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_kit.comparisons import HIGHEST, bundle, tar_zstd


@dataclass(frozen=True)
class Target:
    """One row. With ``peer`` the value is ours by theirs; without, ours alone, in ``unit``.

    Attributes:
        name: Word for ``--only``.
        what: In words.
        group: The group of all its sides.
        measured: Field of a sample.
        ours: The side that is judged.
        peer: The side that it is compared with.
        bound: Most that the value may be.
        floor: The side below which ours cannot go: where that is above the bound, the verdict is ``floor``.
        floor_peer: What the floor is compared with; ``peer`` unless it is given.
        input: Which input; ``main`` is the first recorded cache, or ``own`` without one.
        unit: Of the value, without ``peer``.
        scale: What the value is multiplied with to be in ``unit``.
    """

    name: str
    what: str
    group: str
    measured: str
    ours: str
    peer: str
    bound: float
    floor: str = ""
    floor_peer: str = ""
    input: str = "main"
    unit: str = ""
    scale: float = 1.0

    def input_name(self, main: str) -> str:
        """Return the name of its input, where ``main`` is that of the judged one."""
        return main if self.input == "main" else self.input

    def sides(self, main: str) -> set[tuple[str, str, str]]:
        """Return (input, group, side) of what it needs."""
        sides = (self.ours, self.peer, self.floor, self.floor_peer)
        return {(self.input_name(main), self.group, side) for side in sides if side}


_MS: dict[str, Any] = {"unit": "ms", "scale": 1e3}
_MB: dict[str, Any] = {"unit": "MB", "scale": 1e-6, "input": "layers"}
_HIGH, _INSIDE = "pack, highest", "restore, in a process"
_FLOOR, _TORCH = "floor: decode, hash, create", "torch's bundler"

# fmt: off
TARGETS: tuple[Target, ...] = (
    Target("size-10", "size, level 10", "pack", "size", bundle(10), tar_zstd(10), 0.93),
    Target("time-10", "pack time, level 10", "pack", "seconds", bundle(10), tar_zstd(10), 1.0, "floor, level 10"),
    Target("size-3", "size, default level", "pack", "size", bundle(3), tar_zstd(3), 1.0),
    Target("time-3", "pack time, default level", "pack", "seconds", bundle(3), tar_zstd(3), 1.3, "floor, level 3"),
    Target("size-max", "size, highest level", _HIGH, "size", bundle(HIGHEST), tar_zstd(19), 1.0),
    Target("time-max", "pack time, highest level", _HIGH, "seconds", bundle(HIGHEST), tar_zstd(19), 0.5),
    Target("mega", "size, beside torch's mega cache", "mega cache", "size", "pack()", "mega cache: save", 1 / 13),
    Target("restore-tar", "restore", "restore", "seconds", "unpack", "zstd -d | tar x", 1.3, "floor"),
    Target("restore-floor", "restore, beside its floor, in a process", _INSIDE, "seconds", "unpack", _FLOOR, 1.3),
    Target("restore-floor-command", "restore, beside its floor", "restore", "seconds", "unpack", "floor", 1.3),
    Target("restore-torch", "restore of a runtime profile, beside torch's emit", _TORCH, "seconds", "emit, runtime",
           "torch: unpickle, emit", 0.5),
    Target("there", "all there, in a process", "all there, in a process", "seconds", "unpack", "read and hash", 1.3),
    Target("there-command", "all there", "all there", "seconds", "unpack", "read and hash", 1.3,
           "floor: with a command line"),
    Target("there-torch", "all there, beside torch's check", _TORCH, "seconds", "check", "torch: check", 2.0,
           "floor of a check"),
    Target("one-kernel", "one kernel out of a bundle", "one kernel", "seconds", "read one kernel", "", 40.0,
           "floor: decode its frames", **_MS),
    Target("inspect", "inspect", "inspect", "seconds", "inspect", "", 150.0, "floor: imports", **_MS),
    Target("memory-pack", "peak memory of pack, 2 GB", "pack", "peak", bundle(3), "", 400.0, **_MB),
    Target("memory-restore", "peak memory of unpack, 2 GB", "restore", "peak", "unpack", "", 400.0, **_MB),
    Target("scale-pack", "pack of ten times the kernels", "scale", "seconds", "pack, all", "pack, a tenth", 10.5,
           input="kernels"),
    Target("scale-restore", "restore of ten times the kernels", "scale", "seconds", "unpack, all", "unpack, a tenth",
           10.5, "zstd -d | tar x, all", "zstd -d | tar x, a tenth", input="kernels"),
    Target("blob", "blob in the FX graph entry, beside torch's", _TORCH, "size", "collect, runtime",
           "torch: collect, pickle", 0.1),
    Target("collect", "collect, beside the compile that it stands for", "collect and compile", "seconds",
           "collect, runtime", "compile from TTIR", 0.01),
    Target("twice", "what kernels in entries add to an export", "kernels in entries", "size", "what raw copies add",
           "the blobs", 0.1),
)
# fmt: on
