"""Guards: what CI measures on small inputs, and bounds that only a clear regression passes.

Times are those of the processors, least by least: where tests and other jobs share two cores, seconds on the wall were
seen to change three times and more from run to run, processor seconds by a third. One row looks at the wall, for what
waits (a sync, a lock), under a bound to match. Sizes and peaks do not depend on who else works.
"""

from __future__ import annotations

from typing import Any

from bench_kit.comparisons import bundle, tar_zstd
from bench_kit.targets import Target

_MEMORY: dict[str, Any] = {"unit": "MB", "scale": 1e-6, "input": "layers"}
_PACK, _RESTORE, _THERE = "pack, in a process", "restore, in a process", "all there, in a process"
_TORCH, _FLOOR = "torch's bundler", "floor: decode, hash, create"

# fmt: off
GUARDS: tuple[Target, ...] = (
    Target("size-3", "size, default level", "pack", "size", bundle(3), tar_zstd(3), 1.0),
    Target("size-10", "size, level 10", "pack", "size", bundle(10), tar_zstd(10), 0.95),
    Target("blob", "blob in the FX graph entry, beside torch's", _TORCH, "size", "collect, runtime",
           "torch: collect, pickle", 0.1),
    Target("pack", "pack", "pack", "cpu", bundle(3), "floor, level 3", 9.0),
    Target("pack-inside", "pack, in a process", _PACK, "cpu", bundle(3), "floor, level 3", 20.0),
    Target("restore", "restore", "restore", "cpu", "unpack", "floor", 8.0),
    Target("restore-inside", "restore, in a process", _RESTORE, "cpu", "unpack", _FLOOR, 5.0),
    Target("restore-wait", "restore, in a process, on the wall", _RESTORE, "seconds", "unpack", _FLOOR, 40.0),
    Target("restore-torch", "restore of a runtime profile, beside torch's emit", _TORCH, "cpu", "emit, runtime",
           "torch: unpickle, emit", 2.0),
    Target("there", "all there, in a process", _THERE, "cpu", "unpack", "read and hash", 6.0),
    Target("there-torch", "all there, beside torch's check", _TORCH, "cpu", "check", "torch: check", 12.0),
    Target("one-kernel", "one kernel out of a bundle", "one kernel", "cpu", "read one kernel",
           "floor: decode its frames", 12.0),
    Target("inspect", "inspect", "inspect", "cpu", "inspect", "floor: imports", 6.0),
    Target("memory-pack", "peak memory of pack, 60 MB", "pack", "peak", bundle(3), "", 150.0, **_MEMORY),
    Target("memory-restore", "peak memory of unpack, 60 MB", "restore", "peak", "unpack", "", 100.0, **_MEMORY),
    Target("scale-pack", "pack of ten times the kernels", "scale", "cpu", "pack, all", "pack, a tenth", 11.0,
           input="kernels"),
    Target("scale-restore", "restore of ten times the kernels", "scale", "cpu", "unpack, all", "unpack, a tenth",
           11.0, input="kernels"),
)
# fmt: on
