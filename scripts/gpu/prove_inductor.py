#!/usr/bin/env python3
"""Prove on a GPU that entries of torch's FX graph cache, moved to another root, start without compiling a kernel.

Each workload (encoder, resnet, mix) runs in fresh processes, one for each variant:

  cold        empty root, hook on
  hot         the same root, untouched
  warm        a new root that holds the FX graph and AOTAutograd entries of ``cold``, nothing else
  flipped     as warm, one byte of one blob's payload flipped
  gutted      the root of ``cold`` again, one kernel directory without its binary
  absent      as warm, without the hook: TRITON_BUNDLER unset, the package importable
  missing     as warm, and the package cannot be imported
  torch-cold  empty root, torch's own bundler
  torch-warm  a new root that holds the entries of ``torch-cold``
  pinned      of mix alone: cold and warm once more, with TRITON_PTXAS_PATH set to the ptxas that torch ships

What starts from moved entries has a TRITON_HOME of its own, empty as on a new host; the others share one.

hot, warm and torch-warm run several times, interleaved, after everything else; medians and minima are compared. Such
a process ends without waiting for torch's compile workers, which are still starting when the first step is done.
Compiles are counted in every process, compile workers included, by a listener of Triton that the hook has to chain on
to. An FX graph entry does not hold what autotuning chose, so a start from entries alone tunes again, torch's own start
as well as ours: the seconds of that are measured and shown.

Outputs are compared with those of eager mode, within what bf16 and TF32 allow, and with those of ``cold``, within a
tenth of that. The second distance need not be 0: another choice of the autotuner adds in another order, and cuDNN's
backward convolutions add with atomics.

    python3 scripts/gpu/prove_inductor.py --json proof.json --out proof.md --logs logs.tar.gz
    python3 scripts/gpu/prove_inductor.py --self-test          # no GPU: C++ backend, kernels for an absent GPU

Needs torch and Triton; of this package's dependencies msgpack and zstandard. ``--wheel FILE`` unpacks a wheel for the
children, ``--path DIR`` adds a directory to their ``PYTHONPATH``. Exit code 0: every check holds; 1: one does not.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = "PROVE-RESULT "
MAGIC = b"\x89TBL\r\n\x1a\n"
WORKLOADS = ("encoder", "resnet", "mix")
VARIANTS = ("cold", "hot", "warm", "flipped", "gutted", "absent", "missing", "torch-cold", "torch-warm", "pinned")
SINGLE = ("torch-cold", "flipped", "gutted", "absent", "missing", "pinned")
TIMED = ("hot", "warm", "torch-warm")
MOVED = ("warm", "flipped", "absent", "missing", "torch-warm", "pinned-warm")  # as on a host that is new
ENTRIES = ("fxgraph", "aotautograd")
BLOB_TARGET = 8  # torch's raw bundle must be at least this many times as large
WARM_TARGET = 1.03  # of hot
OVERHEAD_TARGET = 0.01  # of the seconds saved
STRICT = ("encoder", "resnet")  # where nothing at all may be compiled; mix has a kernel that torch compiles anyway
EAGER_BOUNDS = {"out": 0.02, "grad": 0.1}  # relative distance of tensors, by norm
COLD_BOUNDS = {"out": 0.002, "grad": 0.01}
MIX_ROUNDS = 4
CHILD_SECONDS = 11  # what a timed child takes at most, for the plan

# Imported by every Python process of a child, compile workers included.
SITECUSTOMIZE = '''
import importlib.util, json, os, sys, threading, time

class _When:
    """Calls a function with a module once that is imported."""
    def find_spec(self, name, path=None, target=None):
        then = _wanted.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            then(module)
        spec.loader.exec_module = exec_module
        return spec

def _listen(knobs):
    knobs.compilation.listener = _heard

def _heard(**told):
    """Writes one line for each call of triton.compile."""
    line = {"pid": os.getpid(), "name": told["metadata"].get("name"), "hit": bool(told["cache_hit"]),
            "us": told["times"].total, "hash": told["metadata"].get("hash"), "ptxas": ""}
    try:  # the version that stands in the cache key of this process; cached, as in the key
        from triton.backends.nvidia.compiler import get_ptxas_version
        line["ptxas"] = get_ptxas_version(told["metadata"]["target"].arch).partition("release ")[2].split(",")[0]
    except Exception:
        pass
    _note(line)

def _note(line):
    fd = os.open(os.environ["PROVE_COMPILES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, (json.dumps(line) + "\\n").encode())
    os.close(fd)

def _watch_builds(build):
    """Writes one line for each call of a C compiler by Triton: launcher stubs, helpers of the driver."""
    real = getattr(build, "_build", None)
    if real is None:
        return
    def _build(name, *given, **named):
        started = time.perf_counter()
        try:
            return real(name, *given, **named)
        finally:
            _note({"pid": os.getpid(), "built": name, "us": (time.perf_counter() - started) * 1e6})
    build._build = _build

def _time_tuning(heuristics):
    """Adds up the seconds for which kernels of several configurations are benchmarked."""
    told = heuristics.prove_tuning = {"seconds": 0.0, "kernels": 0}
    inside = threading.local()
    def timed(method):
        def run(self, *given, **named):
            if getattr(inside, "yes", False):
                return method(self, *given, **named)
            inside.yes = True
            started = time.perf_counter()
            try:
                return method(self, *given, **named)
            finally:
                told["seconds"] += time.perf_counter() - started
                told["kernels"] += 1
                inside.yes = False
        return run
    for name in ("autotune_to_one_config", "benchmark_all_configs", "coordinate_descent_tuning"):
        method = getattr(heuristics.CachingAutotuner, name, None)
        if method is not None:
            setattr(heuristics.CachingAutotuner, name, timed(method))

_wanted = {"triton.knobs": _listen, "triton.runtime.build": _watch_builds,
           "torch._inductor.runtime.triton_heuristics": _time_tuning}
if os.environ.get("PROVE_COMPILES"):
    sys.meta_path.insert(0, _When())
'''

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def user_scale_add(x, y, out, n, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask) * scale + tl.load(y + offsets, mask), mask)
"""


# -- the child: one process of one variant ----------------------------------------------------------------------------


