"""What torch's own ``TritonBundler`` does with the hook, one scenario after the other; run by ``test_inductor_seams``.

    python inductor_scenarios.py TREE WORK

``TREE`` is a Triton cache with real kernels, compiled for GPUs that are absent. Prints one JSON object: the name of
each scenario with what was seen.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import shutil
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._inductor.triton_bundler as theirs
from torch._dynamo.utils import counters
from torch._inductor import config

import bundler
from bundler.integrations import inductor, observe
from bundler.integrations.blob import KernelArtifacts, kernel_artifacts
from bundler.model import Unit
from bundler.reading import opened
from bundler.testing import artifacts, programs

TREE, WORK = Path(sys.argv[1]), Path(sys.argv[2])
KEYS = sorted(path.parent.name for path in TREE.glob("*/__grp__*.json"))
TORCH = theirs.TritonBundler
PRISTINE = dict(TORCH.__dict__)

heard: list[str] = []


class _Ear(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            heard.append(record.getMessage())


logging.getLogger("bundler").addHandler(_Ear())
logging.getLogger("torch._inductor.triton_bundler").addHandler(_Ear())


def kernels_of(root: Path, device: int = 0) -> list[str]:
    """Return the path keys of the kernels that a root holds whole, with group files that lead home."""
    found = []
    for group in (root / "triton" / str(device)).glob("*/__grp__*.json"):
        paths = json.loads(group.read_text())["child_paths"].values()
        if all(Path(path).parent == group.parent and Path(path).is_file() for path in paths):
            found.append(group.parent.name)
    return sorted(found)


_roots = iter(range(1000))


def root(*, filled: bool = False) -> Path:
    """Make a new cache root, and let torch use it."""
    place = WORK / f"root{next(_roots)}"
    place.mkdir(parents=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place)
    if filled:
        shutil.copytree(TREE, place / "triton" / "0")
    return place


def made(keys: list[str] = KEYS, *, winners: tuple[str, ...] = (), autotuners: tuple[Any, ...] = ()) -> Any:
    """Compile as torch does, as far as the bundler sees it."""
    TORCH.begin_compile()
    for key in keys:
        TORCH.put(key, 0)
    for key in winners:
        TORCH.put_winner(key)
    if autotuners:
        TORCH._static_autotuners.extend(autotuners)
    try:
        return TORCH.collect()
    finally:
        TORCH.end_compile()


def autotuner(key: str, *, installed: bool = True) -> Any:
    """Return something like torch's static autotuner, with one launcher for the kernel of that key."""
    import base64

    def reload_cubin_path() -> None:
        if not installed:
            raise RuntimeError("Cubin file saved by TritonBundler not found at")

    hash_ = base64.b32decode(key + "=" * (-len(key) % 8)).hex()
    result = SimpleNamespace(
        kernel=SimpleNamespace(hash=hash_), compile_meta={"device": 0}, reload_cubin_path=reload_cubin_path
    )
    return SimpleNamespace(cache_key="key", kernel_name="kernel", kernel=SimpleNamespace(compile_results=[result]))


@contextmanager
def hooked(profile: str = "runtime") -> Iterator[None]:
    """Have the hook on."""
    assert bundler.enable(profile=profile)
    try:
        yield
    finally:
        bundler.disable()


def counted() -> dict[str, int]:
    return {name: value for name, value in counters["inductor"].items() if "bundler" in name}


def blob_of_all() -> bytes:
    root(filled=True)
    with hooked():
        return bytes(made()[0].kernel_artifacts.blob)


# -- scenarios ---------------------------------------------------------------------------------------------------------


