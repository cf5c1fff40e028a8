"""Functions that are measured inside a process that holds torch: its own bundler and mega cache, and ours beside them.

torch's ``TritonBundler`` runs without a GPU: it reads and writes files. The kernels of a tree are put one by one, as a
compile would, then collected. FX graph entries of another torch are loaded with stand-ins for classes that this one
does not have.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import torch
import zstandard
from torch._inductor import config
from torch._inductor.triton_bundler import TritonBundle, TritonBundler
from torch.compiler._cache import CacheArtifactManager

from bench_kit.floor import again as read_and_hash
from bench_kit.worker import Clock, fresh, function, serve
from bundler.integrations.blob import KernelArtifacts

__all__ = ["serve"]

config.bundle_triton_into_fx_graph_cache = True

_made: dict[str, Any] = {}


def _kernels(tree: str) -> list[tuple[int, str]]:
    """Return (device, path key) of every kernel of an Inductor root."""
    found = Path(tree, "triton").glob("*/*/__grp__*.json")
    return sorted({(int(path.parent.parent.name), path.parent.name) for path in found})


@contextmanager
def _hook(profile: str) -> Iterator[None]:
    """Switch our hook on; what torch's class is asked for then goes through it, as in a training process."""
    import bundler

    if not bundler.enable(profile=profile):
        raise RuntimeError(f"the hook cannot join this torch: {bundler.stats()['reason']}")
    try:
        yield
    finally:
        bundler.disable()


def _collected(kernels: list[tuple[int, str]]) -> tuple[Clock, Any, bytes]:
    """Put kernels, and collect them into a bundle and its pickle, with the hook or without."""
    TritonBundler.end_compile()
    TritonBundler.begin_compile()
    for device, key in kernels:
        TritonBundler.put(key, device)
    with Clock() as clock:
        bundle, _ = TritonBundler.collect()
        data = pickle.dumps(bundle)
    return clock, bundle, data


@function
def torch_collect(tree: str) -> dict[str, Any]:
    """torch's ``collect``, and the pickle that goes into the FX graph entry."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tree
    kernels = _kernels(tree)
    clock, _, _made[tree] = _collected(kernels)
    return clock.answer(size=len(_made[tree]), files=len(kernels))


@function
def ours_collect(tree: str, profile: str) -> dict[str, Any]:
    """The same through our hook."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tree
    kernels = _kernels(tree)
    with _hook(profile):
        clock, bundle, data = _collected(kernels)
    if not isinstance(bundle.kernel_artifacts, KernelArtifacts):
        raise ValueError("the hook failed to collect, and torch went on without")
    _made[f"{tree} {profile}"] = data
    return clock.answer(size=len(data), files=len(kernels))


def _emitted(data: bytes, *, unpickle: bool, there: bool) -> Clock:
    """Emit a pickled bundle, or look at what is there already, with the hook or without."""
    bundle = pickle.loads(data)  # noqa: S301  made above
    if there:
        TritonBundler.read_and_emit(bundle)
    with Clock() as clock:
        if unpickle:
            bundle = pickle.loads(data)  # noqa: S301
        TritonBundler.read_and_emit(bundle)
    return clock


@function
def torch_emit(tree: str, into: str, *, unpickle: bool = True, there: bool = False) -> dict[str, Any]:
    """torch's ``read_and_emit``, with or without the unpickling; with ``there`` a second time over what it wrote."""
    if tree not in _made:
        torch_collect(tree)
    with fresh(into) as path:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)
        clock = _emitted(_made[tree], unpickle=unpickle, there=there)
        files = sum(found.is_file() for found in path.rglob("*"))
    return clock.answer(files=0 if there else files)


@function
def ours_emit(tree: str, profile: str, into: str, *, unpickle: bool = True, there: bool = False) -> dict[str, Any]:
    """The same through our hook."""
    import bundler

    if f"{tree} {profile}" not in _made:
        ours_collect(tree, profile)
    with fresh(into) as path, _hook(profile):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)
        clock = _emitted(_made[f"{tree} {profile}"], unpickle=unpickle, there=there)
        told = bundler.stats()
        files = sum(found.is_file() for found in path.rglob("*"))
    kernels = len(_kernels(tree))
    if (told["kernels_emitted"], told["kernels_unchanged"]) != (kernels, kernels * there):
        raise ValueError(f"not what was to be measured: {told}")
    return clock.answer(files=0 if there else files)


@function
def floor_check(tree: str, profile: str, into: str) -> dict[str, Any]:
    """Of a check that sees damage: decode the index, or no digest is known; read and hash every file of a launch."""
    if f"{tree} {profile}" not in _made:
        ours_collect(tree, profile)
    with fresh(into) as path, _hook(profile):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)
        data = _made[f"{tree} {profile}"]
        _emitted(data, unpickle=True, there=False)
        index, raw_size = _index_of(pickle.loads(data).kernel_artifacts.blob)  # noqa: S301  made above
        with Clock() as clock:
            hashlib.sha256(index).digest()
            msgpack.unpackb(zstandard.ZstdDecompressor().decompress(index, max_output_size=raw_size))
            read_and_hash(str(path))
    return clock.answer()