def child(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    result: dict[str, Any] = {"error": ""}
    try:
        result.update(_child(arguments, started))
    except Exception as error:  # noqa: BLE001  it is reported
        traceback.print_exc()
        result["error"] = f"{type(error).__name__}: {error}"
    print(RESULT + json.dumps(result), flush=True)
    if os.environ["PROVE_VARIANT"] in TIMED:
        # Else it waits four seconds for compile workers that nobody needs: time for half a round more.
        os._exit(0)


def _child(arguments: argparse.Namespace, started: float) -> dict[str, Any]:
    root = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    before = tree(root)
    import torch

    imported = time.perf_counter()
    device = "cpu" if arguments.self_test else "cuda"
    if device == "cuda":
        torch.cuda.init()
        torch.zeros(1, device="cuda").add_(1).item()
        torch.set_float32_matmul_precision("high")
    else:
        _plant_kernels()
    workload = {"prime": prime, "encoder": encoder, "resnet": resnet, "mix": mix}[arguments.child]
    prepare = workload(torch, device, small=arguments.self_test)
    begun, busy = time.perf_counter(), time.process_time()
    compiled = prepare(True)
    if device == "cuda":
        torch.cuda.synchronize()
    stepped, busy = time.perf_counter(), time.process_time() - busy
    if arguments.self_test:
        _launch_planted()
    after = tree(root)
    observed = _observed()
    return {
        "pid": os.getpid(),
        "import_seconds": imported - started,
        "first_step_seconds": stepped - begun,
        "first_step_cpu_seconds": busy,  # of all threads of the process, without its compile workers
        "ready_seconds": stepped - started,
        "torch": torch.__version__,
        "files_written": sum(before.get(path) != seen for path, seen in after.items()),
        "bytes_written": sum(seen[0] for path, seen in after.items() if before.get(path) != seen),
        **observed,
        **_compared(torch, compiled, prepare),
        **(_stored(root) if os.environ["PROVE_VARIANT"] in ("cold", "torch-cold") else {}),
    }


def _compared(torch: Any, compiled: dict[str, Any], prepare: Step) -> dict[str, Any]:
    """Compare what the step gave with eager mode and with the cold start, which leaves both for the others."""
    outputs = {name: tensor.detach().cpu() for name, tensor in compiled.items()}
    reference = Path(os.environ["PROVE_REFERENCE"])
    if not reference.exists():
        os.environ["PROVE_COMPILES"] = os.devnull  # what runs eagerly now is not part of the step
        torch._dynamo.reset()
        eager = {name: tensor.detach().cpu() for name, tensor in prepare(False).items()}
        known = {"eager": eager, "cold": outputs}
        if os.environ["PROVE_VARIANT"] == "cold":
            torch.save(known, reference)
    else:
        known = torch.load(reference)
    checksum = hashlib.sha256()
    for name in sorted(outputs):
        tensor = outputs[name].contiguous()  # no NumPy is asked for
        checksum.update(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    return {
        "same_outputs": set(outputs) == set(known["eager"]) == set(known["cold"]),
        "from_eager": {name: _distance(outputs[name], other) for name, other in known["eager"].items()},
        "from_cold": {name: _distance(outputs[name], other) for name, other in known["cold"].items()},
        "checksum": checksum.hexdigest(),
    }


def _distance(a: Any, b: Any) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    value = float((a - b).norm() / b.norm().clamp_min(1e-12))
    return value if value == value else float("inf")


def _observed() -> dict[str, Any]:
    from torch._dynamo.utils import counters

    wanted = ("bundler_", "fxgraph_", "triton_bundler_")
    seen = {name: value for name, value in counters["inductor"].items() if name.startswith(wanted)}
    seen.update({name: value for name, value in counters["aot_autograd"].items() if name.startswith("autograd_cache")})
    stats: dict[str, Any] = {}
    if os.environ.get("PROVE_HIDDEN") != "1":
        import bundler

        stats = bundler.stats()
    heuristics = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    tuning = getattr(heuristics, "prove_tuning", {"seconds": 0.0, "kernels": 0})
    return {"counters": seen, "stats": stats, "tuning": tuning}


def _stored(root: Path) -> dict[str, Any]:
    """Size what the entries hold, by loading them as torch does."""
    import pickle

    raw = blobs = kernels = 0
    for path in _entry_files(root):
        try:
            entry = pickle.loads(path.read_bytes())  # noqa: S301  written by this child
            bundle = getattr(entry, "_triton_bundle", None)
        except Exception:  # noqa: BLE001  an AOTAutograd entry, or one that is broken on purpose
            continue
        artifacts = getattr(bundle, "kernel_artifacts", None)
        if artifacts is None:
            continue
        blob = getattr(artifacts, "blob", None)
        if blob is not None:
            blobs += len(blob)
        else:
            raw += sum(len(artifact.payload) for kernel in artifacts for artifact in kernel.artifacts)
            kernels += len(artifacts)
    return {"blob_bytes": blobs, "raw_bundle_bytes": raw, "raw_bundle_kernels": kernels}


# -- workloads: each returns a function that takes the first step, compiled or eager, and returns tensors by name ------

Step = Callable[[bool], dict[str, Any]]


def prime(torch: Any, device: str, *, small: bool) -> Step:
    """Nothing that is measured: it leaves the byte code of torch's modules, so that the first cold start has it too."""

    def step(compiled: bool) -> dict[str, Any]:
        x = torch.arange(8.0, device=device, requires_grad=True)
        out = (torch.compile(torch.sin) if compiled else torch.sin)(x)
        out.sum().backward()
        return {"out": out}

    return step


def encoder(torch: Any, device: str, *, small: bool) -> Step:
    width, layers, batch, length = (32, 1, 2, 8) if small else (512, 6, 8, 128)
    kind = torch.float32 if small else torch.bfloat16

    def step(compiled: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device, kind)
        x = torch.randn(batch, length, width, device=device, dtype=kind)
        out = (torch.compile(model) if compiled else model)(x)
        out.float().square().mean().backward()
        return {"out": out, "grad": torch.cat([p.grad.flatten() for p in model.parameters()])}

    return step


def resnet(torch: Any, device: str, *, small: bool) -> Step:
    def step(compiled: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        model = _resnet18(torch, small=small).to(device)
        x = torch.randn(*((2, 3, 32, 32) if small else (8, 3, 224, 224)), device=device)
        out = (torch.compile(model) if compiled else model)(x)
        out.square().mean().backward()
        return {"out": out, "grad": torch.cat([p.grad.flatten() for p in model.parameters()])}

    return step


def _resnet18(torch: Any, *, small: bool) -> Any:
    if not small:
        try:
            from torchvision.models import resnet18  # type: ignore[import-not-found, unused-ignore]

            return resnet18(weights=None)
        except Exception as error:  # noqa: BLE001  absent, or for another torch
            print(f"torchvision is not used: {error}", file=sys.stderr)
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
            )
            self.second = nn.Sequential(nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside))
            self.short = nn.Sequential()
            if stride != 1 or inside != outside:
                self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x: Any) -> Any:
            return torch.relu(self.second(self.first(x)) + self.short(x))

    widths = (8, 16) if small else (64, 128, 256, 512)
    parts: list[Any] = [nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    parts.append(nn.MaxPool2d(3, 2, 1))
    for number, width in enumerate(widths):
        parts.append(Block(widths[max(0, number - 1)], width, 1 if number == 0 else 2))
        parts += [] if small else [Block(width, width, 1)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


def mix(torch: Any, device: str, *, small: bool) -> Step:
    """A user-defined Triton kernel, dynamic shapes, max-autotune of one product; on every GPU up to two."""
    import torch._inductor.config as config

    def dynamic(x: Any, w: Any) -> Any:
        return torch.nn.functional.layer_norm((x @ w).softmax(-1) * x, x.shape[-1:]).sin()

    def product(a: Any, b: Any) -> Any:
        return torch.relu(a @ b)

    def user(x: Any, y: Any) -> Any:
        if device == "cpu":
            return x * 3.0 + y
        import triton
        from prove_kernels import user_scale_add  # type: ignore[import-not-found, unused-ignore]

        out = torch.empty_like(x)
        user_scale_add[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), 3.0, BLOCK=256)
        return out.cos()

    def step(compiled: bool) -> dict[str, Any]:
        found = {}
        places = ["cpu"] if device == "cpu" else [f"cuda:{n}" for n in range(min(2, torch.cuda.device_count()))]
        for place in places:
            torch.manual_seed(0)
            x, y = torch.randn(1000, device=place), torch.randn(1000, device=place)
            found[f"user@{place}"] = (torch.compile(user, fullgraph=True) if compiled else user)(x, y)
            run = torch.compile(dynamic, dynamic=True) if compiled else dynamic
            for rows in (48, 80):
                a = torch.randn(rows, 64, device=place, requires_grad=True)
                w = torch.randn(64, 64, device=place, requires_grad=True)
                out = run(a, w)
                out.sum().backward()
                found[f"dynamic{rows}@{place}"] = torch.cat([out.flatten(), a.grad.flatten(), w.grad.flatten()])
        if device == "cpu":
            return found
        a, b = (torch.randn(1024, 1024, device=device, dtype=torch.bfloat16) for _ in range(2))
        with _few_choices(config):
            run = torch.compile(product, mode="max-autotune-no-cudagraphs") if compiled else product
            found["product"] = run(a, b)
        return found

    return step


def _few_choices(config: Any) -> Any:
    changes: dict[str, Any] = {"max_autotune_gemm_backends": "TRITON"}
    if hasattr(getattr(config, "test_configs", None), "max_mm_configs"):
        changes["test_configs.max_mm_configs"] = 4
    return config.patch(changes)


# -- the self-test's stand-in for a GPU: real kernels, put into each graph that is compiled ----------------------------

_planted: list[tuple[int, str]] = []


def _plant_kernels() -> None:
    """Make every compile of an FX graph put two kernels, compiled for an absent GPU."""
    import torch._inductor.compile_fx as compile_fx

    original = compile_fx.fx_codegen_and_compile

    def planted(*given: Any, **named: Any) -> Any:
        from torch._inductor.triton_bundler import TritonBundler

        number = len(_planted)
        for block in (128 << number, 64 << number):
            TritonBundler.put(_compile_for_absent_gpu(block), 0)
        _planted.append((number, ""))
        return original(*given, **named)

    compile_fx.fx_codegen_and_compile = planted


def _compile_for_absent_gpu(block: int) -> str:
    import base64

    import triton
    from prove_kernels import user_scale_add
    from torch._inductor.runtime.runtime_utils import triton_cache_dir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "scale": "fp32", "BLOCK": "constexpr"}
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = triton_cache_dir(0)
    try:
        source = ASTSource(user_scale_add, signature=types, constexprs={(5,): block})
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before
    return base64.b32encode(bytes.fromhex(kernel.hash)).decode().rstrip("=")


