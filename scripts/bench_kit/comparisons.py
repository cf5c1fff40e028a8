"""What is compared with what. Each group is measured in turn, on one input, and becomes a table."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_kit import trace
from bench_kit.context import Bench, Command, floor_command, our_command, tar_stage, tar_zstd_stages
from bench_kit.inputs import Input
from bench_kit.measure import Side
from bench_kit.processes import BenchError, Sample
from bench_kit.web import WebServer

HIGHEST = 22  # zstd's own; `pack --level` takes no higher


def bundle(level: int) -> str:
    """Name of the side that packs at a level."""
    return f"bundle, level {level}"


def tar_zstd(level: int, *, long: bool = True, threads: int = 0) -> str:
    """Name of the side that pipes tar into zstd; also what is typed."""
    return f"tar | zstd -{level}" + " --long=27" * long + f" -T{threads}" * bool(threads)


# -- packing -----------------------------------------------------------------------------------------------------------


def pack(bench: Bench, input: Input) -> None:
    """Processes that pack: ours to stdout, which is not synced either. Large inputs go without floors."""
    out, tree = bench.place(input, "out"), input.path
    sides = []
    for level in (3, 10):
        sides += [
            bench.packing(bundle(level), [_pack(input, level)], out, ours=True),
            bench.packing(tar_zstd(level), tar_zstd_stages(tree, level), out),
        ]
        if not input.large:
            lowest = floor_command("pack", bench.plan(input), str(level))
            sides += [
                bench.packing(f"floor, level {level}", [lowest], out),
                bench.packing(tar_zstd(level, threads=2), tar_zstd_stages(tree, level, "-T2"), out),
            ]
    sides += [
        bench.packing(tar_zstd(3, long=False), [tar_stage(tree), ["zstd", "-3", "-q", "-c"]], out),
        bench.packing("tar | gzip", [tar_stage(tree), ["gzip", "-c"]], out),
        bench.restoring("cp -r", [["cp", "-r", tree, out.with_name("copy")]], out.with_name("copy"), make=False),
    ]
    bench.measure(input, "pack", sides)


def pack_synced(bench: Bench, input: Input) -> None:
    """Processes that pack to a file and bring it to the disk."""
    out = bench.place(input, "synced")
    script = 'tar -C "$1" -cf - . | zstd -3 --long=27 -q -c >"$2" && sync "$2"'
    theirs: Command = ["sh", "-c", script, "sh", input.path, out]
    sides = [
        bench.packing(bundle(3), [our_command("pack", input.root, "-o", out, "-q")], out, ours=True, synced=True),
        bench.packing(tar_zstd(3), [theirs], out, synced=True),
    ]
    bench.measure(input, "pack, synced", sides)


def pack_high(bench: Bench, input: Input) -> None:
    """The highest level; slow, so in fewer rounds. No floor: a writer may split the work, or choose how hard to try."""
    out = bench.place(input, "out")
    lowest = floor_command("pack", bench.plan(input), str(HIGHEST))
    sides = [
        bench.packing(bundle(HIGHEST), [_pack(input, HIGHEST)], out, ours=True),
        bench.packing(tar_zstd(19), tar_zstd_stages(input.path, 19), out),
        bench.packing(f"zstd alone, one thread, level {HIGHEST}", [lowest], out),
        bench.packing(bundle(19), [_pack(input, 19)], out, ours=True),
    ]
    bench.measure(input, "pack, highest", sides, min(bench.rounds, 3))


def pack_inside(bench: Bench, input: Input) -> None:
    """The same inside a process, where no interpreter starts."""
    reference = bench.bundle(input)
    sides = []
    for level in (3, 10):
        sides += [
            bench.working(bundle(level), "pack", root=input.root, level=level, ours=True),
            bench.working(f"tarfile | zstandard -{level} --long=27", "python_pack", root=input.root, level=level),
            bench.working(f"floor, level {level}", "floor_pack", root=input.root, bundle=reference, level=level),
        ]
    bench.measure(input, "pack, in a process", sides, bench.many)


def _pack(input: Input, level: int) -> Command:
    return our_command("pack", input.root, "-o", "-", "--level", str(level), "-q")


# -- restoring ---------------------------------------------------------------------------------------------------------


def _unpack(source: Path, into: Path, *more: str) -> list[Command]:
    return [our_command("unpack", source, "--into", into, "-q", *more)]


def _untar(source: Path, into: Path) -> list[Command]:
    return [["zstd", "-d", "--long=27", "-q", "-c", source], ["tar", "-C", into, "-xf", "-"]]


def restore(bench: Bench, input: Input) -> None:
    """Processes that restore, none of which syncs."""
    into = bench.place(input, "restored")
    full, runtime = bench.bundle(input), bench.bundle(input, profile="runtime")
    sides = [
        bench.restoring("unpack", _unpack(full, into, "--no-sync"), into, ours=True, make=False),
        bench.restoring("zstd -d | tar x", _untar(bench.archive(input), into), into),
        *([] if input.large else [bench.restoring("floor", [floor_command("unpack", bench.plan(input), into)], into)]),
        bench.restoring("unpack, runtime profile", _unpack(runtime, into, "--no-sync"), into, ours=True, make=False),
        bench.restoring("cp -r", [["cp", "-r", input.path, into]], into, make=False),
    ]
    bench.measure(input, "restore", sides)


def restore_synced(bench: Bench, input: Input) -> None:
    """Processes that restore and bring what they wrote to the disk."""
    into = bench.place(input, "restored")
    script = 'zstd -d --long=27 -q -c "$1" | tar -C "$2" -xf - && sync -f "$2"'
    peer: Command = ["sh", "-c", script, "sh", bench.archive(input), into]
    sides = [
        bench.restoring("unpack", _unpack(bench.bundle(input), into), into, ours=True, make=False, synced=True),
        bench.restoring("zstd -d | tar x; sync -f", [peer], into, synced=True),
    ]
    bench.measure(input, "restore, synced", sides, min(bench.rounds, 3))


def restore_inside(bench: Bench, input: Input) -> None:
    """The same inside a process: the bundle's bytes are in memory, as are those of the files for the floor."""
    into = bench.place(input, "restored")
    source = bench.bundle(input)
    sides = [
        bench.working("unpack", "unpack", bundle=source, into=into, ours=True),
        bench.working("floor: decode, hash, create", "floor_unpack", bundle=source, tree=input.path, into=into),
        bench.working("create alone", "floor_create", tree=input.path, into=into),
        bench.working("zstandard | tarfile", "python_unpack", archive=bench.archive(input), into=into),
    ]
    bench.measure(input, "restore, in a process", sides, bench.many)
    bench.worker.call("forget")


