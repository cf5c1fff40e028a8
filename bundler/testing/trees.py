"""Cache trees as Triton, Inductor and vLLM lay them out, from nothing: no GPU, no torch, no Triton.

Every builder is deterministic: equal arguments give equal bytes, on any host. Paths are recorded in the files as the
real programs record them: as absolute paths of the place that the tree was made in, or of ``recorded``, for a tree
that was moved after it was made.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import pickle
import pprint
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bundler.testing.artifacts import Recipe, TargetTuple, host_binary, path_key

__all__ = [
    "GROUP_PREFIX",
    "VLLM_CACHE_FILE",
    "default_key",
    "kernel_directories",
    "rehome",
    "snapshot",
    "synthetic_inductor_root",
    "synthetic_kernel",
    "synthetic_vllm_root",
]

GROUP_PREFIX = "__grp__"
VLLM_CACHE_FILE = "vllm_compile_cache.py"
KERNEL_NAMES = (
    "triton_poi_fused_add_relu_0",
    "triton_red_fused_native_layer_norm_1",
    "triton_per_fused__softmax_2",
    "triton_tem_fused_mm_3",
    "triton_poi_fused_convolution_4",
)

# Triton's extension of the interpreter that made the tree; loaded from the cache, and in no group.
HELPER = "cuda_utils.cpython-312-x86_64-linux-gnu.so"


def default_key(name: str, *, target: TargetTuple = ("cuda", 90, 32), seed: int = 0) -> str:
    """Return the path key that :func:`synthetic_kernel` gives a kernel when it is not told one."""
    return path_key(Recipe(name, target, seed).kernel_hash)


def synthetic_kernel(
    directory: Path,
    name: str,
    *,
    key: str | None = None,
    target: TargetTuple = ("cuda", 90, 32),
    recorded: str | None = None,
    seed: int = 0,
    binary: bool = True,
    text: bool = True,
    source_file: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write one kernel directory ``<directory>/<key>`` as Triton 3.6 to 3.9 do, and return it.

    Args:
        directory: The Triton cache; made when missing.
        name: The kernel function, hence the stem of every file.
        key: The path key. By default :func:`default_key`, which depends on name, target and seed.
        target: Backend, arch and warp size.
        recorded: The kernel directory as the group file has it, taken literally; by default the one written. A tree
            that was moved has another directory here, of the same last component.
        seed: Tells kernels of one name apart.
        binary: Whether there is a cubin or hsaco.
        text: Whether there are IR and assembly; without, the directory is what ``TRITON_STORE_BINARY_ONLY=1`` leaves.
        source_file: Path of the Python source, in the texts and the debug section; by default ``kernels.py`` in the
            directory that the recorded one lies in.
        metadata: Keys of ``<name>.json`` to replace or add.
    """
    key = default_key(name, target=target, seed=seed) if key is None else key
    place = directory.absolute() / key
    recorded = str(place) if recorded is None else recorded
    recipe = Recipe(name, target, seed, source_file or os.path.join(os.path.dirname(recorded), "kernels.py"))
    suffixes = {suffix for suffix in recipe.files() if (binary if suffix == recipe.binary_suffix else text)}
    files = {f"{name}.{suffix}": data for suffix, data in recipe.files().items() if suffix in suffixes}
    fields = recipe.metadata(**{"hash": _kernel_hash(key, recipe), **(metadata or {})})
    files[f"{name}.json"] = json.dumps(fields).encode()
    group = {"child_paths": {file: f"{recorded}/{file}" for file in files}}
    files[f"{GROUP_PREFIX}{name}.json"] = json.dumps(group).encode()
    _write(place, files)
    return place


def _kernel_hash(key: str, recipe: Recipe) -> str:
    """The hash that belongs to ``key``; the recipe's own where ``key`` is no path key."""
    try:
        return base64.b32decode(key + "=" * (-len(key) % 8)).hex()
    except ValueError:
        return recipe.kernel_hash


