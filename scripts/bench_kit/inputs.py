"""What is measured: recorded caches that are copied in, and trees that the bench makes itself.

name      what
========  ==============================================================================================================
(yours)   ``--cache NAME=PATH``: a TORCHINDUCTOR_CACHE_DIR as some machine left it
own       an Inductor root of 122 kernels in two graphs, whose entries hold raw copies of the kernels, as torch's do
kernels   a Triton root of 10,000 kernels; its first tenth is measured too
layers    2 GB: the kernels of ``own`` under one device after another, as equal layers or ranks leave them
entry     one FX graph entry of 16 MB, and nothing else
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import sys
from base64 import b32encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from bench_kit.kernels import kernel_files, key_of, write_kernels

_BUNDLER_MODULE = "torch._inductor.triton_bundler"
_GRAPH_KERNELS = 61  # of each of the two graphs of ``own``


@dataclass(frozen=True)
class Input:
    """A tree to measure. ``kind`` is the kind of the root; ``large`` trees are measured in fewer rounds."""

    name: str
    path: Path
    kind: str
    about: str
    large: bool = False
    part: Path | None = None  # a tenth of it, for what must not grow faster than the tree

    @property
    def root(self) -> str:
        """The root as the command takes it."""
        return f"{self.kind}={self.path}"


@dataclass(frozen=True)
class Sizes:
    """How large the trees are that the bench makes: kernels, bytes, bytes, kernels of each graph."""

    kernels: int = 10_000
    layers: int = 2_000_000_000
    entry: int = 16_000_000
    graph_kernels: int = _GRAPH_KERNELS


QUICK = Sizes(kernels=200, layers=60_000_000, entry=2_000_000, graph_kernels=20)

OWN = ("own", "kernels", "layers", "entry")


def recorded(name: str, source: Path, work: Path) -> Input:
    """Copy a recorded cache in, so that it lies on the file system where everything is measured."""
    path = work / "inputs" / name
    if not path.exists():
        shutil.copytree(source, path, symlinks=True)
    return Input(name, path, "inductor", f"recorded cache, {_count(path)} files")


def make(name: str, work: Path, sizes: Sizes) -> Input:
    """Make one of ``OWN``; what is there already from an earlier run, of the same size, is used again."""
    makers: dict[str, Callable[[Path, Sizes], None]] = {
        "own": _make_own,
        "kernels": _make_kernels,
        "layers": _make_layers,
        "entry": _make_entry,
    }
    stamp = hashlib.sha256(repr(sizes).encode() + _own_source()).hexdigest()[:12]
    path = work / "inputs" / f"{name}-{stamp}"
    done = path.with_name(path.name + ".done")
    if not done.exists():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        makers[name](path, sizes)
        done.touch()
    about = {
        "own": f"Inductor root made here, {2 * sizes.graph_kernels} kernels in 2 graphs",
        "kernels": f"{sizes.kernels:,} kernels made here, no two alike",
        "layers": f"the same kernels under many devices, {sizes.layers / 1e9:g} GB",
        "entry": f"one FX graph entry of {sizes.entry / 1e6:g} MB",
    }[name]
    tree = path / "all" if name == "kernels" else path
    kind = "triton" if name == "kernels" else "inductor"
    part = path / "tenth" if name == "kernels" else None
    return Input(name, tree, kind, f"{about}, {_count(tree):,} files", name in ("kernels", "layers"), part)


def _own_source() -> bytes:
    here = Path(__file__).parent
    return (here / "kernels.py").read_bytes() + (here / "inputs.py").read_bytes()


def _count(path: Path) -> int:
    return sum(file.is_file() for file in path.rglob("*"))


def _make_own(path: Path, sizes: Sizes) -> None:
    total = 2 * sizes.graph_kernels
    write_kernels(path / "triton" / "0", total)
    for graph in range(2):
        numbers = range(graph, total, 2)
        _write_graph(path, graph, numbers, _entry_rest(graph, 700_000 if total > 50 else 70_000))
        for number in numbers:
            _write_module(path, number)


def _make_kernels(path: Path, sizes: Sizes) -> None:
    write_kernels(path / "all", sizes.kernels)
    write_kernels(path / "tenth", sizes.kernels // 10)


def _make_layers(path: Path, sizes: Sizes) -> None:
    files: dict[int, dict[str, bytes]] = {}
    written = device = 0
    while written < sizes.layers:
        for number in range(2 * sizes.graph_kernels):
            place = path / "triton" / str(device) / key_of(number)
            place.mkdir(parents=True)
            named = files.setdefault(number, kernel_files(number, "[HERE]", "/tmp/torchinductor_user/ab/cab.py"))
            for name, data in named.items():
                data = data.replace(b"[HERE]", str(place).encode()) if name.startswith("__grp__") else data
                (place / name).write_bytes(data)
                written += len(data)
        device += 1


def _make_entry(path: Path, sizes: Sizes) -> None:
    rest = _entry_rest(0, sizes.entry // 6)
    numbers: list[int] = []
    size = len(rest)
    while size < sizes.entry:
        number = 20_000 + len(numbers)
        numbers.append(number)
        size += sum(map(len, kernel_files(number, "[REPLACE]", "/tmp/torchinductor_user/ab/cab.py").values()))
    _write_graph(path, 0, numbers, rest)


def _entry_rest(graph: int, size: int) -> str:
    """What an FX graph entry holds beside its kernels: generated code and the components of its key, as text."""
    lines = []
    length = number = 0
    while length < size:
        digest = hashlib.sha256(f"{graph} {number}".encode()).hexdigest()
        shape = f"({64 * (number % 9 + 1)}, {number % 513}, {number % 57})"
        lines.append(
            f"    buf{number} = empty_strided({shape}, device='cuda', dtype=torch.float32)\n"
            f"    triton_poi_fused_{number % 97}.run(primals_{number % 211}, buf{number}, {number}, stream=stream0)\n"
            f"[{digest if number % 8 == 0 else number}] inductor_config[option_{number}]: {number % 2 == 0}\n"
        )
        length += len(lines[-1])
        number += 1
    return "".join(lines)


def _write_graph(root: Path, graph: int, numbers: Any, rest: str) -> None:
    """Write an FX graph entry that torch can load, with raw copies of kernels, and an AOTAutograd entry beside it."""
    with _torch_classes() as (bundle, artifacts, artifact):
        kernels = []
        for number in numbers:
            place = root / "triton" / "0" / key_of(number)
            if place.exists():
                files = {file.name: file.read_bytes() for file in place.iterdir()}
            else:
                files = kernel_files(number, str(place), "/tmp/torchinductor_user/ab/cab.py")
            items = [
                artifact(name, data.replace(str(place).encode(), b"[REPLACE]") if name.endswith(".json") else data)
                for name, data in files.items()
            ]
            kernels.append(artifacts(key_of(number), 0, items))
        entry = SimpleNamespace(source_code=rest, _triton_bundle=bundle(kernels, []))
        data = pickle.dumps(entry, protocol=4)
    key = "f" + _base32(data)
    place = root / "fxgraph" / key[1:3] / key
    place.mkdir(parents=True)
    (place / _base32(key.encode())).write_bytes(data)
    place = root / "aotautograd" / ("a" + key[1:])
    place.mkdir(parents=True)
    forward = pickle.dumps(SimpleNamespace(fx_key=key, graph=graph, guards_expr="True"), protocol=4)
    (place / _base32(forward)).write_bytes(forward)


def _write_module(root: Path, number: int) -> None:
    lines = (
        f"    tmp{line} = tl.load(in_ptr{line % 7} + (xindex * {line * number % 97}), xmask)\n" for line in range(180)
    )
    text = f"import triton.language as tl\n\n\ndef kernel_{number}(xnumel):\n" + "".join(lines)
    stem = "c" + _base32(text.encode())
    place = root / stem[1:3]
    place.mkdir(exist_ok=True)
    (place / f"{stem}.py").write_text(text)
    config = {"XBLOCK": 256 << number % 3, "num_warps": 4, "num_stages": 1, "triton_cache_hash": key_of(number)}
    (place / f"{hashlib.sha256(stem.encode()).hexdigest()}.best_config").write_text(json.dumps(config))


def _base32(data: bytes) -> str:
    return b32encode(hashlib.sha256(data).digest())[:51].decode().lower()


@contextmanager
def _torch_classes() -> Iterator[tuple[Any, Any, Any]]:
    """Give classes that pickle as torch's TritonBundle, TritonKernelArtifacts, TritonKernelArtifact, without torch."""
    fields = {
        "TritonBundle": ["kernel_artifacts", "static_autotuners"],
        "TritonKernelArtifacts": ["kernel_hash", "device", "artifacts"],
        "TritonKernelArtifact": ["filename", "payload"],
    }
    module = ModuleType(_BUNDLER_MODULE)
    for name, names in fields.items():
        made = make_dataclass(name, names, frozen=True)
        made.__module__ = _BUNDLER_MODULE
        setattr(module, name, made)
    names = ["torch", "torch._inductor", _BUNDLER_MODULE]
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: ModuleType(name) for name in names[:2]} | {_BUNDLER_MODULE: module})
    try:
        yield tuple(getattr(module, name) for name in fields)
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old