def there_and_back() -> dict[str, Any]:
    source = root(filled=True)
    traced: list[tuple[str, Any]] = []
    original = torch._logging.trace_structured

    def trace(kind: str, metadata_fn: Callable[[], Any] = dict, payload_fn: Callable[[], Any] = str, **_: Any) -> None:
        if kind == "artifact" and str(metadata_fn().get("name", "")).startswith("bundler_"):
            traced.append((metadata_fn()["name"], json.loads(payload_fn())))

    torch._logging.trace_structured = trace
    try:
        with hooked():
            bundle, metadata = made()
            target = root()
            restored = TORCH.read_and_emit(pickle.loads(pickle.dumps(bundle)))
            again = TORCH.read_and_emit(bundle)
            stats = bundler.stats()
    finally:
        torch._logging.trace_structured = original
    return {
        "kind": type(bundle.kernel_artifacts).__name__,
        "blob_bytes": len(bundle.kernel_artifacts.blob),
        "raw_bytes": sum(path.stat().st_size for path in (source / "triton").rglob("*") if path.is_file()),
        "names": sorted(metadata.cached_kernel_names),
        "restored_names": sorted(restored.cached_kernel_names),
        "again_names": sorted(again.cached_kernel_names),
        "kernels": kernels_of(target),
        "files": sorted({path.suffix for path in (target / "triton").rglob("*") if path.is_file()}),
        "left_over": [path.name for path in target.rglob("*") if "tmp" in path.name or "stag" in path.name],
        "traced": traced,
        "stats": stats,
        "root": str(target),
    }


def full_profile() -> dict[str, Any]:
    source = root(filled=True)
    with hooked("full"):
        bundle, _ = made()
        target = root()
        TORCH.read_and_emit(bundle)
    names = [sorted(path.name for path in (place / "triton" / "0").glob("*/*")) for place in (source, target)]
    return {"same_files": names[0] == names[1], "kernels": kernels_of(target)}


def read_without_the_hook() -> dict[str, Any]:
    bundle = theirs.TritonBundle(kernel_artifacts(blob_of_all()), [])
    target = root()
    metadata = TORCH.read_and_emit(bundle)
    lazy = kernel_artifacts(b"anything")  # nothing is decoded before somebody asks
    return {
        "kernels": kernels_of(target),
        "names": sorted(metadata.cached_kernel_names),
        "length": len(bundle.kernel_artifacts),
        "first": bundle.kernel_artifacts[0].kernel_hash,
        "lazy": repr(lazy),
    }


def broken_blobs() -> dict[str, Any]:
    good = blob_of_all()
    flipped = bytearray(good)
    flipped[-9] ^= 0xFF
    newer = bytearray(good)
    newer[8] = 99  # version, behind eight bytes of magic
    kinds = {
        "damaged": bytes(flipped),
        "newer": bytes(newer),
        "foreign": b"PK\3\4" * 40,
        "cut": good[:-9],
        "empty": b"",
    }
    seen = {}
    for name, blob in kinds.items():
        for hook in (True, False):
            heard.clear()
            observe._said.clear()
            counters["inductor"].clear()
            target = root()
            bundle = theirs.TritonBundle(kernel_artifacts(blob), [])
            if hook:
                with hooked():
                    metadata = TORCH.read_and_emit(bundle)
            else:
                metadata = TORCH.read_and_emit(bundle)
            seen[f"{name} {'with' if hook else 'without'} hook"] = {
                "warnings": list(heard),
                "failures": counters["inductor"]["bundler_failures"],
                "kernels": kernels_of(target),
                "names": list(metadata.cached_kernel_names),
            }
    return seen


def switched_off() -> dict[str, Any]:
    blob = blob_of_all()
    root(filled=True)
    with hooked():
        os.environ["TRITON_BUNDLER"] = "0"
        try:
            while_on = made()[0].kernel_artifacts  # the variable counts from the moment it is set
            target = root()
            TORCH.read_and_emit(theirs.TritonBundle(kernel_artifacts(blob), []))
        finally:
            del os.environ["TRITON_BUNDLER"]
    os.environ["TRITON_BUNDLER"] = "0"
    try:
        enabled = bundler.enable()
    finally:
        del os.environ["TRITON_BUNDLER"]
    return {"kind": type(while_on).__name__, "count": len(while_on), "kernels": kernels_of(target), "enabled": enabled}


def raw_entries() -> dict[str, Any]:
    blob = blob_of_all()
    source = root(filled=True)
    os.environ["TRITON_BUNDLER_ENTRIES"] = "raw"
    try:
        with hooked():
            bundle, _ = made()
            blob_read = root()
            TORCH.read_and_emit(theirs.TritonBundle(kernel_artifacts(blob), []))
            target = root()
            TORCH.read_and_emit(bundle)
    finally:
        del os.environ["TRITON_BUNDLER_ENTRIES"]
    return {
        "kind": type(bundle.kernel_artifacts).__name__,
        "raw_bytes": sum(len(file.payload) for kernel in bundle.kernel_artifacts for file in kernel.artifacts),
        "source_bytes": sum(path.stat().st_size for path in (source / "triton").rglob("*") if path.is_file()),
        "kernels": sorted(path.name for path in (target / "triton" / "0").iterdir()),
        "kernels_of_a_blob": kernels_of(blob_read),
    }