def synthetic_inductor_root(
    root: Path,
    *,
    kernels: int | Sequence[str] = 4,
    graphs: int = 2,
    target: TargetTuple = ("cuda", 90, 32),
    device: int = 0,
    recorded: str | None = None,
    seed: int = 0,
    helpers: bool = True,
) -> Path:
    """Write what torch 2.11 to 2.15 leave in ``TORCHINDUCTOR_CACHE_DIR`` after a training step, and return ``root``.

    Args:
        root: The cache directory; made when missing.
        kernels: How many kernels, or their names. Each has its module, its Triton directory and its autotuning result.
        graphs: How many FX graph entries the kernels are dealt out to. Each holds raw copies of its kernels' files,
            inside a pickle, with the kernel directory in the group file replaced by ``[REPLACE]``, as torch does.
        target: Backend, arch and warp size of all kernels.
        device: The ordinal, which is a directory under ``triton/``.
        recorded: ``root`` as the files have it; by default ``root`` itself.
        seed: Another seed, another model: no entry is shared.
        helpers: Whether the root also has what is no entry of its own or belongs to no group: locks, Triton's helper
            extension, the results of max-autotune.
    """
    root = root.absolute()
    recorded = str(root) if recorded is None else recorded
    names = _names(kernels)
    places = []
    for number, name in enumerate(names):
        source = _write_module(root, f"# kernel {name} {seed}\n" + _KERNEL_MODULE.format(name=name))
        kernel_seed = 1000 * seed + number
        key = default_key(name, target=target, seed=kernel_seed)
        places.append(
            synthetic_kernel(
                root / "triton" / str(device),
                name,
                target=target,
                seed=kernel_seed,
                recorded=f"{recorded}/triton/{device}/{key}",
                source_file=f"{recorded}/{source}",
            )
        )
        _write_best_config(root / source, key, number)
    for graph in range(graphs):
        _write_graph(root, graph, places[graph::graphs], device=device, seed=seed)
    if helpers:
        _write_helpers(root, recorded, device=device, seed=seed)
    return root


def synthetic_vllm_root(
    root: Path,
    *,
    kernels: int | Sequence[str] = 3,
    graphs: int = 2,
    target: TargetTuple = ("cuda", 90, 32),
    compiler: str = "inductor_standalone",
    recorded: str | None = None,
    seed: int = 0,
) -> Path:
    """Write what vLLM leaves in ``VLLM_CACHE_ROOT``, and return ``root``.

    Args:
        root: The cache directory; made when missing. All lies under ``torch_compile_cache/<hash10>/rank_0_0``.
        kernels: How many kernels, or their names, in ``triton_cache/``.
        graphs: How many piecewise graphs ``vllm_compile_cache.py`` names.
        target: Backend, arch and warp size of all kernels.
        compiler: ``inductor_standalone`` (a handle is an artifact's name and its directory) or ``inductor`` (an FX
            graph key and the module in ``inductor_cache/``). Either way the second half is an absolute path.
        recorded: ``root`` as the files have it; by default ``root`` itself.
        seed: Another seed, another model.
    """
    root = root.absolute()
    recorded = str(root) if recorded is None else recorded
    inside = f"torch_compile_cache/{_hex('vllm', seed)[:10]}/rank_0_0"
    rank, recorded_rank = root / inside, f"{recorded}/{inside}"
    handles: dict[tuple[tuple[int, int] | None, int, str], tuple[str, str]] = {}
    for graph in range(graphs):
        if compiler == "inductor":
            cached = _write_module(rank / "inductor_cache", _GRAPH_MODULE.format(graph=graph, seed=seed))
            entry = {"graph": graph, "seed": seed}
            key = _write_pickle(rank / "inductor_cache" / "fxgraph", "f", entry, spread=True)
            handles[None, graph, compiler] = key, f"{recorded_rank}/inductor_cache/{cached}"
        else:
            artifact = f"artifact_compile_range_(1, 8192)_subgraph_{graph}"
            _write_artifact(rank / "backbone" / artifact, graph, seed)
            handles[(1, 8192), graph, compiler] = artifact, f"{recorded_rank}/backbone/{artifact}"
    for number, name in enumerate(_names(kernels)):
        kernel_seed = 1000 * seed + number
        key = default_key(name, target=target, seed=kernel_seed)
        place = f"{recorded_rank}/triton_cache/{key}"
        synthetic_kernel(rank / "triton_cache", name, target=target, seed=kernel_seed, recorded=place)
    files = {
        VLLM_CACHE_FILE: pprint.PrettyPrinter(indent=4).pformat(handles),
        "computation_graph.py": _COMPUTATION_GRAPH + "    return (add_1,)\n" * (seed + 1),
        "transformed_code.py": _TRANSFORMED_CODE,
    }
    _write(rank / "backbone", {name: text.encode() for name, text in files.items()})
    return root