def again(bench: Bench, input: Input) -> None:
    """Processes that restore what is all there: a look at everything, and no write."""
    tree = bench.installed(input)
    command, lowest = _unpack(bench.bundle(input), tree, "--no-sync"), floor_command("again", tree)
    sides = [
        Side("unpack", lambda: bench.launcher.run(*command), ours=True),
        Side("read and hash", lambda: bench.launcher.run(lowest)),
        Side("floor: with a command line", lambda: bench.launcher.run(floor_command("command", tree))),
    ]
    bench.measure(input, "all there", sides)


def again_inside(bench: Bench, input: Input) -> None:
    """The same inside a process."""
    tree, source = bench.installed(input), bench.bundle(input)
    sides = [
        bench.working("unpack", "unpack_again", bundle=source, tree=tree, ours=True),
        bench.working("read and hash", "floor_again", tree=tree),
    ]
    bench.measure(input, "all there, in a process", sides, bench.many)


# -- torch -------------------------------------------------------------------------------------------------------------


def torch_bundler(bench: Bench, input: Input) -> None:
    """torch's own bundler, and ours in its place, in one process that has torch imported."""
    tree, into = input.path, bench.place(input, "emitted")
    ours: dict[str, Any] = {"tree": tree, "torch": True, "ours": True}
    theirs: dict[str, Any] = {"tree": tree, "torch": True}
    sides = [
        bench.working("collect, runtime", "ours_collect", profile="runtime", **ours),
        bench.working("torch: collect, pickle", "torch_collect", **theirs),
        bench.working("collect, full", "ours_collect", profile="full", **ours),
        bench.working("emit, runtime", "ours_emit", profile="runtime", into=into, **ours),
        bench.working("torch: unpickle, emit", "torch_emit", into=into, **theirs),
        bench.working("emit, full", "ours_emit", profile="full", into=into, **ours),
    ]
    for loading, words in ((False, ""), (True, ", entry loaded too")):
        more: dict[str, Any] = {"unpickle": loading, "there": True, "into": into}
        sides += [
            bench.working(f"check{words}", "ours_emit", profile="runtime", **ours, **more),
            bench.working(f"torch: check{words}", "torch_emit", **theirs, **more),
        ]
    sides.append(bench.working("floor of a check", "floor_check", tree=tree, profile="runtime", into=into, torch=True))
    bench.measure(input, "torch's bundler", sides, bench.many)