def _launch_planted() -> None:
    """Ask Triton for the kernels of every graph, as a launch would: a hit when they were compiled, or restored."""
    from torch._dynamo.utils import counters

    graphs = counters["inductor"]["fxgraph_cache_hit"] + counters["inductor"]["fxgraph_cache_miss"]
    for number in range(graphs):
        for block in (128 << number, 64 << number):
            _compile_for_absent_gpu(block)


# -- the driver --------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One child, and what came of it."""

    workload: str
    variant: str
    round: int = 0
    seconds: float = 0.0
    compiles: int = 0
    compile_hits: int = 0
    compile_seconds: float = 0.0
    compiled: list[str] = field(default_factory=list)  # names
    where: list[str] = field(default_factory=list)  # of each: in the process or in a worker, and by which ptxas
    built: list[str] = field(default_factory=list)  # what Triton had a C compiler make
    build_seconds: float = 0.0
    traced: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    torch_warnings: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def error(self) -> str:
        return str(self.result.get("error", "no result"))

    @property
    def right(self) -> bool:
        """Whether the outputs are those of eager mode and of the cold start, within the bounds."""
        return (
            not self.error
            and bool(self.result.get("same_outputs"))
            and all(
                distance <= bounds["grad" if name == "grad" else "out"]
                for kind, bounds in (("from_eager", EAGER_BOUNDS), ("from_cold", COLD_BOUNDS))
                for name, distance in self.result[kind].items()
            )
        )

    def distance(self, kind: str) -> float | None:
        """The largest distance of an output, ``from_eager`` or ``from_cold``."""
        return max(self.result.get(kind, {}).values(), default=None)

    @property
    def emit_seconds(self) -> float:
        return self.counter("bundler_emit_us") / 1e6

    @property
    def tuning_seconds(self) -> float:
        return float(self.result.get("tuning", {}).get("seconds", 0.0))

    @property
    def step(self) -> float | None:
        seconds = self.result.get("first_step_seconds")
        return None if seconds is None else float(seconds)

    @property
    def cpu(self) -> float | None:
        """CPU seconds of the first step, of all threads of the process."""
        seconds = self.result.get("first_step_cpu_seconds")
        return None if seconds is None else float(seconds)

    @property
    def step_without_tuning(self) -> float | None:
        return None if self.step is None else self.step - self.tuning_seconds

    def counter(self, name: str) -> int:
        return int(self.result.get("counters", {}).get(name, 0))