def kernel_directories(root: Path) -> list[Path]:
    """Return every directory under ``root`` that holds a group file, sorted."""
    return sorted({path.parent for path in root.rglob(f"{GROUP_PREFIX}*.json")})


def snapshot(root: Path) -> dict[str, bytes]:
    """Return path relative to ``root`` (POSIX) -> bytes, for every regular file below it."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in _files(root)}


def rehome(root: Path, recorded: str | None = None) -> Path:
    """Rewrite ``root`` as if it had been made where it lies, and return it.

    Done apart from the package's own relocation, to be its judge: group files and ``vllm_compile_cache.py`` are read,
    changed as values and written as their makers write them. Other files keep the paths that they have.

    Args:
        root: A copy of a tree that lay elsewhere.
        recorded: Where it lay; needed when the root holds a ``vllm_compile_cache.py``.
    """
    root = root.absolute()
    for place in kernel_directories(root):
        for file in place.glob(f"{GROUP_PREFIX}*.json"):
            group = json.loads(file.read_bytes())
            group["child_paths"] = {name: str(place / name) for name in group["child_paths"]}
            file.write_text(json.dumps(group), encoding="utf-8")
    for file in root.rglob(VLLM_CACHE_FILE):
        handles = ast.literal_eval(file.read_text(encoding="utf-8"))
        if recorded is None:
            raise ValueError(f"{file} has paths inside the root: say where the root lay")
        moved = {key: (name, str(root / os.path.relpath(path, recorded))) for key, (name, path) in handles.items()}
        file.write_text(pprint.PrettyPrinter(indent=4).pformat(moved), encoding="utf-8")
    return root


# --- parts of an Inductor root -------------------------------------------------------------------------------------


def _write_module(root: Path, text: str) -> str:
    """Write a generated module where Inductor puts it; return its path inside ``root``."""
    stem = "c" + _base32(text)
    _write(root / stem[1:3], {f"{stem}.py": text.encode()})
    return f"{stem[1:3]}/{stem}.py"


def _write_best_config(module: Path, key: str, number: int) -> None:
    rng = random.Random(f"best config {key}")
    config = {
        "XBLOCK": rng.choice([256, 512, 1024]),
        "num_warps": rng.choice([4, 8]),
        "num_stages": 1,
        "configs_hash": _hex("configs", number),
        "found_by_coordesc": False,
        "time_taken_ms": rng.randrange(5, 40),
        "triton_cache_hash": key,
    }
    _write(module.parent, {f"{_hex(key, number)}.best_config": json.dumps(config).encode()})


def _write_graph(root: Path, graph: int, kernels: Sequence[Path], *, device: int, seed: int) -> None:
    """Write an FX graph entry with its kernels inside, its module, and the AOTAutograd entry that refers to it."""
    text = _GRAPH_MODULE.format(graph=graph, seed=seed) + "".join(f"# {place.name}\n" for place in kernels)
    module = _write_module(root, text)
    entry = {
        "cache_key": os.path.basename(module).removesuffix(".py"),
        "source_code": text,
        "_fx_graph_cache_debug_lines": [f"[{_base32(f'{seed} {n}')}] inductor_config[{n}]: {n}" for n in range(60)],
        "_triton_bundle": {
            "kernel_artifacts": [_bundled(place, device) for place in kernels],
            "static_autotuners": [],
        },
    }
    key = _write_pickle(root / "fxgraph", "f", entry, spread=True)
    _write_pickle(root / "aotautograd", "a", {"compiled_fw": {"fx_key": key}, "guards_expr": "True", "graph": graph})


def _bundled(place: Path, device: int) -> dict[str, Any]:
    """What torch's TritonBundler keeps of a kernel: every file, in the order of the directory, paths replaced."""
    group = next(place.glob(f"{GROUP_PREFIX}*.json"))
    recorded = os.path.dirname(next(iter(json.loads(group.read_bytes())["child_paths"].values())))
    names = sorted(path.name for path in place.iterdir())
    random.Random(place.name).shuffle(names)
    payloads = {name: (place / name).read_bytes() for name in names}
    payloads[group.name] = payloads[group.name].replace(recorded.encode(), b"[REPLACE]")
    artifacts = [{"filename": name, "payload": payload} for name, payload in payloads.items()]
    return {"kernel_hash": place.name, "device": device, "artifacts": artifacts}


