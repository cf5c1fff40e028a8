"""Three small kernels, of the shapes that real models are made of: pointwise, reduction, matrix product."""

import triton
import triton.language as tl

__all__ = ["KERNELS", "add", "matmul", "softmax"]


@triton.jit
def add(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store ``x + y``."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    total = tl.load(x_ptr + offsets, inside) + tl.load(y_ptr + offsets, inside)
    tl.store(out_ptr + offsets, total, inside)


@triton.jit
def softmax(x_ptr, out_ptr, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the softmax of one row per program."""
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    start = tl.program_id(0) * columns
    row = tl.load(x_ptr + start + offsets, inside, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, 0))
    tl.store(out_ptr + start + offsets, powers / tl.sum(powers, 0), inside)


@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store one block of ``a @ b``; both are ``size`` x ``size``, and ``size`` is a multiple of ``BLOCK``."""
    rows = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, size, BLOCK):
        left = tl.load(a_ptr + rows * size + start + inner[None, :])
        right = tl.load(b_ptr + (start + inner)[:, None] * size + columns)
        total = tl.dot(left, right, total)
    tl.store(out_ptr + rows * size + columns, total)


# name -> kernel, types of the arguments in order, and the block size
KERNELS = {
    "add": (add, ("*fp32", "*fp32", "*fp32", "i32"), 1024),
    "softmax": (softmax, ("*fp32", "*fp32", "i32"), 512),
    "matmul": (matmul, ("*fp16", "*fp16", "*fp32", "i32"), 32),
}
