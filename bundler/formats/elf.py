"""Just enough of ELF: whose code a binary holds, what of it matters when it runs, and what it asks of a host.

Read from bytes alone, 32 or 64 bit, of either byte order. Any input parses or raises :class:`FormatError`; nothing is
allocated by a count that the bytes do not back.

Sources: the System V gABI (elf.h) for the layout; LLVM's ``BinaryFormat/ELF.h`` and ``AMDGPUUsage`` for the AMD
numbers; for the NVIDIA numbers, cubins written by ptxas 12.9 and 13.4, since NVIDIA documents none.
"""

from __future__ import annotations

import bisect
import hashlib
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from bundler.errors import FormatError
from bundler.model import Target

__all__ = ["Elf", "Section", "Segment", "host_needs", "loadable_digest", "parse", "target"]

MAX_SECTIONS = 100_000  # the largest host libraries have some hundred; a cubin of a thousand kernels some ten thousand
MAX_SEGMENTS = 20_000
MAX_NAMES_SIZE = 16 * 2**20  # bytes of all section names together: names may share bytes, so the file size is no bound
MAX_OVERLAP = 4  # sections may add up to this many times the file (new cubins list their PTX text twice)

_EM_CUDA = 190
_EM_AMDGPU = 224
_OS_ABI_HSA = 64

_SHT_NULL = 0
_SHT_STRTAB = 3
_SHT_NOBITS = 8
_SHN_XINDEX = 0xFFFF  # the number did not fit into 16 bits: it is in section 0
_PN_XNUM = 0xFFFF
_PT_LOAD = 1

# EF_AMDGPU_MACH, the low byte of e_flags: in order from 0x20 on, "-" for reserved. Those that Triton 3.9
# compiles for were read off its output, the others are LLVM's. R600 (below 0x20) never ran HIP.
_AMDGPU_MACH_ROWS = """
    600  601  700  701  702  703  704  -    801  802  803  810  900  902  904  906
    908  909  90c  1010 1011 1012 1030 1031 1032 1033 602  705  805  1035 1034 90a
    940  1100 1013 1150 1103 1036 1101 1102 1200 1250 1151 941  942  -    1201 950
    1310 9-generic 10-1-generic 10-3-generic 11-generic 1152 -    1154
    1153 12-generic 1251 12-5-generic 1172 1170 1171 9-4-generic
    -    -    11-7-generic 13-generic
"""
_AMDGPU_MACH = {0x20 + i: "gfx" + name for i, name in enumerate(_AMDGPU_MACH_ROWS.split()) if name != "-"}

# (e_machine, big-endian) -> the word that `uname -m` has for it.
_MACHINES = {
    (3, False): "i386",
    (21, False): "ppc64le",
    (21, True): "ppc64",
    (22, True): "s390x",
    (40, False): "arm",
    (62, False): "x86_64",
    (183, False): "aarch64",
    (243, False): "riscv64",
    (258, False): "loongarch64",
}

# What holds source paths, line tables and the text of the PTX, behind any of the prefixes that relocations of such a
# section, or the second copy of everything in a cubin for Blackwell (".nv.merc"), put in front.
_DEBUG_NAME = re.compile(r"(?:\.nv\.merc)?(?:\.rela?)?\.(?:debug|zdebug|nv_debug|line|stab|gdb_index|gnu_debug)")
_SECTION_NAMES = ".shstrtab"

_GLIBC_VERSION = re.compile(rb"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?=\0)")
_GLIBC_RELR = b"GLIBC_ABI_DT_RELR\0"  # packed relocations: the mark has no number, glibc 2.36 was the first to know it
_MUSL = b"libc.musl-"


class _Layout(NamedTuple):
    """The three records of ELF, for one class and byte order."""

    header: struct.Struct
    section: struct.Struct
    segment: struct.Struct


class _Header(NamedTuple):
    """The ELF header, and how to read the rest. Offsets and sizes in bytes."""

    layout: _Layout
    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    flags: int
    header_size: int
    segments_offset: int
    segment_size: int
    segment_count: int
    sections_offset: int
    section_size: int
    section_count: int
    names_index: int

    @property
    def big_endian(self) -> bool:
        return self.ident[5] == 2


class Section(NamedTuple):
    """One row of the section table. ``offset`` (from the start of the ELF) and ``size`` in bytes.

    ``size`` bytes lie inside the data, except for types 0 (null) and 8 (no bits), which have none in the file. Bytes of
    ``name`` that are not UTF-8 are kept as lone surrogates.
    """

    name: str
    type: int
    offset: int
    size: int
    flags: int = 0
    address: int = 0
    link: int = 0
    info: int = 0
    alignment: int = 0
    entry_size: int = 0

    @property
    def file_size(self) -> int:
        """Bytes that it has in the file."""
        return 0 if self.type in (_SHT_NULL, _SHT_NOBITS) else self.size