class Proof:
    def __init__(self, arguments: argparse.Namespace, work: Path, ptxas: str = "") -> None:
        self.arguments = arguments
        self.ptxas = ptxas
        self.work = work
        self.started = time.monotonic()
        self.runs: list[Run] = []
        self.skipped: list[str] = []
        self.lock = threading.Lock()
        self.site = self._make_site()

    def left(self) -> float:
        return float(self.arguments.budget - (time.monotonic() - self.started))

    # .. the environment of children

    def _make_site(self) -> Path:
        site = self.work / "site"
        site.mkdir(parents=True, exist_ok=True)
        (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
        (site / "prove_kernels.py").write_text(KERNELS)
        for wheel in self.arguments.wheel:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(self.work / "wheels")
        # What installing the package does: its code, and the entry point that torch calls.
        package = self.work / "package"
        package.mkdir(exist_ok=True)
        shutil.copytree(REPOSITORY / "bundler", package / "bundler", dirs_exist_ok=True)
        info = package / "triton_bundler-0.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: triton-bundler\nVersion: 0.0\n")
        (info / "entry_points.txt").write_text("[torch.backends]\ntriton_bundler = bundler.integrations:autoload\n")
        return site

    def environment(self, run: Run, root: Path, stem: str) -> dict[str, str]:
        hidden = run.variant == "missing"
        hook = not run.variant.startswith("torch-") and run.variant not in ("absent", "missing")
        dropped = (
            "TRITON_BUNDLER",
            "TRITON_CACHE",
            "TORCHINDUCTOR",
            "PYTHONDONTWRITE",
            "TORCH_LOGS",
            "TORCH_TRACE",
            "TRITON_PTXAS",
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        paths = [str(self.site), *self.arguments.path]
        paths += [str(self.work / "wheels")] * bool(self.arguments.wheel)
        paths += [] if hidden else [str(self.work / "package")]
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths += [path for path in inherited if path and not os.path.isdir(os.path.join(path, "bundler"))]
        environment.update(
            PYTHONPATH=os.pathsep.join(paths),
            PYTHONPYCACHEPREFIX=str(self.work / "pycache"),
            TORCHINDUCTOR_CACHE_DIR=str(root),
            TRITON_HOME=str(self.work / (f"{stem}-home" if run.variant in MOVED else "home")),
            PROVE_COMPILES=str(self.work / "logs" / f"{stem}.compiles"),
            PROVE_HIDDEN="1" if hidden else "0",
            PROVE_VARIANT=run.variant,
            PROVE_REFERENCE=str(self.work / f"reference-{run.workload}.pt"),
            TRITON_BUNDLER_LOG=str(self.work / "logs" / f"{stem}.bundler"),
        )
        if hook:
            environment["TRITON_BUNDLER"] = "1"
        if run.variant.startswith("pinned"):
            environment["TRITON_PTXAS_PATH"] = self.ptxas
        if run.variant == "gutted":
            environment["TORCH_TRACE"] = str(self.work / "logs" / f"{stem}.trace")
        if self.arguments.self_test:
            environment.update(TORCHINDUCTOR_COMPILE_THREADS="1", TRITON_DEFAULT_FP_FUSION="1")
        return environment

    # .. one child

    def run(self, workload: str, variant: str, root: Path, *, round_: int = 0) -> Run:
        run = Run(workload, variant, round_)
        stem = f"{workload}-{variant}-{round_}"
        logs = self.work / "logs"
        logs.mkdir(exist_ok=True)
        limit = float(self.arguments.timeout)
        command = [sys.executable, str(Path(__file__).resolve()), "--child", workload]
        command += ["--self-test"] * self.arguments.self_test
        started = time.monotonic()
        output, ended = _call(command, self.environment(run, root, stem), limit, logs / f"{stem}.log")
        run.seconds = time.monotonic() - started
        self._read(run, output, ended, stem)
        with self.lock:
            self.runs.append(run)
            self._say(run)
        return run

    def _read(self, run: Run, output: str, ended: str, stem: str) -> None:
        run.log = str(self.work / "logs" / f"{stem}.log")
        lines = [line for line in output.splitlines() if line.startswith(RESULT)]
        run.result = json.loads(lines[-1][len(RESULT) :]) if lines else {"error": ended or "no result"}
        if ended and not run.result.get("error"):
            run.result["error"] = ended
        for line in _lines(self.work / "logs" / f"{stem}.compiles"):
            told = json.loads(line)
            if "built" in told:
                run.built.append(told["built"])
                run.build_seconds += told["us"] / 1e6
                continue
            run.compiles += not told["hit"]
            run.compile_hits += told["hit"]
            run.compile_seconds += 0 if told["hit"] else told["us"] / 1e6
            if not told["hit"]:
                run.compiled.append(told["name"])
                place = "in the process" if told["pid"] == run.result.get("pid") else "in a compile worker"
                run.where.append(f"{told['name']} {place}" + f", ptxas {told['ptxas']}" * bool(told["ptxas"]))
        run.warnings = [line for line in _lines(self.work / "logs" / f"{stem}.bundler") if " bundler WARNING " in line]
        traces = (self.work / "logs" / f"{stem}.trace").glob("*")
        text = "\n".join("\n".join(_lines(path)) for path in traces)
        run.traced = [name for name in ("bundler_collect", "bundler_emit") if f'"name": "{name}"' in text]
        run.torch_warnings = output.count("unable to load compiled graph") + output.count("Failed to reload cubin")

    def _say(self, run: Run) -> None:
        step = run.result.get("first_step_seconds")
        print(
            f"[{time.monotonic() - self.started:6.1f} s] {run.workload:8} {run.variant:10} #{run.round} "
            f"process {run.seconds:5.1f} s, first step {step if step is None else round(step, 2)} s, "
            f"compiled {run.compiles}, fx {run.counter('fxgraph_cache_hit')}/{run.counter('fxgraph_cache_miss')}, "
            f"restored {run.counter('bundler_emit_kernels')}, tuning {run.tuning_seconds:.2f} s, "
            f"warnings {len(run.warnings)}"
            + (f", compiled {'; '.join(run.where)}" if 0 < run.compiles < 4 else "")
            + (f", built {', '.join(run.built)} in {run.build_seconds:.2f} s" if run.built else "")
            + (f", ERROR {run.error}" if run.error else ""),
            flush=True,
        )
        if run.error:
            print("".join(f"    | {line}\n" for line in _lines(Path(run.log))[-40:]), flush=True)

    # .. the plan

    def prove(self) -> None:
        arguments = self.arguments
        wanted = arguments.variants
        self.run("prime", "torch-cold", self.work / "prime")
        self.runs.clear()
        for workload in arguments.cases:
            self.run(workload, "cold", self.work / workload / "cold")
            self._keep_entries(workload, "cold")
        with ThreadPoolExecutor(arguments.lanes) as pool:
            jobs = [
                pool.submit(self._variant, workload, variant)
                for workload in arguments.cases
                for variant in SINGLE
                if variant in wanted and self._applies(workload, variant)
            ]
            for job in jobs:
                job.result()
        self._rounds(self._plan(wanted))

    def _applies(self, workload: str, variant: str) -> bool:
        if variant == "missing":
            return bool(workload == self.arguments.cases[0])
        return variant != "pinned" or (workload == "mix" and self.ptxas != "")

    def _plan(self, wanted: Sequence[str]) -> list[tuple[str, str, int]]:
        """Return the timed runs in their order: round by round, torch-warm in every second one."""
        plan = []
        for round_ in range(self.arguments.repeats):
            for workload in self.arguments.cases:
                if workload in STRICT or round_ < MIX_ROUNDS:
                    variants = [v for v in TIMED if v in wanted and (v != "torch-warm" or round_ % 2 == 0)]
                    # The first of a pair has no advantage: the order turns after two rounds, those with torch-warm too.
                    plan += [(workload, v, round_) for v in (variants if round_ % 4 < 2 else reversed(variants))]
        return plan

    def _rounds(self, plan: Sequence[tuple[str, str, int]]) -> None:
        for number, (workload, variant, round_) in enumerate(plan):
            owed = sum(later[2] == 0 for later in plan[number + 1 :])  # each has one round, whatever the time
            if round_ and self.left() < CHILD_SECONDS * (1 + owed):
                self.skipped.append(f"{workload} {variant} #{round_}: out of time")
            else:
                self._variant(workload, variant, round_)

    def _keep_entries(self, workload: str, variant: str) -> None:
        root, kept = self.work / workload / variant, self.work / workload / f"entries-{variant}"
        for name in ENTRIES:
            if (root / name).is_dir():
                shutil.copytree(root / name, kept / name)

    def _variant(self, workload: str, variant: str, round_: int = 0) -> None:
        if variant == "pinned":
            self.run(workload, "pinned-cold", self.work / workload / "pinned-cold")
            self._keep_entries(workload, "pinned-cold")
            variant = "pinned-warm"
        try:
            root = self._prepare(workload, variant, round_)
        except Exception as error:  # noqa: BLE001  it is reported
            traceback.print_exc()
            with self.lock:
                self.runs.append(Run(workload, variant, round_, result={"error": f"not prepared: {error}"}))
            return
        self.run(workload, variant, root, round_=round_)
        if variant == "gutted":
            # `hot` is to find an untouched cache, in the place that it was made in.
            shutil.rmtree(root)
            os.rename(self.work / workload / "untouched", root)
        if variant == "torch-cold":
            self._keep_entries(workload, variant)

    def _prepare(self, workload: str, variant: str, round_: int) -> Path:
        base = self.work / workload
        root = base / f"{variant}-{round_}"
        if variant == "hot":
            return base / "cold"
        if variant == "torch-cold":
            return base / "torch-cold"
        if variant == "gutted":
            shutil.copytree(base / "cold", base / "untouched", symlinks=True)
            gut(base / "cold")
            return base / "cold"
        source = {"torch-warm": "torch-cold", "pinned-warm": "pinned-cold"}.get(variant, "cold")
        shutil.copytree(base / f"entries-{source}", root)
        if variant == "flipped":
            flip(root)
        return root


def _call(command: Sequence[str], environment: dict[str, str], limit: float, log: Path) -> tuple[str, str]:
    """Run a child; returns its output, and how it ended when not well. Its whole process group goes with it."""
    with open(log, "w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, cwd=log.parent,
        )  # fmt: skip
        ended = ""
        try:
            code = process.wait(limit)
            ended = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            ended = f"killed after {limit:.0f} s"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            process.wait()
        file.seek(0)
        return file.read(), ended


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def tree(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            found[os.path.relpath(path, root)] = (status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def _entry_files(root: Path) -> Iterator[Path]:
    for name in ENTRIES:
        yield from sorted(path for path in (root / name).rglob("*") if path.is_file())


def blobs_in(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (offset, size of header, index and signature, size) of each blob in a pickle."""
    sys.path.insert(0, str(REPOSITORY)) if str(REPOSITORY) not in sys.path else None
    from bundler.formats._header import HEADER_SIZE, Header

    at = data.find(MAGIC)
    while at >= 0:
        header = Header.decode(data[at : at + HEADER_SIZE])
        yield at, header.payload_offset, header.bundle_size
        at = data.find(MAGIC, at + header.bundle_size)


def flip(root: Path) -> None:
    """Flip one byte in the middle of the payload of the largest blob."""
    found = []
    for path in _entry_files(root):
        data = path.read_bytes()
        found += [(size, path, at, payload) for at, payload, size in blobs_in(data)]
    if not found:
        raise RuntimeError("no entry holds a blob")
    size, path, at, payload = max(found)
    changed = bytearray(path.read_bytes())
    changed[at + (payload + size) // 2] ^= 0xFF
    path.write_bytes(changed)


def gut(root: Path) -> None:
    """Take the binary out of one kernel directory that a blob holds."""
    keys = set()
    for path in _entry_files(root):
        data = path.read_bytes()
        for at, _, size in blobs_in(data):
            from bundler.reading import opened

            with opened(data[at : at + size]) as reader:
                keys |= {(entry.root, entry.path) for entry in reader.index.entries}
    for device, key in sorted(keys):
        for binary in (root / "triton" / device / key).glob("*.cubin"):
            binary.unlink()
            return
    raise RuntimeError(f"no kernel of {len(keys)} has a .cubin below {root}/triton")


# -- what came of it ---------------------------------------------------------------------------------------------------


@dataclass
class Check:
    name: str
    ok: bool
    detail: str


class Verdict:
    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.checks: list[Check] = []
        self.notes: list[str] = []

    def of(self, workload: str, variant: str) -> list[Run]:
        return [run for run in self.proof.runs if (run.workload, run.variant) == (workload, variant)]

    def median(self, workload: str, variant: str, get: Callable[[Run], float | None]) -> float | None:
        values = [value for run in self.of(workload, variant) if (value := get(run)) is not None]
        return statistics.median(values) if values else None

    def step(self, workload: str, variant: str) -> float | None:
        return self.median(workload, variant, lambda run: run.step)

    def least(self, workload: str, variant: str, get: Callable[[Run], float | None]) -> float | None:
        return min((value for run in self.of(workload, variant) if (value := get(run)) is not None), default=None)

    def needed_anyway(self, workload: str) -> Counter[str]:
        """The kernels that torch's own warm start compiles."""
        needed: Counter[str] = Counter()
        if workload not in STRICT:
            for run in self.of(workload, "torch-warm"):
                needed |= Counter(run.compiled)
        return needed

    def check(self, name: str, ok: bool, detail: str) -> None:
        self.checks.append(Check(name, ok, detail))

    def judge(self) -> None:
        for run in self.proof.runs:
            name = f"{run.workload} {run.variant} #{run.round}"
            self.check(f"{name}: right output", run.right, self._why(run))
        for workload in self.proof.arguments.cases:
            for variant in ("cold", "hot", "warm", "flipped", "gutted", "absent", "missing"):
                for run in self.of(workload, variant):
                    getattr(self, f"_{variant}")(run, f"{workload} {variant} #{run.round}")
            self._sizes(workload)
            self._times(workload)

    @staticmethod
    def _why(run: Run) -> str:
        if run.error:
            return run.error
        found = {
            kind: {k: float(f"{v:.2g}") for k, v in run.result[kind].items()} for kind in ("from_eager", "from_cold")
        }
        return ", ".join(f"{kind.replace('_', ' ')} {distances}" for kind, distances in found.items())

    def _cold(self, run: Run, name: str) -> None:
        self.check(
            f"{name}: hook joined", bool(run.result.get("stats", {}).get("joined")), str(run.result.get("stats"))
        )
        self.check(
            f"{name}: blobs made",
            run.counter("bundler_collect") > 0,
            f"{run.counter('bundler_collect_kernels')} kernels",
        )
        self.check(f"{name}: no warning", not run.warnings, "; ".join(run.warnings[:3]))

    def _no_compile(self, run: Run, name: str) -> None:
        misses = run.counter("fxgraph_cache_miss")
        extra = Counter(run.compiled) - self.needed_anyway(run.workload)
        what = "no kernel compiled" if run.workload in STRICT else "no kernel compiled that torch-warm does not compile"
        self.check(f"{name}: {what}", not extra, f"{run.compiles} compiled: {'; '.join(run.where[:5]) or 'none'}")
        self.check(f"{name}: every graph hit", misses == 0 and run.counter("fxgraph_cache_hit") > 0, f"{misses} misses")
        if run.variant in ("hot", "warm"):
            self.check(
                f"{name}: no C compiler called", not run.built, f"{', '.join(run.built)} in {run.build_seconds:.2f} s"
            )

    def _hot(self, run: Run, name: str) -> None:
        self._no_compile(run, name)
        self.check(
            f"{name}: nothing restored", run.counter("bundler_emit_kernels") == 0, str(run.result.get("counters"))
        )
        self.check(f"{name}: no warning", not run.warnings, "; ".join(run.warnings[:3]))

    def _warm(self, run: Run, name: str) -> None:
        self._no_compile(run, name)
        self.check(f"{name}: restored", run.counter("bundler_emit_kernels") > 0, str(run.result.get("counters")))
        self.check(f"{name}: no warning", not run.warnings, "; ".join(run.warnings[:3]))

    def _absent(self, run: Run, name: str) -> None:
        self._no_compile(run, name)

    def _flipped(self, run: Run, name: str) -> None:
        self.check(f"{name}: exactly one warning", len(run.warnings) == 1, "; ".join(run.warnings[:3]))
        extra = Counter(run.compiled) - self.needed_anyway(run.workload)
        self.check(f"{name}: compiled again", bool(extra), f"{run.compiles} compiled")

    def _gutted(self, run: Run, name: str) -> None:
        self._no_compile(run, name)
        repaired = run.result.get("stats", {}).get("kernels_repaired")
        self.check(f"{name}: one kernel repaired", repaired == 1, f"{repaired} repaired")
        self.check(f"{name}: exactly one warning", len(run.warnings) == 1, "; ".join(run.warnings[:3]))
        self.check(f"{name}: in torch's trace", "bundler_emit" in run.traced, str(run.traced))

    def _missing(self, run: Run, name: str) -> None:
        misses = run.counter("fxgraph_cache_miss")
        self.check(f"{name}: torch warned", run.torch_warnings > 0, f"{run.torch_warnings} of torch's warnings")
        self.check(
            f"{name}: compiled again", run.compiles > 0 and misses > 0, f"{run.compiles} compiled, {misses} misses"
        )

    def _sizes(self, workload: str) -> None:
        ours = self.median(workload, "cold", lambda run: run.result.get("blob_bytes"))
        raw = self.median(workload, "torch-cold", lambda run: run.result.get("raw_bundle_bytes"))
        if ours and raw and not self.proof.arguments.self_test:
            self.check(
                f"{workload}: blob at most 1/{BLOB_TARGET} of torch's bundle",
                raw >= BLOB_TARGET * ours,
                f"{ours:,.0f} of {raw:,.0f} bytes: 1/{raw / ours:.1f}",
            )

    def _times(self, workload: str) -> None:
        cold, hot, warm = (self.step(workload, variant) for variant in ("cold", "hot", "warm"))
        if self.proof.arguments.self_test or cold is None or hot is None or warm is None:
            return
        self._ratio(workload, "warm", "hot", "without tuning", lambda run: run.step_without_tuning)
        self._ratio(workload, "warm", "torch-warm", "all in all", lambda run: run.step)
        self._ratio(workload, "warm", "hot", "all in all", lambda run: run.step, judged=False)
        self._ratio(workload, "warm", "hot", "processor time", lambda run: run.cpu, judged=False)
        spent = (self._us(workload, "cold", "bundler_collect_us") + self._us(workload, "warm", "bundler_emit_us")) / 1e6
        saved = cold - warm
        detail = f"{spent:.3f} s for {saved:.2f} s saved: {100 * spent / max(saved, 1e-9):.2f} %"
        self.check(f"{workload}: collect and emit under 1 %", spent < OVERHEAD_TARGET * saved, detail)

    def _ratio(
        self,
        workload: str,
        one: str,
        other: str,
        what: str,
        get: Callable[[Run], float | None],
        *,
        judged: bool = True,
    ) -> None:
        """Compare medians and minima; what disturbs a run only ever adds to it, so the better of the two counts."""
        medians = self.median(workload, one, get), self.median(workload, other, get)
        minima = self.least(workload, one, get), self.least(workload, other, get)
        if None in medians or None in minima:
            return
        ratios = [a / b for a, b in (medians, minima) if a is not None and b]
        detail = (
            f"medians {medians[0]:.2f} and {medians[1]:.2f} s: {ratios[0]:.3f}; "
            f"minima {minima[0]:.2f} and {minima[1]:.2f} s: {ratios[1]:.3f}"
        )
        if judged:
            name = f"{workload}: {one} within {WARM_TARGET} of {other}, {what}"
            self.check(name, min(ratios) <= WARM_TARGET, detail)
        else:
            self.notes.append(f"{workload}: {one} and {other}, {what}: {detail}")

    def _us(self, workload: str, variant: str, name: str) -> float:
        return self.median(workload, variant, lambda run: run.counter(name)) or 0.0

    # .. tables

    def table(self) -> str:
        head = (
            "workload", "variant", "runs", "first step s", "(all)", "ready s", "compiles", "C builds", "FX hit/miss",
            "restored", "unchanged", "files", "bytes", "warnings", "collect ms", "emit ms", "from eager", "from cold",
        )  # fmt: skip
        rows = [head, tuple("---" for _ in head)]
        for workload in self.proof.arguments.cases:
            for variant in (*VARIANTS[:-1], "pinned-cold", "pinned-warm"):
                runs = self.of(workload, variant)
                if runs:
                    rows.append(self._row(workload, variant, runs))
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def _row(self, workload: str, variant: str, runs: list[Run]) -> tuple[str, ...]:
        last = runs[-1]
        steps = [run.result.get("first_step_seconds") for run in runs]
        ready = self.median(workload, variant, lambda run: run.result.get("ready_seconds"))
        step = self.step(workload, variant)
        return (
            workload,
            variant,
            str(len(runs)),
            "-" if step is None else f"{step:.2f}",
            " ".join("-" if value is None else f"{value:.2f}" for value in steps),
            "-" if ready is None else f"{ready:.1f}",
            "/".join(str(run.compiles) for run in runs),
            "/".join(str(len(run.built)) for run in runs),
            f"{last.counter('fxgraph_cache_hit')}/{last.counter('fxgraph_cache_miss')}",
            str(last.counter("bundler_emit_kernels")),
            str(last.counter("bundler_emit_unchanged")),
            str(last.result.get("files_written", "-")),
            f"{last.result.get('bytes_written', 0):,}",
            str(len(last.warnings)),
            f"{self._us(workload, variant, 'bundler_collect_us') / 1000:.0f}",
            f"{self._us(workload, variant, 'bundler_emit_us') / 1000:.0f}",
            self._farthest(runs, "from_eager"),
            self._farthest(runs, "from_cold"),
        )

    @staticmethod
    def _farthest(runs: list[Run], kind: str) -> str:
        distances = [distance for run in runs if (distance := run.distance(kind)) is not None]
        return f"{max(distances):.2g}" if distances else "-"

    def times_table(self) -> str:
        rows = ["| workload | variant | runs | median s | least s | emit ms | tuning s | kernels tuned |"]
        rows[0] += " median without tuning | least without tuning | median CPU s | least CPU s |"
        rows.append("| --- " * 12 + "|")
        for workload in self.proof.arguments.cases:
            for variant in TIMED:
                runs = [run for run in self.of(workload, variant) if run.step is not None]
                if not runs:
                    continue
                cells = [workload, variant, str(len(runs))]
                cells += [f"{how(run.step or 0 for run in runs):.2f}" for how in (statistics.median, min)]
                cells.append(f"{1000 * statistics.median(run.emit_seconds for run in runs):.0f}")
                cells.append(f"{statistics.median(run.tuning_seconds for run in runs):.2f}")
                cells.append(f"{statistics.median(run.result['tuning']['kernels'] for run in runs):.0f}")
                cells += [
                    f"{how(getattr(run, seconds) or 0 for run in runs):.2f}"
                    for seconds in ("step_without_tuning", "cpu")
                    for how in (statistics.median, min)
                ]
                rows.append("| " + " | ".join(cells) + " |")
        return "\n".join(rows)

    def compiled_list(self) -> list[str]:
        """Say what was compiled where everything should have been there, and where the cold start compiled the same."""
        lines, told = [], set()
        for run in self.proof.runs:
            if run.variant.endswith("cold") or run.variant == "missing" or not run.compiled:
                continue
            shown = "; ".join(run.where[:6]) + f"; {len(run.where) - 6} more" * (len(run.where) > 6)
            lines.append(f"- {run.workload} {run.variant} #{run.round}: {shown}")
            if run.variant != "flipped":
                told |= {(run.workload, name) for name in run.compiled}
        for run in self.proof.runs:
            if run.variant.endswith("cold"):
                again = [where for name, where in zip(run.compiled, run.where) if (run.workload, name) in told]
                lines += [f"- before that, {run.workload} {run.variant}: {'; '.join(again)}"] if again else []
        return lines

    def sizes_table(self) -> str:
        rows = ["| workload | kernels | blob bytes | torch's raw bundle | ratio | s compiling | s in blobs |"]
        rows.append("| --- | --- | --- | --- | --- | --- | --- |")
        for workload in self.proof.arguments.cases:
            ours = self.median(workload, "cold", lambda run: run.result.get("blob_bytes")) or 0
            raw = self.median(workload, "torch-cold", lambda run: run.result.get("raw_bundle_bytes")) or 0
            kernels = self._us(workload, "cold", "bundler_collect_kernels")
            compiling = self.median(workload, "cold", lambda run: run.compile_seconds) or 0
            noted = self._us(workload, "warm", "bundler_saved_us") / 1e6
            ratio = f"1/{raw / ours:.1f}" if ours else "-"
            rows.append(
                f"| {workload} | {kernels:.0f} | {ours:,.0f} | {raw:,.0f} | {ratio} | {compiling:.1f} | {noted:.1f} |"
            )
        return "\n".join(rows)


def versions(work: Path) -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    found["cpus"] = str(os.cpu_count())
    program = (
        "import json, os, torch, importlib.metadata as m\n"
        "f = {'torch': torch.__version__, 'cuda': str(torch.version.cuda), 'hip': str(torch.version.hip)}\n"
        "f['gpus'] = ', '.join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or 'none'\n"
        "for n in ('triton', 'torchvision', 'zstandard', 'msgpack'):\n"
        "    try: f[n] = m.version(n)\n"
        "    except Exception as e: f[n] = 'none'\n"
        "p = os.path.join(os.path.dirname(torch.__file__), 'bin', 'ptxas')\n"
        "f['ptxas'] = p if os.access(p, os.X_OK) else ''\n"
        "print(json.dumps(f))"
    )
    try:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(work / "pycache")
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
        )
        found.update(json.loads(done.stdout.splitlines()[-1]))
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split()
        found["driver"] = driver[0] if driver else "none"
    except Exception as error:  # noqa: BLE001  versions are a help, no more
        found["note"] = f"{type(error).__name__}: {error}"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(WORKLOADS), help="comma-separated workloads")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma-separated; cold always runs")
    parser.add_argument("--quick", action="store_true", help="one round of the timed variants, encoder only")
    parser.add_argument("--repeats", type=int, default=10, help="rounds of hot and warm, while time is left")
    parser.add_argument("--budget", type=float, default=600, help="seconds for everything")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one child")
    parser.add_argument("--lanes", type=int, default=4, help="children at a time where time is not measured")
    parser.add_argument("--wheel", action="append", default=[], help="a wheel to unpack for the children")
    parser.add_argument("--path", action="append", default=[], help="a directory for the children's PYTHONPATH")
    parser.add_argument("--work", help="where everything is written (a new temporary directory)")
    parser.add_argument("--logs", help="pack the children's logs into this .tar.gz in the end")
    parser.add_argument("--json", help="write everything as JSON")
    parser.add_argument("--out", help="write the tables as Markdown")
    parser.add_argument("--self-test", action="store_true", help="no GPU: C++ backend, small models, kernels planted")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return 0
    if arguments.quick:
        arguments.cases, arguments.repeats = "encoder", 1
    arguments.cases = arguments.cases.split(",")
    arguments.variants = arguments.variants.split(",")
    unknown = ({*arguments.cases} - {*WORKLOADS}) | ({*arguments.variants} - {*VARIANTS})
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    arguments.path = [os.path.abspath(path) for path in arguments.path]
    arguments.wheel = [os.path.abspath(path) for path in arguments.wheel]
    work = Path(arguments.work or tempfile.mkdtemp(prefix="prove-inductor-")).resolve()
    if work.is_dir() and any(work.iterdir()):
        parser.error(f"{work} is not empty: a start is cold in a new directory only")
    for wheel in arguments.wheel:  # this process reads blobs too
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "wheels")
        sys.path.insert(0, str(work / "wheels"))
    sys.path[:0] = arguments.path
    return report(arguments, work)


VARIANTS_TOLD = """\
`cold`: empty root, hook on. `hot`: that root again. `warm`: a new root with nothing but the FX graph and AOTAutograd
entries of `cold`. `flipped`: as warm, one byte of one blob flipped. `gutted`: the root of `cold`, one kernel directory
without its binary. `absent`: as warm, `TRITON_BUNDLER` unset. `missing`: as warm, the package not importable.
`torch-cold`, `torch-warm`: torch's own bundler. `pinned-cold`, `pinned-warm`: with `TRITON_PTXAS_PATH` set to the ptxas
that torch ships. A start from moved entries has an empty `TRITON_HOME` of its own, as on a new host. "C builds": calls
of a C compiler by Triton, for launcher stubs and helpers of its driver. "from eager" and "from cold": the largest
relative distance of an output or a gradient, by norm, over all runs."""


def report(arguments: argparse.Namespace, work: Path) -> int:
    facts = versions(work)
    ptxas = facts.pop("ptxas", "")
    print(json.dumps(facts), flush=True)
    proof = Proof(arguments, work, ptxas)
    broken = ""
    try:
        proof.prove()
    except KeyboardInterrupt:
        broken = "interrupted"
    except Exception:  # noqa: BLE001  what ran so far is reported all the same
        traceback.print_exc()
        broken = traceback.format_exc(limit=1)
    verdict = Verdict(proof)
    verdict.judge()
    verdict.check("the proof ran to its end", not broken, broken)
    total = time.monotonic() - proof.started
    failed = [check for check in verdict.checks if not check.ok]
    text = told(verdict, facts, total)
    print("\n" + text, flush=True)
    if arguments.out:
        Path(arguments.out).write_text(text, encoding="utf-8")
    if arguments.json:
        everything = {
            "command": command_line(), "versions": facts, "seconds": total, "skipped": proof.skipped,
            "notes": verdict.notes, "checks": [asdict(check) for check in verdict.checks],
            "runs": [_kept(run) for run in proof.runs],
        }  # fmt: skip
        Path(arguments.json).write_text(json.dumps(everything, indent=1), encoding="utf-8")
    if arguments.logs:
        with tarfile.open(arguments.logs, "w:gz") as archive:
            archive.add(work / "logs", "logs")
    return 1 if failed else 0


def _kept(run: Run) -> dict[str, Any]:
    """Return what the JSON says of a run: all but what is long, which is in the logs."""
    left_out = ("compiled", "where", "traced", "warnings", "log")
    kept = {name: value for name, value in asdict(run).items() if name not in left_out}
    kept["warnings"] = len(run.warnings)
    kept["result"] = {name: value for name, value in run.result.items() if name != "stats"}
    return kept


def command_line() -> str:
    """Return the command as anybody would give it: files by name alone where they lay anywhere."""
    given = [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]
    return shlex.join(["python3", "scripts/gpu/prove_inductor.py", *given])


def told(verdict: Verdict, facts: dict[str, str], seconds: float) -> str:
    """Return the results as Markdown."""
    failed = [check for check in verdict.checks if not check.ok]
    held = [check for check in verdict.checks if check.ok]
    single = [check for check in held if "#" in check.name]
    kinds = Counter(check.name.partition(": ")[2] for check in single)
    gpu = facts.get("gpus", "none").split(", ")[0]
    lines = [
        f"# torch.compile with kernels from bundles: proof on {'a CPU' if gpu == 'none' else gpu}", "",
        f"Made by `{command_line()}` in {seconds:.0f} s.", "",
        "; ".join(f"{name} {value}" for name, value in facts.items()) + ".", "",
        VARIANTS_TOLD, "", "## Every variant", "", verdict.table(), "",
        "## First step, and what it waits for", "",
        "Seconds. `hot` finds what autotuning chose on the disk; the other two do not, since torch's entries do not",
        "hold it, and benchmark every kernel of several configurations again. CPU: of all threads of the process, its",
        "compile workers not counted.", "",
        verdict.times_table(), "", "## Sizes", "", verdict.sizes_table(), "",
        "## Compiled in spite of an entry", "", *(verdict.compiled_list() or ["Nothing."]), "",
        "## Checks", "", f"{len(held)} of {len(verdict.checks)} hold.", "",
        *(f"- FAILED: {check.name}: {check.detail}" for check in failed),
        *(f"- {check.name}: {check.detail}".removesuffix(": ") for check in held if "#" not in check.name),
        *(f"- {count} runs: {name}" for name, count in sorted(kinds.items())),
        *(["", "Not judged:", ""] if verdict.notes else []), *(f"- {note}" for note in verdict.notes),
        *(["", "Skipped:", ""] if verdict.proof.skipped else []), *(f"- {text}" for text in verdict.proof.skipped),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
