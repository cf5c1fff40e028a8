"""The files of a kernel, made without a compiler: as large, as repetitive and as full of paths as real ones.

Everything is a function of a :class:`Recipe`. Text and binaries follow what Triton 3.6 to 3.9 write, closely enough
that JSON, ELF and DWARF readers accept them; no GPU would run them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import random
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Recipe", "Section", "elf", "host_binary", "path_key"]

EM_X86_64, EM_CUDA, EM_AMDGPU = 62, 190, 224
ET_EXEC, ET_DYN = 2, 3
SHT_PROGBITS, SHT_STRTAB = 1, 3
SHF_ALLOC, SHF_EXECINSTR = 2, 4

# The low byte of e_flags: EF_AMDGPU_MACH_AMDGCN_*, as LLVM numbers them.
AMD_MACHINES = {
    "gfx906": 0x2F,
    "gfx908": 0x30,
    "gfx90a": 0x3F,
    "gfx942": 0x4C,
    "gfx950": 0x4F,
    "gfx1030": 0x36,
    "gfx1100": 0x41,
    "gfx1200": 0x48,
    "gfx1201": 0x4E,
}
_XNACK_AND_SRAMECC_ANY = 0x500

Arch = int | str
TargetTuple = tuple[str, Arch, int]


def path_key(kernel_hash: str) -> str:
    """Return Triton's directory name for a kernel hash of 64 hex digits: unpadded base32, 52 characters."""
    return base64.b32encode(bytes.fromhex(kernel_hash)).decode().rstrip("=")


class Section(NamedTuple):
    """One section of an ELF file, to be laid out by :func:`elf`."""

    name: str
    data: bytes
    flags: int = 0
    align: int = 1
    type: int = SHT_PROGBITS