def _write_pickle(directory: Path, letter: str, value: Any, *, spread: bool = False) -> str:
    """Write ``<directory>/[<2>/]<key>/<content hash>``; return the key, which begins with ``letter``."""
    data = pickle.dumps(value, protocol=4)
    key = letter + _base32(f"{letter} {_hex(data.hex())}")
    parent = directory / key[1:3] if spread else directory
    _write(parent / key, {_base32(data.hex()): data})
    return key


def _write_helpers(root: Path, recorded: str, *, device: int, seed: int) -> None:
    helper = path_key(_hex("helper"))
    _write(root / "triton" / str(device) / helper, {HELPER: host_binary(directory=recorded)})
    _write(root / "locks", {f"c{_base32(f'lock {seed}')}.lock": b""})
    choices = {"mm": {"[((64, 64), torch.float32)]": {"ieee": {"triton_mm_0": 0.0123}}}}
    _write(root / "cache", {_hex("system"): json.dumps(choices).encode()})


def _write_artifact(directory: Path, graph: int, seed: int) -> None:
    """What ``standalone_compile(...).save(format="unpacked")`` leaves: an Inductor root with one AOTAutograd entry."""
    _write_graph(directory, graph, [], device=0, seed=seed)


# --- small things --------------------------------------------------------------------------------------------------


def _names(kernels: int | Sequence[str]) -> list[str]:
    if not isinstance(kernels, int):
        return list(kernels)
    return [KERNEL_NAMES[number % len(KERNEL_NAMES)] for number in range(kernels)]


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


def _files(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink())


def _hex(*parts: object) -> str:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()


def _base32(text: str) -> str:
    """51 lower-case characters, as Inductor spells its hashes."""
    return base64.b32encode(hashlib.sha256(text.encode()).digest())[:51].decode().lower()


_KERNEL_MODULE = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

triton_helpers.set_driver_to_gpu()


@triton_heuristics.pointwise(size_hints={{'x': 4096}}, filename=__file__, triton_meta={{}}, inductor_meta={{}})
@triton.jit
def {name}(in_ptr0, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tl.store(out_ptr0 + (xindex), tmp0, xmask)
"""

_GRAPH_MODULE = """# AOT ID: ['{graph}_forward', {seed}]
from ctypes import c_void_p, c_long, c_int
import torch
from torch import device, empty_strided
from torch._inductor.async_compile import AsyncCompile

async_compile = AsyncCompile()


def call(args):
    primals_1, primals_2 = args
    args.clear()
    buf0 = empty_strided((64, 64), (64, 1), device='cuda', dtype=torch.float32)
    return (buf0, primals_1, primals_2)
"""

_COMPUTATION_GRAPH = """from __future__ import annotations
import torch
class GraphModule(torch.nn.Module):
    def forward(self, s72: "Sym(s72)", L_input_ids_: "i32[s72]", L_weight_: "bf16[32000, 4096]"):
        # File: /opt/venv/lib/python3.12/site-packages/vllm/model_executor/models/llama.py:388 in forward
        embedding = torch.nn.functional.embedding(L_input_ids_, L_weight_)
        return (embedding,)

def unused(add_1):
"""

_TRANSFORMED_CODE = """def forward(self, input_ids, positions, intermediate_tensors, inputs_embeds=None):
    graph_out_0 = __compiled_fn_1(input_ids.size()[0], input_ids, self.embed_tokens.weight)
    return graph_out_0[0]
"""
