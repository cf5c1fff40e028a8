"""Kernels for ``test_elf.py``, and the program that compiles them: ``python elf_kernels.py CACHE_DIR``.

The test runs copies of this file, since the directory of the source is what two builds of one kernel differ in. Prints
one JSON object: ``NAME@BACKEND:ARCH`` or ``NAME@BACKEND:ARCH/VARIANT`` to the path of the binary.
"""

from __future__ import annotations

import json
import os
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    total = tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside)
    tl.store(out + offsets, tl.exp(total), mask=inside)


# Printing brings strings, relocations and a call, and a file of Triton's own into the debug information.
@triton.jit
def speak(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < n, other=0.0)
    tl.device_print("offsets", offsets)
    tl.store(out, tl.sum(values, 0))


# A loop around a matrix product: many registers, and shared memory.
@triton.jit
def dot(a, b, c, K, BLOCK: tl.constexpr):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        total = tl.dot(tl.load(a + rows * K + k + columns), tl.load(b + (k + rows) * BLOCK + columns), total)
    tl.store(c + rows * BLOCK + columns, total)


SIGNATURES = {
    "add": (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(4,): 1024}),
    "speak": (speak, {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(3,): 256}),
    "dot": (dot, {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32", "BLOCK": "constexpr"}, {(4,): 32}),
}
BUILDS = [
    ("add", "cuda", 75, ""),  # ABI version 7
    ("add", "cuda", 90, ""),  # ABI version 8
    ("add", "cuda", 90, "num_warps=8"),
    ("add", "hip", "gfx942", ""),
    ("add", "hip", "gfx1100", ""),
    ("speak", "cuda", 90, ""),
    ("speak", "hip", "gfx942", ""),
    ("dot", "cuda", 75, ""),
    ("dot", "cuda", 75, "maxnreg=64"),
    ("dot", "cuda", 120, ""),  # a second copy of every section
    ("dot", "hip", "gfx942", ""),
]


def build(name: str, backend: str, arch: int | str, variant: str) -> str:
    function, signature, constants = SIGNATURES[name]
    warp_size = 64 if arch == "gfx942" else 32
    option, _, value = variant.partition("=")
    options = {option: int(value)} if option else {}
    source = ASTSource(function, signature=signature, constexprs=constants)
    kernel = triton.compile(source, target=GPUTarget(backend, arch, warp_size), options=options)
    suffix = ".cubin" if backend == "cuda" else ".hsaco"
    return next(path for file, path in kernel.metadata_group.items() if file.endswith(suffix))


if __name__ == "__main__":
    os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
    built = {
        f"{name}@{backend}:{arch}/{variant}".rstrip("/"): build(name, backend, arch, variant)
        for name, backend, arch, variant in BUILDS
    }
    print(json.dumps(built))