def torch_switched_off() -> dict[str, Any]:
    blob = blob_of_all()
    seen = {}
    for name in ("bundle_triton_into_fx_graph_cache", "force_disable_caches"):
        root(filled=True)
        with hooked(), config.patch({name: name == "force_disable_caches"}):
            bundle, metadata = made()
            target = root()
            restored = TORCH.read_and_emit(theirs.TritonBundle(kernel_artifacts(blob), []))
        seen[name] = [len(bundle.kernel_artifacts), metadata is None, restored is None, kernels_of(target)]
    return seen


def two_threads() -> dict[str, Any]:
    root(filled=True)
    blobs: dict[int, Any] = {}
    barrier = threading.Barrier(2, timeout=60)

    def work(number: int) -> None:
        barrier.wait()
        TORCH.begin_compile()
        for key in KEYS[number::2]:
            barrier.wait()
            TORCH.put(key, 0)
        barrier.wait()
        blobs[number] = TORCH.collect()[0].kernel_artifacts.blob
        TORCH.end_compile()

    with hooked():
        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    held = {
        number: sorted(artifacts.kernel_hash for artifacts in KernelArtifacts(blob)) for number, blob in blobs.items()
    }
    return {"held": [held[0], held[1]], "expected": [KEYS[0::2], KEYS[1::2]], "torch_entries": TORCH._entries}


def launchers() -> dict[str, Any]:
    root(filled=True)
    absent = "A" * 52
    with hooked():
        whole = made(autotuners=(autotuner(KEYS[0]),))[0]
        quiet = list(heard)
        lacking = made(autotuners=(autotuner(KEYS[0]), autotuner(absent)))[0]
    return {
        "quiet": quiet,
        "warnings": heard[len(quiet) :],
        "counter": counters["inductor"]["bundler_missing_binaries"],
        "absent": absent,
        "kept": [len(whole.kernel_artifacts), len(lacking.kernel_artifacts)],
    }


def launchers_of_a_broken_blob() -> dict[str, Any]:
    root()
    with hooked():
        bundle = theirs.TritonBundle(kernel_artifacts(b"broken"), [autotuner(KEYS[0], installed=False)])
        metadata = TORCH.read_and_emit(bundle)
    return {"warnings": list(heard), "static": list(metadata.statically_launched_kernel_names)}


def winners() -> dict[str, Any]:
    if not hasattr(TORCH, "put_winner"):
        return {}
    root(filled=True)
    family = [key for key in KEYS if list((TREE / key).glob("*.cubin"))]
    held = {}
    with hooked():
        for name, chosen, named in (
            ("none chosen", (), ()),
            ("one chosen", family[:1], ()),
            ("one chosen, one named", family[:1], (autotuner(family[1]),)),
        ):
            artifacts = made(family, winners=tuple(chosen), autotuners=tuple(named))[0].kernel_artifacts
            held[name] = sorted(artifact.kernel_hash for artifact in artifacts)
    return {"family": family, "held": held, "warnings": list(heard)}


def a_failure_of_ours() -> dict[str, Any]:
    root(filled=True)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours is broken")

    from bundler.triton_bundler import TritonBundler as Ours

    original = Ours.collect
    Ours.collect = fail  # type: ignore[method-assign]
    try:
        with hooked():
            artifacts = made()[0].kernel_artifacts
    finally:
        Ours.collect = original  # type: ignore[method-assign]
    return {"kind": type(artifacts).__name__, "count": len(artifacts), "warnings": list(heard), "counted": counted()}


def damaged_kernel() -> dict[str, Any]:
    place = root(filled=True) / "triton" / "0" / KEYS[0]
    next(path for path in place.iterdir() if path.suffix in (".cubin", ".hsaco")).write_bytes(b"")
    with hooked():
        artifacts = made()[0].kernel_artifacts
    return {"held": sorted(a.kernel_hash for a in artifacts), "left_out": KEYS[0], "warnings": list(heard)}


