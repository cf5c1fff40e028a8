"""Where the seconds of one start go: the child of ``anatomy.py``, and the clock in it.

Loaded twice in a child: as ``sitecustomize``, which starts the clock as soon as Python is up, and as the program. Each
moment belongs to exactly one phase, the innermost one that is open, so that the phases add up to the whole. What Python
imports is told apart by what the import does: finding, compiling source, loading byte code, running module bodies,
loading extensions. Functions of torch and Triton are wrapped when their modules have been imported; one that a version
does not have is named in the result, and its time is part of what is around it.

Only the time of the main thread counts, and that of threads which Python did not start (autograd runs the backward pass
in one while the main thread waits). Nothing is imported here that Python has not loaded by itself at that point.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

MYPY = False
if MYPY:  # ``typing`` is not loaded yet when this runs, and its import would be a part of what is measured
    from collections.abc import Callable, Sequence
    from typing import Any

ACTIVE = "--anatomy-child"
SPAWNED = "ANATOMY_SPAWNED"  # time.monotonic_ns() of the driver when it started the process
LEAVE = "ANATOMY_LEAVE"  # 1: end with the first step
RESULT = "ANATOMY-RESULT "

# Module -> functions in it -> phase. A name with a dot is a method.
WRAPPED = {
    "triton.runtime.cache": {"triton_key": "key: Triton's files"},
    "triton.compiler.compiler": {"triton_key": "key: Triton's files"},
    "torch._inductor.codecache": {
        "torch_key": "key: torch's files",
        "CacheBase.get_system": "key: host",
        "compiled_fx_graph_hash": "key: graphs",
        "FxGraphCache.prepare_key": "key: graphs",
        "FxGraphCache._lookup_graph": "hit: FX graphs",
        "FxGraphCache.cache_hit_post_compile": "hit: FX graphs",
        "PyCodeCache.load_by_key_path": "generated modules",
        "CppCodeCache.load": "host code",
        "CppPythonBindingsCodeCache.load_pybinding": "host code",
    },
    "torch._functorch._aot_autograd.autograd_cache": {
        "autograd_cache_key": "key: graphs",
        "AOTAutogradCache._lookup": "hit: AOTAutograd",
        "AOTAutogradCache.try_load": "hit: AOTAutograd",
    },
    "torch._dynamo.convert_frame": {"_compile": "tracing"},
    "torch._dynamo.guards": {"CheckFunctionManager.__init__": "guards"},
    "torch._functorch.aot_autograd": {"aot_module_simplified": "AOTAutograd"},
    "torch._inductor.compile_fx": {"compile_fx": "Inductor", "fx_codegen_and_compile": "compile"},
    "torch._inductor.select_algorithm": {"TritonTemplate.__init__": "kernel templates"},
    "torch._inductor.codegen.common": {"KernelTemplate._template_from_string": "kernel templates"},
    "torch._inductor.triton_bundler": {"TritonBundler.read_and_emit": "kernel files"},
    "torch._inductor.async_compile": {"AsyncCompile.wait": "compile: wait"},
    "torch._inductor.cpp_builder": {"CppBuilder.build": "C++ compiler"},
    "triton.runtime.build": {"_build": "C compiler"},
    "torch._inductor.cpu_vec_isa": {"valid_vec_isa_list": "CPU probed"},
    "torch._inductor.runtime.triton_heuristics": {
        "CachingAutotuner.precompile": "kernels: load",
        "CachingAutotuner.run": "kernels: launch",
        "CachingAutotuner.benchmark_all_configs": "kernels: tuning",
        "CachingAutotuner.coordinate_descent_tuning": "kernels: tuning",
    },
    "torch.autograd.graph": {"_engine_run_backward": "backward"},
    "torch.compiler": {"load_cache_artifacts": "restore: mega cache"},
    "bundler.integrations": {"autoload": "hook"},
}
PROBE = "the measuring itself"


class Clock:
    """Seconds by phase; ``start`` is a reading of ``time.monotonic_ns`` from which on everything counts."""

    def __init__(self, start: int, first: str = "start") -> None:
        self.nanoseconds: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.missing: list[tuple[str, str]] = []
        self._stack = [first]
        self._since = start
        self._main = _thread.get_ident()
        self.stopped = False

    def enter(self, phase: str) -> None:
        """Open a phase inside the one that is open."""
        self._charge()
        self._stack.append(PROBE if self._stack[-1] == PROBE else phase)
        self.calls[phase] = self.calls.get(phase, 0) + 1

    def leave(self) -> None:
        """Close the innermost phase."""
        self._charge()
        self._stack.pop()

    def stop(self) -> None:
        """Stop for good."""
        self._charge()
        self.stopped = True

    def _charge(self) -> None:
        now = time.monotonic_ns()
        if not self.stopped:
            phase = self._stack[-1]
            self.nanoseconds[phase] = self.nanoseconds.get(phase, 0) + now - self._since
        self._since = now

    def counts(self) -> bool:
        """Whether the time of this thread is part of what is measured."""
        if self.stopped:
            return False
        number = _thread.get_ident()
        # Threads that Python started are in this table; others are not, or as dummies.
        started = getattr(sys.modules.get("threading"), "_active", {}).get(number)
        return number == self._main or started is None or type(started).__name__ == "_DummyThread"

    def timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        """Return ``function``, timed as ``phase``."""

        def run(*given: Any, **named: Any) -> Any:
            if not self.counts():
                return function(*given, **named)
            self.enter(phase)
            try:
                return function(*given, **named)
            finally:
                self.leave()

        for name in ("__name__", "__qualname__", "__doc__", "__module__", "__wrapped__", "cache_clear", "cache_info"):
            if hasattr(function, name):
                setattr(run, name, getattr(function, name))
        return run

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        """Time a function of a module, or a method (``Class.method``); what is not there is noted."""
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        raw = vars(owner).get(last) if owner is not None else None
        if isinstance(raw, (staticmethod, classmethod)):
            setattr(owner, last, type(raw)(self.timed(raw.__func__, phase)))
        elif callable(raw):
            setattr(owner, last, self.timed(raw, phase))
        else:
            self.missing.append((name, phase))


def watch_imports(clock: Clock, wrapped: dict[str, dict[str, str]]) -> None:
    """Tell apart what imports do, and time functions once their modules have been imported."""
    external: Any = sys.modules["_frozen_importlib_external"]
    clock.wrap(external, "PathFinder.find_spec", "import: find")
    clock.wrap(external, "SourceLoader.get_code", "import: load byte code")
    clock.wrap(external, "SourceLoader.source_to_code", "import: compile source")
    clock.wrap(external, "ExtensionFileLoader.create_module", "import: extensions")
    clock.wrap(external, "ExtensionFileLoader.exec_module", "import: extensions")
    run_body = external.SourceFileLoader.exec_module
    timed = clock.timed(run_body, "import: run modules")

    def exec_module(self: Any, module: Any) -> None:
        timed(self, module)
        functions = wrapped.get(module.__name__, {})
        for name, phase in functions.items():
            clock.wrap(module, name, phase)

    external.SourceFileLoader.exec_module = exec_module


def process_start() -> int:
    """Return when this process was started, as ``time.monotonic_ns`` counts, to a hundredth of a second."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return since_boot - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + time.monotonic_ns()


