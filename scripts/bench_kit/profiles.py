"""Where the time of a target that is missed goes: a profile of our side, by own time of its functions."""

from __future__ import annotations

from typing import Any

from bench_kit.context import Bench
from bench_kit.inputs import Input
from bench_kit.targets import Target


def profile(bench: Bench, target: Target, input: Input) -> list[dict[str, Any]]:
    """Return the dearest functions of our side of a target; none where no function stands for it."""
    into = bench.place(input, "profiled")
    bundle, tree = {"bundle": bench.bundle(input)}, {"tree": input.path}
    runtime = {**tree, "profile": "runtime"}
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "time-10": ("pack", {"root": input.root, "level": 10}),
        "time-3": ("pack", {"root": input.root, "level": 3}),
        "restore-tar": ("unpack", {**bundle, "into": into}),
        "restore-floor-command": ("unpack", {**bundle, "into": into}),
        "restore-floor": ("unpack", {**bundle, "into": into}),
        "restore-torch": ("ours_emit", {**runtime, "into": into}),
        "there-command": ("unpack_again", {**bundle, "tree": bench.installed(input)}),
        "there": ("unpack_again", {**bundle, "tree": bench.installed(input)}),
        "there-torch": ("ours_emit", {**runtime, "into": into, "there": True, "unpickle": False}),
        "collect": ("ours_collect", runtime),
        "one-kernel": ("read_kernel", {**bundle, "number": 0}),
        "inspect": ("inspect", bundle),
    }
    if target.name not in calls:
        return []
    function, arguments = calls[target.name]
    plain = {name: value if isinstance(value, (int, str)) else str(value) for name, value in arguments.items()}
    worker = bench.torch if function.startswith("ours_") else bench.worker
    rows: list[dict[str, Any]] = worker.call("profile", function=function, arguments=plain)["rows"]
    return rows