def elf(
    sections: Iterable[Section],
    *,
    machine: int,
    kind: int = ET_EXEC,
    flags: int = 0,
    os_abi: int = 0,
    abi_version: int = 0,
    version: int = 1,
) -> bytes:
    """Return a little-endian ELF64 file: header, sections in the order given, then ``.shstrtab`` and the section table.

    Args:
        sections: Without the null section and ``.shstrtab``, which are added.
        machine: e_machine, such as 190 for CUDA.
        kind: e_type.
        flags: e_flags.
        os_abi: Byte 7 of the identification.
        abi_version: Byte 8 of the identification.
        version: e_version; ptxas writes 0x81 under ABI version 7.
    """
    listed = list(sections)
    names = bytearray(b"\0")
    offsets = [_append_name(names, section.name) for section in listed]
    offsets.append(_append_name(names, ".shstrtab"))
    listed.append(Section(".shstrtab", bytes(names), type=SHT_STRTAB))
    body, rows = bytearray(), [bytes(64)]
    for name_offset, section in zip(offsets, listed, strict=True):
        body += bytes(-(64 + len(body)) % section.align)
        place = 64 + len(body)
        body += section.data
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ",
                name_offset,
                section.type,
                section.flags,
                0,
                place,
                len(section.data),
                0,
                0,
                section.align,
                0,
            )
        )
    body += bytes(-len(body) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes([os_abi, abi_version]) + bytes(7)
    header = struct.pack(
        "<HHIQQQIHHHHHH", kind, machine, version, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(rows), len(rows) - 1
    )
    return ident + header + bytes(body) + b"".join(rows)


def _append_name(names: bytearray, name: str) -> int:
    offset = len(names)
    names += name.encode() + b"\0"
    return offset


def host_binary(seed: int = 0, *, directory: str = "/tmp") -> bytes:
    """Return a shared object for x86-64, as Inductor's C++ backend and Triton's launcher leave them."""
    rng = random.Random(f"host binary {seed}")
    return elf(
        [
            Section(".text", _instructions(rng, 256), SHF_ALLOC | SHF_EXECINSTR, 16),
            Section(".rodata", b"GLIBC_2.17\0GLIBCXX_3.4.21\0", SHF_ALLOC),
            Section(".debug_line", _debug_line(directory, "kernel.cpp")),
        ],
        machine=EM_X86_64,
        kind=ET_DYN,
    )


@dataclass(frozen=True)
class Recipe:
    """What the files of one kernel are made from; equal recipes give equal bytes, on any host and Python.

    Attributes:
        name: The kernel function.
        target: Backend, arch and warp size as Triton writes them: ``("cuda", 90, 32)``, ``("hip", "gfx942", 64)``.
        seed: Tells kernels of one name apart, as configurations do.
        source_file: Absolute path of the Python file, recorded in the texts and in the debug section of the binary,
            and in nothing else: two recipes that differ in it alone share every byte of ``.text``.
        packages: Where the packages lie, recorded in ``extern_libs``.
        triton_version: As the metadata says it.
    """

    name: str
    target: TargetTuple = ("cuda", 90, 32)
    seed: int = 0
    source_file: str = "/workspace/kernels.py"
    packages: str = "/opt/venv/lib/python3.12/site-packages"
    triton_version: str = "3.6.0"

    @property
    def kernel_hash(self) -> str:
        """64 hex digits. Does not depend on any path, as Triton's does not."""
        return hashlib.sha256(f"{self.name}-{self.target}-{self.seed}-{self.triton_version}".encode()).hexdigest()

    @property
    def binary_suffix(self) -> str:
        """``cubin`` or ``hsaco``."""
        return {"cuda": "cubin", "hip": "hsaco"}[self.target[0]]

    def files(self) -> dict[str, bytes]:
        """Return suffix -> bytes, metadata excepted, in the order in which Triton compiles (and lists) them."""
        loc, steps = self._random("steps"), self._steps()
        assembly = "ptx" if self.target[0] == "cuda" else "amdgcn"
        return {
            "source": _ir(self, steps, layout="", inlined=True).encode(),
            "ttir": _ir(self, steps, layout="", inlined=False).encode(),
            "ttgir": _ir(self, steps, layout=", #blocked", inlined=False).encode(),
            "llir": _llir(self, steps).encode(),
            assembly: _assembly(self, steps, loc.randrange(100, 200)).encode(),
            self.binary_suffix: self.binary(),
        }

    def binary(self) -> bytes:
        """Return the cubin or hsaco."""
        text = _instructions(self._random("text"), 16 * len(self._steps()))
        constants = struct.pack("<64I", *(self._random("constants").randrange(4096) for _ in range(64)))
        debug = Section(".debug_line", _debug_line(*os.path.split(self.source_file)))
        backend, arch, _ = self.target
        if backend == "hip":
            return _hsaco(str(arch), text, constants, debug)
        return _cubin(self.name, int(arch), text, constants, debug)

    def metadata(self, **changes: Any) -> dict[str, Any]:
        """Return what ``<name>.json`` holds, key order included; ``changes`` replace or add keys."""
        backend, arch, warp_size = self.target
        rng = self._random("metadata")
        fields = {
            "hash": self.kernel_hash,
            "target": {"backend": backend, "arch": arch, "warp_size": warp_size},
            "num_warps": rng.choice([2, 4, 8]),
            **(
                _cuda_options(self.packages, int(arch)) if backend == "cuda" else _hip_options(self.packages, str(arch))
            ),
            "backend_name": backend,
            "triton_version": self.triton_version,
            "tensordesc_meta": [],
            "shared": rng.choice([0, 256, 1024, 16640]),
            "global_scratch_size": 0,
            "global_scratch_align": 1,
            "name": self.name,
        }
        return fields | changes

    def _random(self, part: str) -> random.Random:
        return random.Random(f"{self.name} {self.target} {self.seed} {part}")

    def _steps(self) -> list[tuple[str, int, int, int]]:
        """The computation that every text spells out: operation, two operands, and the line it stands on."""
        rng = self._random("steps")
        count, line = rng.randrange(20, 60), rng.randrange(10, 30)
        steps = []
        for number in range(count):
            line += rng.choice([0, 1, 1, 2])
            steps.append((rng.choice(_OPERATIONS), rng.randrange(number + 2), rng.randrange(number + 2), line))
        return steps


_OPERATIONS = ["addf", "mulf", "subf", "maxnumf", "divf"]


def _cuda_options(packages: str, arch: int) -> Mapping[str, Any]:
    return {
        "num_ctas": 1,
        "num_stages": 3,
        "warp_size": 32,
        "maxnreg": None,
        "ptx_version": None,
        "ptx_options": None,
        "ir_override": None,
        "enable_fp_fusion": True,
        "launch_cooperative_grid": False,
        "launch_pdl": False,
        "supported_fp8_dtypes": ["fp8e4b15", "fp8e4nv", "fp8e5"],
        "default_dot_input_precision": "tf32",
        "allowed_dot_input_precisions": ["tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"],
        "extern_libs": [["libdevice", f"{packages}/triton/backends/nvidia/lib/libdevice.10.bc"]],
        "debug": True,
        "sanitize_overflow": False,
        "arch": f"sm{arch}",
    }


def _hip_options(packages: str, arch: str) -> Mapping[str, Any]:
    library = f"{packages}/triton/backends/amd/lib"
    return {
        "waves_per_eu": 0,
        "num_stages": 2,
        "num_ctas": 1,
        "extern_libs": [["ocml", f"{library}/ocml.bc"], ["ockl", f"{library}/ockl.bc"]],
        "debug": False,
        "sanitize_overflow": True,
        "arch": arch,
        "supported_fp8_dtypes": ["fp8e4b8", "fp8e4nv", "fp8e5", "fp8e5b16"],
        "default_dot_input_precision": "ieee",
        "allowed_dot_input_precisions": ["bf16x3", "bf16x6", "ieee", "tf32"],
        "enable_fp_fusion": True,
        "matrix_instr_nonkdim": 0,
        "kpack": 1,
        "warp_size": 64,
    }


def _cubin(name: str, arch: int, text: bytes, constants: bytes, debug: Section) -> bytes:
    recent = arch >= 90  # ptxas moved to ABI version 8 there
    return elf(
        [
            debug,
            Section(".nv.info", struct.pack("<6I", 0x00081104, 2, 0, 0x00081204, 2, 0), align=4),
            Section(f".text.{name}", text, SHF_ALLOC | SHF_EXECINSTR, 128),
            Section(f".nv.constant0.{name}", constants, SHF_ALLOC, 4),
        ],
        machine=EM_CUDA,
        flags=0x9000004 | arch << 8 if recent else arch << 16 | 0x500 | arch,
        os_abi=0x41 if recent else 0x33,
        abi_version=8 if recent else 7,
        version=1 if recent else 0x81,
    )


def _hsaco(arch: str, text: bytes, constants: bytes, debug: Section) -> bytes:
    return elf(
        [
            Section(".rodata", constants[:64], SHF_ALLOC, 64),
            Section(".text", text, SHF_ALLOC | SHF_EXECINSTR, 256),
            debug,
            Section(".comment", b"Linker: LLD 22.0.0\0"),
        ],
        machine=EM_AMDGPU,
        kind=ET_DYN,
        flags=AMD_MACHINES[arch] | (_XNACK_AND_SRAMECC_ANY if arch.startswith("gfx9") else 0),
        os_abi=64,
        abi_version=3,
    )


def _instructions(rng: random.Random, count: int) -> bytes:
    """16-byte words that share a few opcodes and control fields, as machine code does: not noise, not constant."""
    opcodes = [rng.randbytes(6) for _ in range(12)]
    controls = [rng.randbytes(4) for _ in range(4)]
    return b"".join(
        rng.choice(opcodes) + struct.pack("<3H", *(rng.randrange(40) for _ in range(3))) + rng.choice(controls)
        for _ in range(count)
    )


def _debug_line(directory: str, file: str) -> bytes:
    """A DWARF 2 line program of one row, for one file in one directory."""
    tables = bytes([1, 1, 0xFB, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1])
    tables += directory.encode() + b"\0\0" + file.encode() + b"\0\x01\0\0\0"
    program = b"\0\x09\x02" + bytes(8) + b"\x01\0\x01\x01"  # set address 0, copy, end of sequence
    unit = struct.pack("<HI", 2, len(tables)) + tables + program
    return struct.pack("<I", len(unit)) + unit


def _ir(recipe: Recipe, steps: list[tuple[str, int, int, int]], *, layout: str, inlined: bool) -> str:
    """MLIR, as in ``.source``, ``.ttir`` and ``.ttgir``: the path once at the top, locations counted at the end."""
    kind = f"tensor<1024xf32{layout}>"
    lines = [f'#loc = loc("{recipe.source_file}":18:0)']
    if layout:
        lines.insert(
            0, "#blocked = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"
        )
    if inlined:
        lines.append(f'#loc1 = loc("{recipe.packages}/torch/_inductor/runtime/triton_helpers.py":115:0)')
    pointer = "!tt.ptr<f32> {tt.divisibility = 16 : i32}"
    lines += ["module {", f'  tt.func public @{recipe.name}(%in_ptr0: {pointer} loc("in_ptr0"(#loc)), %xnumel: i32) {{']
    lines += [f"    %v0 = arith.constant dense<0.000000e+00> : {kind} loc(#loc)"]
    lines += [f"    %v1 = arith.constant dense<{recipe.seed}.000000e+00> : {kind} loc(#loc)"]
    for number, (operation, left, right, _) in enumerate(steps, start=2):
        lines.append(f"    %v{number} = arith.{operation} %v{left}, %v{right} : {kind} loc(#loc{number})")
    lines += ["    tt.return loc(#loc)", "  } loc(#loc)", "} loc(#loc)"]
    for number, (_, left, _, line) in enumerate(steps, start=2):
        lines.append(f'#loc{number} = loc("{recipe.source_file}":{line}:{8 + left % 24})')
    return "\n".join(lines) + "\n"


def _llir(recipe: Recipe, steps: list[tuple[str, int, int, int]]) -> str:
    directory, file = os.path.split(recipe.source_file)
    lines = ["; ModuleID = 'LLVMDialectModule'", 'source_filename = "LLVMDialectModule"', ""]
    lines += [f"define ptx_kernel void @{recipe.name}(ptr addrspace(1) %0, i32 %1) local_unnamed_addr #0 !dbg !5 {{"]
    for number, (operation, left, right, _) in enumerate(steps):
        for element in range(4):
            value, lhs, rhs = (f"%{4 * n + element + 2}" for n in (number + 2, left, right))
            lines.append(f"  {value} = f{operation[:3]} float {lhs}, {rhs}, !dbg !{number + 8}")
    lines += ["  ret void, !dbg !7", "}", "", f'!1 = !DIFile(filename: "{file}", directory: "{directory}")']
    for number, (_, left, _, line) in enumerate(steps):
        lines.append(f"!{number + 8} = !DILocation(line: {line}, column: {8 + left % 24}, scope: !5)")
    return "\n".join(lines) + "\n"


def _assembly(recipe: Recipe, steps: list[tuple[str, int, int, int]], registers: int) -> str:
    """PTX, or the text of the same shape that stands for AMDGCN."""
    backend, arch, _ = recipe.target
    directory, file = os.path.split(recipe.source_file)
    head = (
        [".version 9.0", f".target sm_{arch}"] if backend == "cuda" else [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"']
    )
    lines = [
        "//",
        "// Generated by LLVM",
        "//",
        *head,
        f".visible .entry {recipe.name}(",
        ")",
        "{",
        f"\t.reg .b32 %r<{registers}>;",
    ]
    for operation, left, right, line in steps:
        lines.append(f"\t.loc\t1 {line} {8 + left % 24}                          // {file}:{line}:{8 + left % 24}")
        for element in range(4):
            lines.append(
                f"\t{operation[:3]}.f32 \t%r{left + element}, %r{right + element}, %r{(left * 4 + element) % 97};"
            )
    lines += ["\tret;", "}", f'\t.file\t1 "{directory}/{file}"']
    return "\n".join(lines) + "\n"