class Segment(NamedTuple):
    """One row of the program header table: what a loader maps. Offsets and sizes in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    physical_address: int
    file_size: int
    memory_size: int
    alignment: int


class Elf(NamedTuple):
    """What the header and the two tables say.

    Attributes:
        machine: ``e_machine``: 190 for NVIDIA, 224 for AMD, 62 for x86_64.
        flags: ``e_flags``.
        abi_version: ``EI_ABIVERSION``.
        os_abi: ``EI_OSABI``.
        sections: In the order of the table; empty for a binary without one.
        segments: In the order of the table.
    """

    machine: int
    flags: int
    abi_version: int
    os_abi: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...] = ()


def parse(data: bytes | memoryview) -> Elf:
    """Read the header, the section table and the program header table.

    Args:
        data: The whole ELF, one byte per item. Borrowed; nothing of it is kept.

    Raises:
        FormatError: Not an ELF, or one whose tables, names or contents do not lie inside ``data``. ``offset`` counts
            bytes from the start of ``data``.

    Source: System V gABI, chapters 4 and 5.
    """
    view = memoryview(data)
    return _parse(view, _read_header(view))


def target(data: bytes | memoryview) -> Target | None:
    """Return the GPU that an ELF is for, from its header alone.

    Args:
        data: The ELF, or at least its first 64 bytes.

    Returns:
        ``cuda:90`` or ``hip:gfx942`` (without a warp size, which an ELF does not tell); None for host code, and for a
        GPU or an ABI version that is not known here. ``sm_90a`` and ``sm_90`` are both ``cuda:90``, as for Triton.

    Raises:
        FormatError: Not an ELF, or the header is cut short.

    Source: LLVM AMDGPUUsage, "ELF header e_flags"; NVIDIA: ABI version 7 has the SM in the low byte of ``e_flags``
        (0x4b054b: 75), version 8 in bits 8 to 15 (0x9005a04: 90).
    """
    header = _read_header(memoryview(data))
    os_abi, abi_version = header.ident[7], header.ident[8]
    if header.machine == _EM_CUDA and abi_version in (7, 8):
        sm = header.flags >> (8 if abi_version == 8 else 0) & 0xFF
        return Target("cuda", str(sm)) if sm >= 20 else None  # 20 is the oldest that was ever compiled to ELF
    if header.machine == _EM_AMDGPU and not (os_abi == _OS_ABI_HSA and abi_version == 0):
        # Code object V2 (ABI version 0) had feature bits where the later ones have the machine.
        arch = _AMDGPU_MACH.get(header.flags & 0xFF)
        return Target("hip", arch) if arch else None
    return None


def loadable_digest(data: bytes | memoryview) -> bytes:
    """Return the SHA-256 (32 raw bytes) of what an ELF does when it is loaded; equal when only debug sections differ.

    Covered: the header without the places of the tables; of every section but those left out, the row of the section
    table without its file offset, and the bytes; of every segment the row, with the section that it starts in for its
    file offset. So code, constants, relocations, symbols, register counts (``.nv.info``, ``sh_info`` of ``.text``, the
    kernel descriptor in ``.rodata``) and load addresses all count, and no file offset does.

    Left out: sections of debug information (``.debug*``, ``.nv_debug*`` with the PTX text, ``.line*``, and the rest of
    ``_DEBUG_NAME``), their relocations, and ``.shstrtab``, whose names are covered one by one; for NVIDIA also offset
    and sizes of segments, which count padding that moves with the debug sections.

    Seen: of 44 pairs (three kernels, five SMs, six gfx; Triton 3.6 and 3.9; sources of equal text in directories whose
    names differ in length) every file of a pair differed, and never outside of what is left out. ``.symtab`` and
    ``.strtab`` were equal each time and are covered, since a cubin is launched by its symbols. A cubin whose program
    headers were overwritten, type by type and size by size, still loaded on an H200 (driver 580): sections are all
    that the driver reads.

    Raises:
        FormatError: As :func:`parse`.
    """
    view = memoryview(data)
    header = _read_header(view)
    elf = _parse(view, header)
    digest = hashlib.sha256()
    digest.update(header.ident)
    numbers = (header.type, header.machine, header.version, header.entry, header.flags, header.header_size)
    digest.update(struct.pack("<HHIQIH", *numbers))
    for section in _loadable(elf):
        digest.update(_section_row(elf, section))
        digest.update(view[section.offset : section.offset + section.file_size])
    for row in _segment_rows(elf, header.segments_offset):
        digest.update(row)
    return digest.digest()


def host_needs(data: bytes | memoryview) -> tuple[str, ...]:
    """Return what a shared object asks of the host that loads it, sorted.

    ``machine:x86_64`` (as ``uname -m`` writes it, or ``machine:<e_machine>``) always; ``glibc:2.34``, the greatest
    version among the names in ``.dynstr``, when there is one; ``musl`` when it is linked to musl's libc. What the CPU
    must be able to do is not in an ELF: see ``host.runs_here``.

    Args:
        data: The whole ELF. Without a section table all of it is searched.

    Raises:
        FormatError: As :func:`parse`.

    Source: gABI, "Symbol versioning" (Solaris and GNU), where every needed version is a name in the string table.
    """
    view = memoryview(data)
    header = _read_header(view)
    elf = _parse(view, header)
    needs = {"machine:" + _MACHINES.get((header.machine, header.big_endian), str(header.machine))}
    versions: set[tuple[int, ...]] = set()
    for strings in _dynamic_strings(view, elf):
        for match in _GLIBC_VERSION.finditer(strings):
            versions.add(tuple(int(part) for part in match.groups() if part))
        if _GLIBC_RELR in strings:
            versions.add((2, 36))
        if _MUSL in strings:
            needs.add("musl")
    if versions:
        needs.add("glibc:" + ".".join(map(str, max(versions))))
    return tuple(sorted(needs))


def _layout(bits: int, big_endian: bool) -> _Layout:
    order = ">" if big_endian else "<"
    if bits == 64:
        return _Layout(*(struct.Struct(order + form) for form in ("16sHHIQQQIHHHHHH", "IIQQQQIIQQ", "IIQQQQQQ")))
    return _Layout(*(struct.Struct(order + form) for form in ("16sHHIIIIIHHHHHH", "10I", "8I")))


_LAYOUTS = {(cls, order): _layout(32 * cls, order == 2) for cls in (1, 2) for order in (1, 2)}


def _check_inside(view: memoryview, offset: int, size: int, what: str) -> None:
    if offset + size > len(view):
        available = max(0, len(view) - offset)
        raise FormatError(f"ELF: {what} is cut short: {size} bytes needed, {available} available", offset)


def _read_header(view: memoryview) -> _Header:
    ident = bytes(view[:16])
    if ident[:4] != b"\x7fELF":
        raise FormatError(f"ELF: the magic is {ident[:4].hex(' ') or 'missing'}, expected 7f 45 4c 46", 0)
    _check_inside(view, 0, 16, "header")
    layout = _LAYOUTS.get((ident[4], ident[5]))
    if layout is None:
        raise FormatError(f"ELF: class {ident[4]} and byte order {ident[5]}, expected 1 or 2 for each", 4)
    if ident[6] != 1:
        raise FormatError(f"ELF: version {ident[6]}, expected 1", 6)
    _check_inside(view, 0, layout.header.size, "header")
    (_, kind, machine, version, entry, phoff, shoff, flags, size, phentsize, phnum, shentsize, shnum, shstrndx) = (
        layout.header.unpack_from(view)
    )
    identity = (layout, ident, kind, machine, version, entry, flags, size)
    return _with_long_counts(view, _Header(*identity, phoff, phentsize, phnum, shoff, shentsize, shnum, shstrndx))


def _with_long_counts(view: memoryview, header: _Header) -> _Header:
    """Take from section 0 what did not fit into the header (gABI, "Extended section numbering")."""
    if not header.sections_offset:
        if header.section_count:
            raise FormatError(f"ELF: {header.section_count} sections, and no place for their table", 0)
        return header
    short_count = header.section_count == 0
    if not short_count and header.names_index != _SHN_XINDEX and header.segment_count != _PN_XNUM:
        return header
    row = header.layout.section
    _check_inside(view, header.sections_offset, row.size, "section 0")
    _, _, _, _, _, size, link, info, _, _ = row.unpack_from(view, header.sections_offset)
    return header._replace(
        section_count=size if short_count else header.section_count,
        names_index=link if header.names_index == _SHN_XINDEX else header.names_index,
        segment_count=info if header.segment_count == _PN_XNUM else header.segment_count,
    )


def _parse(view: memoryview, header: _Header) -> Elf:
    return Elf(
        header.machine,
        header.flags,
        header.ident[8],
        header.ident[7],
        tuple(_sections(view, header)),
        tuple(_segments(view, header)),
    )


def _check_table(
    view: memoryview, what: str, offset: int, count: int, row_size: int, expected_size: int, limit: int
) -> None:
    if count > limit:
        raise FormatError(f"ELF: {count} {what}s, the limit is {limit}", offset)
    if count and row_size != expected_size:
        raise FormatError(f"ELF: a {what} row of {row_size} bytes, expected {expected_size}", offset)
    _check_inside(view, offset, count * row_size, f"{what} table")


def _sections(view: memoryview, header: _Header) -> list[Section]:
    row, start, count = header.layout.section, header.sections_offset, header.section_count
    _check_table(view, "section", start, count, header.section_size, row.size, MAX_SECTIONS)
    rows = [row.unpack_from(view, start + i * row.size) for i in range(count)]
    if count and header.names_index >= count:
        raise FormatError(f"ELF: section {header.names_index} should hold the names, there are {count}", start)
    if count and header.names_index:
        _, kind, _, _, offset, size, *_ = rows[header.names_index]
        names = _Names(view, offset, 0 if kind in (_SHT_NULL, _SHT_NOBITS) else size)
    else:
        names = None  # no names at all is legal: index 0 stands for "none"
    sections, total = [], 0
    for name, kind, flags, address, offset, size, link, info, alignment, entry_size in rows:
        text = names.read(name) if names is not None else ""
        if size and kind not in (_SHT_NULL, _SHT_NOBITS):
            if offset + size > len(view):
                _check_inside(view, offset, size, f"section {text!r}")
            total += size
        sections.append(Section(text, kind, offset, size, flags, address, link, info, alignment, entry_size))
    if total > MAX_OVERLAP * len(view):
        raise FormatError(f"ELF: the sections add up to {total} bytes, the file has {len(view)}", start)
    return sections


class _Names:
    """The string table of section names. ``budget`` counts the bytes of names that may still be read."""

    def __init__(self, view: memoryview, offset: int, size: int) -> None:
        _check_inside(view, offset, size, "section name table")
        self.offset = offset
        self.table = bytes(view[offset : offset + size])
        self.budget = MAX_NAMES_SIZE

    def read(self, start: int) -> str:
        end = self.table.find(b"\0", start, start + self.budget + 1)
        if end < 0:
            raise FormatError("ELF: a section name has no end, or is too long", self.offset + start)
        self.budget -= end - start
        return self.table[start:end].decode("utf-8", "surrogateescape")


def _segments(view: memoryview, header: _Header) -> Iterator[Segment]:
    row, start, count = header.layout.segment, header.segments_offset, header.segment_count
    _check_table(view, "segment", start, count, header.segment_size, row.size, MAX_SEGMENTS)
    for i in range(count):
        fields = row.unpack_from(view, start + i * row.size)
        if row.size == 32:  # the 32-bit row has the flags last but one
            fields = (fields[0], fields[6], *fields[1:6], fields[7])
        segment = Segment(*fields)
        if segment.type == _PT_LOAD:
            _check_inside(view, segment.offset, segment.file_size, f"segment {i}")
        yield segment


def _loadable(elf: Elf) -> Iterator[Section]:
    for section in elf.sections:
        if section.type != _SHT_NULL and section.name != _SECTION_NAMES and not _DEBUG_NAME.match(section.name):
            yield section


def _section_row(elf: Elf, section: Section) -> bytes:
    # By name, not by number: sections of debug information come and go, and numbers move with them.
    linked = elf.sections[section.link].name if section.link < len(elf.sections) else str(section.link)
    numbers = struct.pack(
        "<IQQQIQQ",
        section.type,
        section.size,
        section.flags,
        section.address,
        section.info,
        section.alignment,
        section.entry_size,
    )
    return _counted(section.name) + _counted(linked) + numbers


def _segment_rows(elf: Elf, table_offset: int) -> Iterator[bytes]:
    places = sorted((s.offset, s.offset + s.file_size, s.name) for s in _loadable(elf) if s.file_size)
    for segment in elf.segments:
        name, extent = "", (0, 0, segment.memory_size)
        if elf.machine == _EM_CUDA:
            extent = (0, 0, 0)  # the driver does not read them, and two builds of one kernel differ in them
        elif segment.file_size:
            name, offset = _place(places, table_offset, segment.offset)
            extent = (offset, segment.file_size, segment.memory_size)
        rest = (segment.type, segment.flags, segment.address, segment.physical_address, segment.alignment)
        yield _counted(name) + struct.pack("<IIQQQQQQ", *rest, *extent)


def _place(places: list[tuple[int, int, str]], table_offset: int, offset: int) -> tuple[str, int]:
    """Say where ``offset`` is, as a section and the distance from its start; ``places`` are sorted by offset."""
    if offset == table_offset:
        return "program headers", 0  # the table is a segment itself, and need not lie at the front
    at = bisect.bisect_right(places, offset, key=lambda place: place[0]) - 1
    if at >= 0 and offset < places[at][1]:
        return places[at][2], offset - places[at][0]
    return "", offset


def _counted(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<I", len(raw)) + raw


def _dynamic_strings(view: memoryview, elf: Elf) -> Iterator[bytes]:
    if not elf.sections:
        yield bytes(view)
    for section in elf.sections:
        if section.name == ".dynstr" and section.type == _SHT_STRTAB:
            yield bytes(view[section.offset : section.offset + section.size])