def install() -> Clock:
    """Start the clock."""
    spawned, started = int(os.environ[SPAWNED]), process_start()
    clock = Clock(min(spawned, started), "before Python")
    if started - spawned > 50_000_000:  # something ran before: a restore, say; else it is the fork
        clock.nanoseconds["before Python"] = started - spawned
        clock._since = started
    clock._stack = ["start"]
    watch_imports(clock, WRAPPED)
    return clock


# -- the program -------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str], clock: Clock) -> None:
    """Take the first step of a workload, and print where the time went."""
    workload, device, mega = arguments
    clock.enter("the rest")
    import torch

    if mega.startswith("load="):
        with open(mega[5:], "rb") as file:
            torch.compiler.load_cache_artifacts(file.read())
    if device == "cuda":
        clock.enter("device")
        torch.cuda.init()
        torch.zeros(1, device="cuda").add_(1).item()
        torch.set_float32_matmul_precision("high")
        clock.leave()
    clock.enter(PROBE)
    sys.path.insert(0, os.environ["ANATOMY_SCRIPTS"])
    import prove_inductor

    prepare = getattr(prove_inductor, workload)(torch, device, small=device == "cpu")
    clock.leave()
    outputs = prepare(True)
    if device == "cuda":
        torch.cuda.synchronize()
    clock.stop()
    report(torch, clock, outputs)
    if mega.startswith("save="):
        saved = torch.compiler.save_cache_artifacts()
        if saved is not None:
            with open(mega[5:], "wb") as file:
                file.write(saved[0])
    if os.environ.get(LEAVE) == "1":
        # Else it waits some seconds for compile workers that are still starting.
        os._exit(0)


def report(torch: Any, clock: Clock, outputs: dict[str, Any]) -> None:
    """Print the result as one line of JSON."""
    import json

    from torch._dynamo.utils import counters

    wanted = ("fxgraph_cache_", "triton_bundler_", "bundler_")
    seen = {name: value for name, value in counters["inductor"].items() if name.startswith(wanted)}
    seen.update({name: value for name, value in counters["aot_autograd"].items() if name.startswith("autograd_cache")})
    result = {
        "seconds": {phase: value / 1e9 for phase, value in clock.nanoseconds.items()},
        "calls": clock.calls,
        "missing": clock.missing,
        "counters": seen,
        "modules": len(sys.modules),
        "sums": {name: float(tensor.detach().double().sum()) for name, tensor in sorted(outputs.items())},
    }
    print("\n" + RESULT + json.dumps(result), flush=True)


if __name__ == "__main__":
    import sitecustomize  # type: ignore[import-not-found]

    main(sys.argv[2:], sitecustomize.clock)
elif sys.orig_argv[2:3] == [ACTIVE]:
    clock = install()