def restored_class() -> dict[str, Any]:
    bundler.enable()
    changed = sorted(name for name, value in PRISTINE.items() if TORCH.__dict__.get(name) is not value)
    bundler.enable()  # twice is once
    bundler.disable()
    now = dict(TORCH.__dict__)
    methods = [name for name in PRISTINE if not name.startswith("_")]
    return {
        "changed": changed,
        "same": all(now[name] is PRISTINE[name] for name in methods),
        "names": sorted(now) == sorted(PRISTINE),
        "stats": bundler.stats(),
    }


def unknown_torch() -> dict[str, Any]:
    seen = {}
    changes = {
        "collect": classmethod(lambda cls, where: None),
        "put": classmethod(lambda cls, kernel: None),
        "_REPLACE_BYTES": b"<HERE>",
        "read_and_emit": classmethod(lambda cls, other: None),
    }
    for name, value in changes.items():
        heard.clear()
        setattr(TORCH, name, value)
        before = dict(TORCH.__dict__)
        try:
            enabled = bundler.enable()
            stats = bundler.stats()
            seen[name] = {
                "enabled": enabled,
                "warnings": list(heard),
                "untouched": dict(TORCH.__dict__) == before,
                "reason": stats["reason"],
                "joined": stats["joined"],
            }
        finally:
            bundler.disable()
            setattr(TORCH, name, PRISTINE[name])
    return seen


def wrapped_by_another() -> dict[str, Any]:
    root(filled=True)
    assert bundler.enable()
    inner = TORCH.__dict__["collect"]
    calls = []

    def collect(cls: Any) -> Any:
        calls.append("another")
        return inner.__get__(None, TORCH)()

    TORCH.collect = classmethod(collect)
    another = TORCH.__dict__["collect"]
    bundler.disable()
    kept = TORCH.__dict__["collect"] is another
    artifacts = made()[0].kernel_artifacts
    TORCH.collect = PRISTINE["collect"]
    return {"kept": kept, "calls": calls, "kind": type(artifacts).__name__}


# -- which ptxas ---------------------------------------------------------------------------------------------------

PTXAS = "TRITON_PTXAS_PATH"
ARCH = 80  # newer ones, from 90 on in Triton 3.9, have a ptxas and a variable of their own


@contextmanager
def torch_with_ptxas(*, shipped: bool = True) -> Iterator[Path]:
    """Be a process that has looked up nothing, of a torch that ships a ptxas; yields the log of what that assembles."""
    from torch._inductor.runtime import compile_tasks as tasks
    from triton.backends.nvidia.compiler import get_ptxas_version

    place = WORK / f"torch{next(_roots)}"
    log = place / "assembled"
    own, choose = tasks.__file__, tasks._set_triton_ptxas_path
    for folder in (place / "bin", place / "_inductor" / "bin"):  # 2.13 looks in the second
        folder.mkdir(parents=True)
        if shipped:
            _write_ptxas(folder / "ptxas", log)
    tasks.__file__ = str(place / "_inductor" / "runtime" / "compile_tasks.py")
    os.environ["TRITON_CACHE_DIR"] = str(place / "cache")
    os.environ.pop(PTXAS, None)
    for table in (choose, get_ptxas_version):
        table.cache_clear()
    try:
        yield log
    finally:
        bundler.disable()
        tasks.__file__, tasks._set_triton_ptxas_path = own, choose
        for name in (PTXAS, "TRITON_CACHE_DIR"):
            os.environ.pop(name, None)
        for table in (choose, get_ptxas_version):
            table.cache_clear()


def _write_ptxas(path: Path, log: Path) -> None:
    """Write a ptxas that is Triton's own, but for one more line in what it says of its version."""
    from triton import knobs

    real = knobs.nvidia.ptxas.path
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo "$0" >>"{log}"\n"{real}" "$@" || exit\n'
        '[ "$1" != --version ] || echo "of torch"\n'
    )
    path.chmod(0o755)


def _compiled_for_absent_gpu() -> str:
    """Ask Triton for a kernel as a launch does; returns the kernel hash that it went by."""
    sys.path.insert(0, str(programs.COMPILE_TRITON.parent))
    try:
        from compile_triton import compile_all

        return str(compile_all([f"cuda:{ARCH}"], ["add"])[f"add@cuda:{ARCH}"]["hash"])
    finally:
        sys.path.pop(0)


