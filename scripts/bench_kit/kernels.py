"""Kernels made without Triton, as large and as repetitive as recorded ones, thousands of them in seconds.

Measured on the 122 kernels of a ResNet-18 cache (H200): the texts of a kernel take 22 to 28 KB each but for .ttir and
.ttgir (13 and 15), the cubin 22 KB; each file alone shrinks 4 to 8 times under ``zstd -3``, all of a kind together 12
to 15 times, cubins 7 times. A kernel here is a row of steps that every text spells out in its own way. Numbers of
values, registers, lines and columns differ from kernel to kernel, as do sizes; phrases do not. So the texts here take
14 to 27 KB and shrink 6 to 10 and 10 to 22 times, the cubins 4.
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bundler.testing.artifacts import EM_CUDA, Recipe, Section, elf, path_key

_NAMES = ("poi_fused_add_relu", "red_fused_native_layer_norm", "per_fused__softmax", "poi_fused_convolution_mean")
_ACTS = ("addf", "mulf", "subf", "maxnumf", "divf", "mulf", "addf")
_FRACTION = "{tt.divisibility = 16 : i32}"


class Step(NamedTuple):
    """One operation: what, on which values, on which line and column of the source; ``load`` reads memory."""

    number: int
    act: str
    left: int
    right: int
    line: int
    column: int
    load: bool


def write_kernels(root: Path, count: int, *, first: int = 0) -> list[Path]:
    """Write ``count`` kernel directories below ``root``, numbered from ``first``; all cores work on it."""
    root.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + count)
    if count < 200:
        return [_write(root, number) for number in numbers]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_write, [root] * count, numbers, chunksize=50))


def kernel_files(number: int, directory: str, source: str) -> dict[str, bytes]:
    """Return the files of one kernel by name, group file included.

    Args:
        number: Which; equal numbers give equal kernels.
        directory: Absolute path of its directory, which its group file names.
        source: Absolute path of its module, which its texts name.
    """
    name = f"triton_{_NAMES[number % len(_NAMES)]}_{number % 97}"
    recipe = Recipe(name, seed=number, source_file=source)
    steps = list(_steps(number))
    files = {
        f"{name}.{suffix}": text.encode()
        for suffix, text in {
            "source": _ir(name, source, steps, "", inlined=True),
            "ttir": _ir(name, source, steps, "", inlined=False),
            "ttgir": _ir(name, source, steps, ", #blocked", inlined=False),
            "llir": _llir(name, source, steps),
            "ptx": _ptx(name, source, steps),
        }.items()
    }
    files[f"{name}.cubin"] = _cubin(name, number, steps)
    files[f"{name}.json"] = json.dumps(recipe.metadata()).encode()
    group = {"child_paths": {file: f"{directory}/{file}" for file in files}}
    return {**files, f"__grp__{name}.json": json.dumps(group).encode()}


def key_of(number: int) -> str:
    """Return the path key of a kernel."""
    name = f"triton_{_NAMES[number % len(_NAMES)]}_{number % 97}"
    return path_key(Recipe(name, seed=number).kernel_hash)


def _write(root: Path, number: int) -> Path:
    place = root / key_of(number)
    place.mkdir()
    source = f"/tmp/torchinductor_user/{number % 61:02x}/c{key_of(number)[:50].lower()}.py"
    for name, data in kernel_files(number, str(place), source).items():
        (place / name).write_bytes(data)
    return place


def _steps(number: int) -> Iterator[Step]:
    rng = random.Random(f"kernel {number}")
    line, count = rng.randrange(18, 30), int(rng.triangular(12, 130, 36))
    for step in range(count):
        line += rng.choice((0, 1, 1, 1, 2))
        near = max(0, step - 6)
        left, right = rng.randint(near, step + 1), rng.randint(near, step + 1)
        yield Step(step + 2, rng.choice(_ACTS), left, right, line, rng.choice((12, 20, 24, 32, 36, 41)), step % 4 == 0)


def _ir(name: str, source: str, steps: list[Step], layout: str, *, inlined: bool) -> str:
    kind, pointers = f"tensor<1x1024xf32{layout}>", f"tensor<1x1024x!tt.ptr<f32>{layout}>"
    lines = [f'#loc = loc("{source}":18:0)', "module {"]
    if layout:
        blocked = "sizePerThread = [1, 4], threadsPerWarp = [1, 32], warpsPerCTA = [1, 8], order = [1, 0]"
        lines[:0] = [f"#blocked = #ttg.blocked<{{{blocked}}}>"]
        lines[-1] = 'module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 8 : i32, ttg.target = "cuda:90"} {'
    lines.append(f'  tt.func public @{name}(%in_ptr0: !tt.ptr<f32> {_FRACTION} loc("in_ptr0"(#loc))) {{')
    for n, act, left, right, _, _, load in steps:
        if load:
            lines.append(f"    %tmp{n}_p = tt.addptr %in_ptr0_{left}, %x{right} : {pointers} loc(#loc{2 * n})")
            lines.append(
                f"    %tmp{n} = tt.load %tmp{n}_p, %xmask evictionPolicy = evict_last : {pointers} loc(#loc{2 * n + 1})"
            )
        else:
            lines.append(f"    %tmp{n} = arith.{act} %tmp{left}, %tmp{right} : {kind} loc(#loc{2 * n})")
        if inlined:
            lines.append(
                f"    %tmp{n}_b = tt.broadcast %tmp{n} : tensor<1x1xf32> -> tensor<1x1024xf32> loc(#loc{2 * n})"
            )
            lines.append(f"    %c{n}_i32 = arith.constant {16 * n} : i32 loc(#loc{2 * n})")
    lines += ["    tt.return loc(#loc)", "  } loc(#loc)", "} loc(#loc)"]
    for n, _, left, _, line, column, load in steps:
        lines.append(f'#loc{2 * n} = loc("{source}":{line}:{column})')
        if load or inlined:
            lines.append(f'#loc{2 * n + 1} = loc("{source}":{line}:{column + left % 8})')
    return "\n".join(lines) + "\n"


def _llir(name: str, source: str, steps: list[Step]) -> str:
    directory, file = os.path.split(source)
    lines = ["; ModuleID = 'LLVMDialectModule'", 'source_filename = "LLVMDialectModule"', ""]
    lines.append(f"define ptx_kernel void @{name}(ptr addrspace(1) %0, i32 %1) local_unnamed_addr #0 !dbg !5 {{")
    for step in steps:
        lines += [f"  {line}, !dbg !{step.number + 8}" for line in _llir_step(step)]
    lines += ["  ret void, !dbg !7", "}", "", f'!1 = !DIFile(filename: "{file}", directory: "{directory}")']
    lines += [
        f"!{step.number + 8} = !DILocation(line: {step.line}, column: {step.column}, scope: !5)" for step in steps
    ]
    return "\n".join(lines) + "\n"


def _llir_step(step: Step) -> Iterator[str]:
    base, left, right = 12 * step.number, 12 * step.left + 6, 12 * step.right + 6
    if not step.load:
        for part in range(4):
            yield f"%{base + 6 + part} = f{step.act[:3]} float %{left + part}, %{right + part}"
        return
    four = "{ i32, i32, i32, i32 }"
    text = "mov.u32 $0, 0x0;\\0A\\09@$5 ld.global.L1::evict_last.v4.b32 { $0, $1, $2, $3 }, [ $4 + 0 ];"
    given = f'"=r,=r,=r,=r,l,b"(ptr addrspace(1) %{base}, i1 true) #4'
    yield f"%{base} = getelementptr float, ptr addrspace(1) %0, i64 %{right - 6}"
    yield f'%{base + 1} = tail call {four} asm sideeffect "{text}", {given}'
    for part in range(4):
        yield f"%{base + 2 + part} = extractvalue {four} %{base + 1}, {part}"
        yield f"%{base + 6 + part} = bitcast i32 %{base + 2 + part} to float"


def _ptx(name: str, source: str, steps: list[Step]) -> str:
    directory, file = os.path.split(source)
    lines = ["//", "// Generated by LLVM NVPTX Back-End", "//", ".version 8.7", ".target sm_90a", ".address_size 64"]
    lines += ["", f".visible .entry {name}(", f"\t.param .u64 .ptr .global .align 16 {name}_param_0,"]
    lines += [f"\t.param .u32 {name}_param_1", ")", ".reqntid 256", "{", f"\t.reg .b32 \t%r<{8 * len(steps)}>;"]
    for step in steps:
        at = f"{step.line} {step.column}"
        lines.append(f"\t.loc\t1 {at}                          // {file}:{at.replace(' ', ':')}")
        lines += [f"\t{line}" for line in _ptx_step(step)]
    lines += ["\tret;", "}", f'\t.file\t1 "{directory}/{file}"', "\t.section\t.debug_abbrev", "\t{", *_DEBUG, "\t}"]
    for step in steps:
        values = (step.number, step.left, step.right, step.line, step.column, 0, 0, 2)
        lines += [f".b8 {value % 256}" for value in values]
    return "\n".join(lines) + "\n"


def _ptx_step(step: Step) -> Iterator[str]:
    into, left, right = 4 * step.number, 4 * step.left, 4 * step.right
    if not step.load:
        for part in range(4):
            yield f"{step.act[:3]}.f32 \t%r{into + part}, %r{left + part}, %r{right + part};"
        return
    registers = ", ".join(f"%r{into + part}" for part in range(4))
    yield f"mad.wide.s32 \t%rd{step.number}, %r{right}, 4, %rd1;"
    yield "// begin inline asm"
    for part in range(4):
        yield f"mov.u32 %r{into + part}, 0x0;"
    yield f"@%p{step.left % 4} ld.global.L1::evict_last.v4.b32 {{ {registers} }}, [ %rd{step.number} + 0 ];"
    yield "// end inline asm"


_DEBUG = [
    f".b8 {value}" for value in (1, 17, 1, 37, 8, 19, 5, 3, 8, 16, 6, 27, 8, 0, 0, 2, 46, 0, 3, 8, 32, 11, 0, 0)
] * 4


def _cubin(name: str, number: int, steps: list[Step]) -> bytes:
    """Machine code whose words share opcodes over all kernels, and registers and controls within one."""
    rng = random.Random(f"cubin {number}")
    words = []
    for step in steps:
        controls = rng.sample(_CONTROLS, 3)
        for part in range(32 if step.load else 16):
            opcode = _OPCODES[(part * 5 + len(step.act) * 3 + step.load) % len(_OPCODES)]
            registers = struct.pack("<3B", (step.left + part) % 64, (step.right * 4 + part) % 64, step.number % 64)
            words.append(opcode + registers + controls[part % 3])
    symbols = "\0".join(["", ".shstrtab", ".text." + name, ".nv.info." + name, ".nv.constant0." + name, name]).encode()
    lines = b"".join(struct.pack("<4B", 3, step.line % 256, step.column, 1) for step in steps)
    sections = [
        Section(".debug_line", struct.pack("<I", 2) + lines + bytes(512)),
        Section(".strtab", symbols * 3, type=3),
        Section(".nv.info", struct.pack("<6I", 0x00081104, 2, 0, 0x00081204, 2, 0) * 12, align=4),
        Section(f".text.{name}", b"".join(words), 6, 128),
        Section(f".nv.constant0.{name}", bytes(528), 2, 4),
    ]
    return elf(sections, machine=EM_CUDA, flags=0x9000004 | 90 << 8, os_abi=0x41, abi_version=8)


_OPCODES = [random.Random(f"opcode {n}").randbytes(8) for n in range(48)]
_CONTROLS = [random.Random(f"control {n}").randbytes(5) for n in range(24)]
