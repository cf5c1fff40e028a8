"""Compile the kernels of ``kernels.py`` into ``TRITON_CACHE_DIR``, for GPUs that need not be on this host.

Prints one JSON object::

    {"kernels": {"add@cuda:90": {"hit": true, "hash": "<64 hex>", "key": "<path key>", "name": "add",
                                 "seconds": 0.1}},
     "compiled": 0, "hits": 1, "seconds": 1.5, "triton": "3.9.0"}

``seconds`` outside the kernels is the time from the first line of this program, the import of Triton included.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from typing import Any

WARP_SIZES = {"cuda": 32, "hip": 64}


def main() -> None:
    """Parse the command line, compile, print."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="cuda:90,hip:gfx942", help="comma-separated BACKEND:ARCH")
    parser.add_argument("--kernels", default="", help="comma-separated names; all by default")
    arguments = parser.parse_args()
    kernels = compile_all(arguments.targets.split(","), [name for name in arguments.kernels.split(",") if name])
    hits = sum(kernel["hit"] for kernel in kernels.values())

    import triton

    report = {
        "kernels": kernels,
        "compiled": len(kernels) - hits,
        "hits": hits,
        "seconds": time.perf_counter() - started,
        "triton": triton.__version__,
    }
    print(json.dumps(report))


def compile_all(targets: list[str], names: list[str]) -> dict[str, dict[str, Any]]:
    """Compile every named kernel for every target; return one record for each."""
    from kernels import KERNELS  # type: ignore[import-not-found, unused-ignore]  # beside this file, when it is run

    return {
        f"{name}@{target}": compile_one(*KERNELS[name], target=target)
        for target in targets
        for name in (names or KERNELS)
    }


def compile_one(kernel: Any, types: tuple[str, ...], block: int, *, target: str) -> dict[str, Any]:
    """Compile one kernel for one target, and ask Triton's listener whether the cache had it."""
    from triton import compile as triton_compile
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    seen: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: seen.append(cache_hit)
    backend, _, arch = target.partition(":")
    signature = dict(zip(kernel.arg_names, (*types, "constexpr"), strict=True))
    source = ASTSource(kernel, signature=signature, constexprs={(len(types),): block})
    gpu = GPUTarget(backend, int(arch) if arch.isdigit() else arch, _warp_size(backend, arch))
    started = time.perf_counter()
    compiled = triton_compile(source, target=gpu)
    return {
        "hit": all(seen) and bool(seen),
        "hash": compiled.hash,
        "key": base64.b32encode(bytes.fromhex(compiled.hash)).decode().rstrip("="),
        "name": compiled.metadata.name,
        "seconds": time.perf_counter() - started,
    }


def _warp_size(backend: str, arch: str) -> int:
    return 32 if arch.startswith(("gfx10", "gfx11", "gfx12")) else WARP_SIZES[backend]


if __name__ == "__main__":
    main()