def mega(bench: Bench, input: Input) -> None:
    """torch's mega cache: the same entries saved as one file, and loaded."""
    out, into = bench.place(input, "mega"), bench.place(input, "loaded")
    sides = [
        bench.working("mega cache: save", "mega_save", tree=input.path, out=out, torch=True),
        bench.working("pack()", "pack", root=input.root, level=3, ours=True),
        bench.working("mega cache: load", "mega_load", file=out, into=into, torch=True),
        bench.working("unpack()", "unpack", bundle=bench.bundle(input), into=into, ours=True),
    ]
    bench.measure(input, "mega cache", sides)


def compiling(bench: Bench, input: Input) -> None:
    """What the kernels of a blob take to compile, once, beside the collect that stores them."""
    seconds = bench.torch.call("compile_seconds", tree=input.path, count=24)["seconds"]
    sides = [
        bench.working("collect, runtime", "ours_collect", tree=input.path, profile="runtime", torch=True, ours=True),
        Side("compile from TTIR", lambda: Sample(seconds)),
    ]
    bench.measure(input, "collect and compile", sides)


def hooked(bench: Bench, input: Input) -> None:
    """Bundles of a tree whose FX graph entries hold kernels: these must not be stored twice.

    Entries hold raw copies while something is bundled (``export``, ``run --save``, ``capture``), and else our blob.
    """
    trees = {}
    for name in ("blob", "raw", "no"):
        tree = trees[name] = bench.place(input, f"entries-{name}")
        if not tree.exists():
            size = bench.torch.call("hooked_tree", tree=input.path, into=tree, entries=name)["blobs"]
            bench.place(input, f"entries-{name}.size").write_text(str(size))
    blobs = int(bench.place(input, "entries-blob.size").read_text())
    out = bench.place(input, "out")

    def packed(tree: Path) -> Sample:
        root = replace(input, path=tree)
        sample = bench.launcher.run(_pack(root, 3), stdout=out)
        return replace(sample, size=out.stat().st_size, files=1)

    def added(name: str) -> Sample:
        with_kernels, without = packed(trees[name]), packed(trees["no"])
        return replace(with_kernels, size=max(0, (with_kernels.size or 0) - (without.size or 0)))

    sides = [
        Side("entries as they are", lambda: packed(input.path), ours=True),
        Side("entries with raw copies", lambda: packed(trees["raw"]), ours=True),
        Side("entries with our blob", lambda: packed(trees["blob"]), ours=True),
        Side("entries without kernels", lambda: packed(trees["no"]), ours=True),
        Side("what raw copies add", lambda: added("raw"), ours=True),
        Side("what the blobs add", lambda: added("blob"), ours=True),
        Side("the blobs", lambda: Sample(0.0, size=blobs)),
    ]
    bench.measure(input, "kernels in entries", sides, 1)


# -- small things ------------------------------------------------------------------------------------------------------


def one_kernel(bench: Bench, input: Input) -> None:
    """One kernel out of a bundle; each round another one."""
    source = bench.bundle(input)
    numbers = itertools.count(0, 17)
    state = {"number": 0}

    def read() -> Sample:
        state["number"] = next(numbers)
        return bench.worker.measure("read_kernel", bundle=source, **state)

    sides = [
        Side("read one kernel", read, ours=True),
        Side("floor: decode its frames", lambda: bench.worker.measure("floor_kernel", bundle=source, **state)),
    ]
    bench.measure(input, "one kernel", sides, bench.many)