def one_ptxas() -> dict[str, Any]:
    from torch._inductor.runtime import compile_tasks as tasks
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    def generate_code() -> None:  # torch.utils._triton.triton_hash_with_backend(), for a GPU that is not here
        make_backend(GPUTarget("cuda", ARCH, 32)).hash()

    seen: dict[str, Any] = {}
    for hook in (False, True):
        for start in ("cold", "warm"):
            with torch_with_ptxas() as log:
                if hook:
                    bundler.enable()
                if start == "cold":
                    generate_code()
                tasks._set_triton_ptxas_path()  # as AsyncCompile.triton does before it compiles in the process
                seen[f"{start} {'with' if hook else 'without'} hook"] = {
                    "key": _compiled_for_absent_gpu(),
                    "by_torchs": log.exists(),
                }
    with torch_with_ptxas(shipped=False) as log:
        seen["none shipped"] = {"key": _compiled_for_absent_gpu(), "by_torchs": log.exists()}
    return seen


def ptxas_left_alone() -> dict[str, Any]:
    from torch._inductor.runtime import compile_tasks as tasks
    from triton.backends.nvidia.compiler import get_ptxas_version

    def fail() -> None:
        raise RuntimeError("torch cannot")

    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        joined = bundler.enable()
        seen[name] = {"set": os.environ.get(PTXAS), "joined": joined, "called": tasks_called()}

    def tasks_called() -> bool:
        table = getattr(getattr(tasks, "_set_triton_ptxas_path", None), "cache_info", None)
        return table is not None and table().currsize > 0

    with torch_with_ptxas():
        look("nothing against it")
    with torch_with_ptxas():
        os.environ[PTXAS] = "/of/the/user"
        look("set by the user")
    with torch_with_ptxas():
        os.environ["TRITON_BUNDLER"] = "0"
        try:
            look("switched off")
        finally:
            del os.environ["TRITON_BUNDLER"]
    with torch_with_ptxas(), config.patch(force_disable_caches=True):
        look("switched off in torch")
    with torch_with_ptxas():
        get_ptxas_version(ARCH)
        look("version read already")
    with torch_with_ptxas(shipped=False):
        look("none shipped")
    with torch_with_ptxas():
        tasks._set_triton_ptxas_path = fail
        look("torch fails")
    with torch_with_ptxas():
        del tasks._set_triton_ptxas_path
        look("another torch")
    return {"seen": seen, "warnings": list(heard)}


def ptxas_later() -> dict[str, Any]:
    name = "torch._inductor.runtime.compile_tasks"
    seen = []
    with torch_with_ptxas():
        tasks = sys.modules.pop(name)
        try:
            seen.append(bundler.enable())
            again = importlib.import_module(name)
            seen.append(again._set_triton_ptxas_path.cache_info().currsize == 1)
            del sys.modules[name]
            bundler.disable()
            bundler.enable()
            bundler.disable()  # nobody waits any more
            seen.append(importlib.import_module(name)._set_triton_ptxas_path.cache_info().currsize == 0)
        finally:
            sys.modules[name] = tasks
    return {"seen": seen}


# -- launcher stubs ------------------------------------------------------------------------------------------------


STUB = f"__triton_launcher{sysconfig.get_config_var('EXT_SUFFIX')}"


def cache_of_triton_joined() -> dict[str, Any]:
    from triton.runtime.cache import FileCacheManager

    before = dict(FileCacheManager.__dict__)
    with hooked():
        changed = sorted(name for name, value in before.items() if FileCacheManager.__dict__[name] is not value)
    return {"changed": changed, "restored": dict(FileCacheManager.__dict__) == before}


def unknown_cache_of_triton() -> dict[str, Any]:
    from triton.runtime.cache import FileCacheManager

    root(filled=True)
    original = FileCacheManager.get_file
    FileCacheManager.find_file = original
    del FileCacheManager.get_file
    before = dict(FileCacheManager.__dict__)
    try:
        with hooked():
            joined = bundler.stats()["joined"]
            untouched = dict(FileCacheManager.__dict__) == before
            held = len(made()[0].kernel_artifacts)
    finally:
        del FileCacheManager.find_file
        FileCacheManager.get_file = original
    return {"joined": joined, "untouched": untouched, "held": held, "warnings": list(heard)}