def _index_of(blob: bytes) -> tuple[bytes, int]:
    """Return the index of a bundle as stored, and how many bytes it has when it is decompressed."""
    from bundler.formats._header import HEADER_SIZE, Header

    header = Header.decode(blob[:HEADER_SIZE])
    return blob[HEADER_SIZE : HEADER_SIZE + header.index_size], header.index_raw_size


# -- mega cache --------------------------------------------------------------------------------------------------------


class _Tolerant(pickle.Unpickler):
    """Loads entries of another torch; what this torch lacks becomes an empty class of that name, where it would be."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except (AttributeError, ModuleNotFoundError):
            made = type(name, (), {"__module__": module, "__qualname__": name})
            setattr(importlib.import_module(module), name, made)
            return made


def _entries(tree: str, kind: str) -> list[tuple[str, bytes]]:
    """Return (key, bytes) of the FX graph or AOTAutograd entries of a root."""
    files = sorted(path for path in Path(tree, kind).rglob("*") if path.is_file())
    return [(path.parent.name, path.read_bytes()) for path in files]


@function
def mega_save(tree: str, out: str) -> dict[str, Any]:
    """Record every entry as a compile does (not measured), then ``torch.compiler.save_cache_artifacts()``."""
    CacheArtifactManager._ensure_cache_artifacts_registered()
    CacheArtifactManager.clear()
    for key, data in _entries(tree, "fxgraph"):
        _Tolerant(io.BytesIO(data)).load()  # so that a load finds its classes
        CacheArtifactManager.record_artifact("inductor", key, data)
    for key, data in _entries(tree, "aotautograd"):
        CacheArtifactManager.record_artifact("aot_autograd", key, data)
    for path in sorted(Path(tree).rglob("*.best_config")):
        key = str(path.relative_to(tree))
        CacheArtifactManager.record_artifact("autotune", key, json.loads(path.read_bytes()))
    with Clock() as clock:
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        Path(out).write_bytes(saved[0])
    CacheArtifactManager.clear()
    return clock.answer(size=len(saved[0]), files=1)


@function
def mega_load(file: str, into: str) -> dict[str, Any]:
    """``torch.compiler.load_cache_artifacts`` of a file, into an empty root."""
    with fresh(into) as path:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path)
        os.environ.pop("TRITON_CACHE_DIR", None)
        with Clock() as clock:
            loaded = torch.compiler.load_cache_artifacts(Path(file).read_bytes())
        assert loaded is not None, "torch could not load what it saved"
        written = [found.stat().st_size for found in path.rglob("*") if found.is_file()]
    return clock.answer(files=len(written), size=sum(written))


# -- trees whose entries hold our blob ---------------------------------------------------------------------------------


@function
def hooked_tree(tree: str, into: str, *, entries: str) -> dict[str, Any]:
    """Copy a tree, and write each entry again as our hook makes it: with ``blob``, ``raw`` or ``no`` kernels in it."""
    shutil.copytree(tree, into)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = into
    bytes_of_blobs = 0
    for path in sorted(path for path in Path(into, "fxgraph").rglob("*") if path.is_file()):
        graph = _Tolerant(io.BytesIO(path.read_bytes())).load()
        old = graph._triton_bundle
        artifacts: Any = []
        if entries != "no":
            os.environ["TRITON_BUNDLER_ENTRIES"] = entries
            with _hook("runtime"):
                _, bundle, _ = _collected([(kernel.device, kernel.kernel_hash) for kernel in old.kernel_artifacts])
            del os.environ["TRITON_BUNDLER_ENTRIES"]
            artifacts = bundle.kernel_artifacts
            if isinstance(artifacts, KernelArtifacts) != (entries == "blob"):
                raise ValueError(f"the hook made something else than {entries} entries")
            bytes_of_blobs += len(artifacts.blob) if entries == "blob" else 0
        graph._triton_bundle = TritonBundle(artifacts, old.static_autotuners)
        path.write_bytes(pickle.dumps(graph))
    return {"blobs": bytes_of_blobs}


@function
def compile_seconds(tree: str, count: int) -> dict[str, Any]:
    """Compile ``count`` of the kernels again, from their TTIR, and scale the seconds up to all of them.

    That leaves out what comes before TTIR, so that it is less than what a compile takes. Hints to the cache of the GPU
    are left out of the text: Triton spells them differently from version to version.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    texts = sorted(Path(tree, "triton").rglob("*.ttir"))
    chosen = texts[:: max(1, len(texts) // count)]
    taken = 0.0
    with fresh(f"{tree}.compiled") as path:
        path.mkdir()
        os.environ["TRITON_CACHE_DIR"] = str(path / "cache")
        for number, text in enumerate(chosen):
            told = json.loads(text.with_suffix(".json").read_bytes())
            target = GPUTarget(*(told["target"][name] for name in ("backend", "arch", "warp_size")))
            plain = path / f"{number}.ttir"
            plain.write_text(re.sub(r" (evictionPolicy|cacheModifier) = \w+", "", text.read_text()))
            options = {name: told[name] for name in ("num_warps", "num_stages")}
            started = time.perf_counter()
            triton.compile(str(plain), target=target, options=options)
            if number:  # the first one loads the compiler
                taken += time.perf_counter() - started
        os.environ.pop("TRITON_CACHE_DIR")
    return {"seconds": taken * len(texts) / (len(chosen) - 1), "compiled": len(chosen), "kernels": len(texts)}