def inspect(bench: Bench, input: Input) -> None:
    """``inspect`` as a process: of a file, and of a bundle in a store."""
    source = bench.bundle(input)
    imports = "import click, json, msgpack, zstandard"
    with WebServer(source) as url:
        sides = [
            Side("inspect", lambda: bench.launcher.run(our_command("inspect", source)), ours=True),
            Side("floor: imports", lambda: bench.launcher.run([sys.executable, "-c", imports])),
            Side("inspect file://", lambda: bench.launcher.run(our_command("inspect", f"file://{source}")), ours=True),
            Side("inspect http://", lambda: bench.launcher.run(our_command("inspect", url)), ours=True),
            bench.working("inspect()", "inspect", bundle=source, ours=True),
        ]
        bench.measure(input, "inspect", sides, bench.many)


def imports(bench: Bench, input: Input) -> None:
    """Processes that import something and end."""
    programs = {
        "import bundler": "import bundler",
        "python": "pass",
        "import bundler.cli": "import bundler.cli",
        "import bundler.bundle": "import bundler.bundle",
    }
    if bench.has_torch:
        programs["import torch"] = "import torch"
    sides = [
        Side(
            name,
            lambda program=program: bench.launcher.run([sys.executable, "-W", "ignore", "-c", program]),  # type: ignore[misc]
            ours="bundler" in name,
        )
        for name, program in programs.items()
    ]
    bench.measure(input, "import", sides)


def scale(bench: Bench, input: Input) -> None:
    """Ten times the kernels, beside a tenth of them."""
    if input.part is None:
        raise BenchError(f"{input.name} has no tenth")
    part = Input(f"{input.name}, a tenth", input.part, input.kind, "")
    out, into = bench.place(input, "out"), bench.place(input, "restored")
    sides = [
        bench.packing("pack, all", [_pack(input, 3)], out, ours=True),
        bench.packing("pack, a tenth", [_pack(part, 3)], out, ours=True),
        bench.restoring("unpack, all", _unpack(bench.bundle(input), into, "--no-sync"), into, ours=True, make=False),
        bench.restoring("unpack, a tenth", _unpack(bench.bundle(part), into, "--no-sync"), into, ours=True, make=False),
        # Ten times the files may well take a file system more than ten times as long, whoever makes them.
        bench.restoring("zstd -d | tar x, all", _untar(bench.archive(input), into), into),
        bench.restoring("zstd -d | tar x, a tenth", _untar(bench.archive(part), into), into),
    ]
    bench.measure(input, "scale", sides, min(bench.rounds, 3))


def system_calls(bench: Bench, input: Input) -> None:
    """System calls of each side, counted by strace, once."""
    if not shutil.which("strace"):
        raise BenchError("strace is not installed (Debian: apt-get install strace)")
    out, into, log = bench.place(input, "out"), bench.place(input, "restored"), bench.place(input, "strace")
    archive, source, tree = bench.archive(input), bench.bundle(input), input.path
    commands: dict[str, list[Command]] = {
        bundle(3): [_pack(input, 3)],
        tar_zstd(3): tar_zstd_stages(tree, 3),
        "tar | gzip": [tar_stage(tree), ["gzip", "-c"]],
        "unpack": _unpack(source, into, "--no-sync"),
        "zstd -d | tar x": _untar(archive, into),
        "floor": [floor_command("unpack", bench.plan(input), into)],
        "cp -r": [["cp", "-r", tree, into / "copy"]],
    }

    def side(name: str, stages: list[Command]) -> Side:
        def prepare() -> None:
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir()

        ours = name in (bundle(3), "unpack")
        return Side(name, lambda: trace.count(bench.launcher, stages, log, out), prepare, ours=ours)

    bench.measure(input, "system calls", [side(name, stages) for name, stages in commands.items()], 1)
    shutil.rmtree(into, ignore_errors=True)


GROUPS: dict[str, Callable[[Bench, Input], None]] = {
    "pack": pack,
    "pack, highest": pack_high,
    "pack, in a process": pack_inside,
    "pack, synced": pack_synced,
    "restore": restore,
    "restore, in a process": restore_inside,
    "restore, synced": restore_synced,
    "all there": again,
    "all there, in a process": again_inside,
    "torch's bundler": torch_bundler,
    "mega cache": mega,
    "collect and compile": compiling,
    "kernels in entries": hooked,
    "one kernel": one_kernel,
    "inspect": inspect,
    "import": imports,
    "scale": scale,
    "system calls": system_calls,
}

NEED_TORCH = ("torch's bundler", "mega cache", "collect and compile", "kernels in entries")
NEED_KERNELS = ("torch's bundler", "collect and compile", "kernels in entries", "one kernel")  # in directories