def fork_while_another_thread_puts() -> dict[str, Any]:
    from triton.runtime.cache import FileCacheManager

    place = root(filled=True) / "triton" / "0"
    os.environ["TRITON_CACHE_DIR"] = str(place)
    inside, over = threading.Event(), threading.Event()
    try:
        with hooked():
            made()  # so that there is a bundler, with its lock
            lock = inductor._hook.bundler._lock  # type: ignore[union-attr]

            def hold() -> None:
                with lock:
                    inside.set()
                    over.wait(60)

            thread = threading.Thread(target=hold)
            thread.start()
            inside.wait(60)
            child = os.fork()
            if child == 0:
                written, joined = "", hasattr(FileCacheManager.put, "__wrapped__")
                try:
                    written = FileCacheManager("S" * 52).put(b"stub", STUB)
                finally:
                    os._exit(0 if written and joined else 1)
            status = _wait(child, seconds=20)
            over.set()
            thread.join()
    finally:
        over.set()
        del os.environ["TRITON_CACHE_DIR"]
    return {"status": status}


def helper_before_the_first_compile() -> dict[str, Any]:
    from triton.runtime.cache import FileCacheManager

    places = [root(filled=True) for _ in range(2)]

    def held() -> list[int]:
        counts = []
        for place in places:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place)
            with opened(made()[0].kernel_artifacts.blob) as reader:
                counts.append(sum(entry.unit is Unit.HOST_BINARY for entry in reader.index.entries))
        return counts

    with hooked():
        os.environ["TRITON_CACHE_DIR"] = str(WORK / "cache of the user")
        wanted = [inductor._hook._triton_cache()]  # type: ignore[union-attr]
        try:
            FileCacheManager("A" * 52).put(artifacts.host_binary(), STUB.replace("__triton_launcher", "cuda_utils"))
        finally:
            del os.environ["TRITON_CACHE_DIR"]
        wanted.append(inductor._hook._triton_cache())  # type: ignore[union-attr]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if held() == [1, 1] else 1
            finally:
                os._exit(status)
        return {"forked": _wait(child, seconds=60), "held": held(), "wanted": wanted, "warnings": list(heard)}


# -- forks -----------------------------------------------------------------------------------------------------------


def fork_while_another_thread_collects() -> dict[str, Any]:
    root(filled=True)
    inside, over = threading.Event(), threading.Event()
    from bundler.triton_bundler import TritonBundler as Ours

    original = Ours.collect

    def slow(self: Any, **named: Any) -> Any:
        inside.set()
        over.wait(60)
        return original(self, **named)

    Ours.collect = slow  # type: ignore[method-assign]
    try:
        with hooked():
            thread = threading.Thread(target=made)
            thread.start()
            inside.wait(60)
            child = os.fork()
            if child == 0:
                Ours.collect = original  # type: ignore[method-assign]
                held = -1
                try:
                    held = len(list(made()[0].kernel_artifacts))
                finally:
                    os._exit(0 if held == len(KEYS) else 1)
            status = _wait(child, seconds=20)
            over.set()
            thread.join()
    finally:
        over.set()
        Ours.collect = original  # type: ignore[method-assign]
    return {"status": status}


def _wait(child: int, *, seconds: float) -> int | str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


SCENARIOS: tuple[Callable[[], Any], ...] = (
    there_and_back,
    full_profile,
    read_without_the_hook,
    broken_blobs,
    switched_off,
    torch_switched_off,
    two_threads,
    launchers,
    launchers_of_a_broken_blob,
    winners,
    a_failure_of_ours,
    damaged_kernel,
    restored_class,
    unknown_torch,
    wrapped_by_another,
    raw_entries,
    one_ptxas,
    ptxas_left_alone,
    ptxas_later,
    cache_of_triton_joined,
    unknown_cache_of_triton,
    fork_while_another_thread_puts,
    helper_before_the_first_compile,
    fork_while_another_thread_collects,
)


def main() -> None:
    report: dict[str, Any] = {"keys": KEYS, "inductor": inductor.__name__}
    os.environ.pop("TRITON_CACHE_DIR", None)
    for scenario in SCENARIOS:
        heard.clear()
        observe._said.clear()
        counters["inductor"].clear()
        try:
            report[scenario.__name__] = {**scenario(), "counters": counted()}
        except Exception:  # noqa: BLE001  it is reported, and the test of this scenario fails
            report[scenario.__name__] = {"error": traceback.format_exc()}
        finally:
            bundler.disable()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
