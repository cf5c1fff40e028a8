"""Laws of the ELF reader: on binaries of Triton (no GPU needed), shared objects, ELF made here, and hostile bytes."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler.errors import FormatError
from bundler.formats import elf
from bundler.formats.elf import Section
from bundler.model import Target

# What elf_kernels.py builds.
BUILDS = [
    "add@cuda:75",
    "add@cuda:90",
    "add@cuda:90/num_warps=8",
    "add@hip:gfx942",
    "add@hip:gfx1100",
    "speak@cuda:90",
    "speak@hip:gfx942",
    "dot@cuda:75",
    "dot@cuda:75/maxnreg=64",
    "dot@cuda:120",
    "dot@hip:gfx942",
]
DEBUG = re.compile(r"\.debug|\.nv_debug")
NOT_COVERED = re.compile(r"\.debug|\.nv_debug|\.shstrtab")


# --- binaries of Triton --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Builds:
    """Every kernel of elf_kernels.py, built from two directories whose names differ in length."""

    here: dict[str, bytes]
    there: dict[str, bytes]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    base = tmp_path_factory.mktemp("elf")
    processes = []
    for place in ("a", "a_much_longer/way/to/it"):
        source = base / place / "elf_kernels.py"
        source.parent.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("elf_kernels.py"), source)
        # TRITON_DEFAULT_FP_FUSION: Triton 3.9 warns when it is unset.
        env = {**os.environ, "HOME": str(base), "TRITON_HOME": str(base), "TRITON_DEFAULT_FP_FUSION": "1"}
        command = [sys.executable, str(source), str(source.parent / "cache")]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    outputs = [process.communicate(timeout=100) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors.decode()
    return Builds(*({name: Path(path).read_bytes() for name, path in json.loads(out).items()} for out, _ in outputs))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS)
def test_digest_is_equal_when_only_the_directory_of_the_source_differs(builds: Builds, name: str) -> None:
    here, there = builds.here[name], builds.there[name]
    assert here != there, "nothing is shown by two equal files"
    assert elf.loadable_digest(here) == elf.loadable_digest(there)


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS)
def test_two_builds_differ_in_debug_sections_only(builds: Builds, name: str) -> None:
    # The evidence for what loadable_digest leaves out. Should a compiler write paths elsewhere, this tells where.
    def bodies(data: bytes) -> dict[str, bytes]:
        return {s.name: data[s.offset : s.offset + s.file_size] for s in elf.parse(data).sections}

    here, there = bodies(builds.here[name]), bodies(builds.there[name])
    assert list(here) == list(there)
    assert all(DEBUG.search(section) for section in here if here[section] != there[section])


@pytest.mark.torch
def test_digest_tells_every_kernel_and_option_apart(builds: Builds) -> None:
    # num_warps and maxnreg among them: another launch shape, another number of registers.
    assert len({elf.loadable_digest(data) for data in builds.here.values()}) == len(BUILDS)


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS)
def test_target_is_the_one_that_triton_compiled_for(builds: Builds, name: str) -> None:
    wanted = Target.parse(name.partition("@")[2].partition("/")[0])
    assert elf.target(builds.here[name]) == wanted
    assert elf.target(builds.here[name][:64]) == wanted, "the header is enough"


@pytest.mark.torch
@pytest.mark.parametrize("name", BUILDS)
def test_digest_changes_with_a_byte_of_any_section_but_debug(builds: Builds, name: str) -> None:
    data = builds.here[name]
    want = elf.loadable_digest(data)
    covered = set()
    for section in elf.parse(data).sections:
        for at in {section.offset, section.offset + section.file_size // 2} if section.file_size else ():
            changed = elf.loadable_digest(flipped(data, at)) != want if section.name != ".shstrtab" else None
            # New cubins list the text of the PTX twice, over the same bytes, and both times as debug information.
            assert changed is None or changed == (not NOT_COVERED.search(section.name)), section.name
            covered.add(section.name)
    assert {".symtab", ".strtab"} <= covered
    assert covered & {".text", ".text.add", ".text.speak", ".text.dot"}


@pytest.mark.torch
def test_digest_changes_with_the_register_count_in_the_section_table(builds: Builds) -> None:
    # ABI version 7 keeps it in the high byte of sh_info of the code; without it a launch takes too few registers.
    data = builds.here["dot@cuda:75"]
    header, want = struct.unpack_from("<Q", data, 0x28)[0], elf.loadable_digest(data)
    index = next(i for i, section in enumerate(elf.parse(data).sections) if section.name == ".text.dot")
    at = header + 64 * index + 44 + 3
    assert data[at] >= 32, "the number of registers"
    assert elf.loadable_digest(data[:at] + bytes([data[at] - 8]) + data[at + 1 :]) != want


@pytest.mark.torch
@pytest.mark.parametrize("name", ["add@cuda:90", "add@hip:gfx942"])
def test_a_flip_that_leaves_the_digest_alone_is_in_debug_information_or_padding(builds: Builds, name: str) -> None:
    data = builds.here[name]
    want, parsed = elf.loadable_digest(data), elf.parse(data)
    table = struct.unpack_from("<Q", data, 0x28)[0]
    segments = struct.unpack_from("<Q", data, 0x20)[0]
    matters = set(range(64))  # the header
    for i, section in enumerate(parsed.sections):
        if not NOT_COVERED.search(section.name) and section.file_size:
            matters.update(range(section.offset, section.offset + section.file_size))
            matters.update(range(table + 64 * i, table + 64 * (i + 1)))
    for i in range(len(parsed.segments)):
        matters.update(range(segments + 56 * i, segments + 56 * i + 8))  # type and flags
    for at in sorted(matters)[::7]:
        with contextlib.suppress(FormatError):
            assert elf.loadable_digest(flipped(data, at)) != want, at


@pytest.mark.torch
@pytest.mark.parametrize("name", ["add@cuda:75", "add@cuda:90", "add@hip:gfx942", "dot@cuda:120"])
@given(st.data())
def test_a_damaged_binary_parses_or_raises_format_error(builds: Builds, name: str, draw: st.DataObject) -> None:
    data = bytearray(builds.here[name])
    size = len(data)
    table = struct.unpack_from("<Q", data, 0x28)[0]
    places = st.one_of(st.integers(0, 63), st.integers(table, size - 1), st.integers(0, size - 1))
    for at in draw.draw(st.lists(places, max_size=6)):
        data[at] = draw.draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFE, 0xFF)) | st.integers(0, 255))
    survives(bytes(data[: draw.draw(st.just(size) | st.integers(0, size))]))


def survives(data: bytes) -> None:
    """Every function returns what it promises, or raises FormatError with a place inside or at the end of 64 bits."""
    for function in (elf.parse, elf.target, elf.loadable_digest, elf.host_needs):
        try:
            function(data)
        except FormatError as error:
            assert error.offset >= 0
            assert error.what


# --- ELF made here -------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """An ELF written field by field, by code that shares nothing with the reader."""

    bits: int = 64
    big: bool = False
    machine: int = 62
    flags: int = 0
    os_abi: int = 0
    abi_version: int = 0
    sections: list[tuple[str, int, bytes]] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)  # what to write in place of the right values
    names: bytes | None = None

    def number(self, value: int, size: int) -> bytes:
        return value.to_bytes(size, "big" if self.big else "little")

    def bytes(self) -> bytes:
        word, header_size, row_size = (8, 64, 64) if self.bits == 64 else (4, 52, 40)
        names, bodies, rows = b"\0", b"", [b"\0" * row_size]
        for name, kind, body in [*self.sections, (".shstrtab", 3, b"")]:
            place = len(names)
            names += name.encode() + b"\0"
            if len(rows) == len(self.sections) + 1:
                body = names if self.names is None else self.names
            numbers = [
                (place, 4),
                (kind, 4),
                (0, word),
                (0, word),
                (header_size + len(bodies), word),
                (len(body), word),
            ]
            numbers += [(0, 4), (0, 4), (1, word), (0, word)]
            rows.append(b"".join(self.number(*number) for number in numbers))
            bodies += body
        count = len(rows)
        values = {
            "type": 1,
            "version": 1,
            "entry": 0,
            "phoff": 0,
            "shoff": header_size + len(bodies),
            "ehsize": header_size,
        }
        values |= {"phentsize": 0, "phnum": 0, "shentsize": row_size, "shnum": count, "shstrndx": count - 1}
        values |= {"machine": self.machine, "flags": self.flags} | self.fields
        sizes = [("type", 2), ("machine", 2), ("version", 4), ("entry", word), ("phoff", word), ("shoff", word)]
        sizes += [
            ("flags", 4),
            *((name, 2) for name in ("ehsize", "phentsize", "phnum", "shentsize", "shnum", "shstrndx")),
        ]
        ident = b"\x7fELF" + bytes([self.bits // 32, 2 if self.big else 1, 1, self.os_abi, self.abi_version]) + bytes(7)
        return ident + b"".join(self.number(values[name], size) for name, size in sizes) + bodies + b"".join(rows)


FORMS = [(bits, big) for bits in (32, 64) for big in (False, True)]
names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=20)
section_lists = st.lists(
    st.tuples(names, st.integers(1, 7) | st.integers(9, 2**32 - 1), st.binary(max_size=40)), max_size=6
)


@pytest.mark.parametrize(("bits", "big"), FORMS)
@given(sections=section_lists, flags=st.integers(0, 2**32 - 1))
def test_parse_finds_what_was_written(bits: int, big: bool, sections: list[tuple[str, int, bytes]], flags: int) -> None:
    data = Made(bits, big, 224, flags, 64, 3, sections).bytes()
    found = elf.parse(memoryview(data))
    assert (found.machine, found.flags, found.os_abi, found.abi_version) == (224, flags, 64, 3)
    assert [(s.name, s.type, data[s.offset : s.offset + s.size]) for s in found.sections[1:-1]] == sections


@pytest.mark.parametrize(("bits", "big"), FORMS)
@given(
    sections=section_lists,
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, 600),
)
def test_hostile_bytes_parse_or_raise_format_error(
    bits: int, big: bool, sections: list[tuple[str, int, bytes]], edits: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(Made(bits, big, sections=sections).bytes())
    for at, value in edits:
        data[at % len(data)] = value
    survives(bytes(data[:cut] if cut < 500 else data))


@given(st.binary(max_size=200))
def test_any_bytes_behind_the_magic_parse_or_raise_format_error(tail: bytes) -> None:
    survives(b"\x7fELF" + tail)


MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 0, "magic is missing"),
    "another file": (b"MZ\x90\0" + bytes(60), 0, "magic is 4d 5a 90 00"),
    "magic alone": (b"\x7fELF", 0, "16 bytes needed, 4 available"),
    "class 3": (b"\x7fELF\3\1\1" + bytes(57), 4, "class 3"),
    "byte order 0": (b"\x7fELF\2\0\1" + bytes(57), 4, "byte order 0"),
    "version 0": (b"\x7fELF\2\1\0" + bytes(57), 6, "version 0"),
    "half a header": (Made().bytes()[:40], 0, "64 bytes needed, 40 available"),
    "table at the end": (Made(fields={"shoff": 10**6}).bytes(), 10**6, "section table is cut short"),
    "table far away": (Made(fields={"shoff": 2**64 - 1}).bytes(), 2**64 - 1, "section table is cut short"),
    "too many sections": (Made(fields={"shnum": 0xFFF0}).bytes(), 75, "section table is cut short"),
    "rows of another size": (Made(fields={"shentsize": 56}).bytes(), 75, "56 bytes, expected 64"),
    "no place for sections": (Made(fields={"shoff": 0}).bytes(), 0, "no place"),
    "names in no section": (Made(fields={"shstrndx": 9}).bytes(), 75, "section 9 should hold the names, there are 2"),
    "a name without an end": (Made(names=b"\0.shstrtab").bytes(), 65, "no end"),
    "a name behind the table": (Made(names=b"\0").bytes(), 65, "no end"),
    "segments far away": (Made(fields={"phoff": 2**63, "phnum": 1, "phentsize": 56}).bytes(), 2**63, "segment table"),
    "segment rows of another size": (
        Made(fields={"phoff": 64, "phnum": 1, "phentsize": 8}).bytes(),
        64,
        "8 bytes, exp",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_refused_with_its_place(name: str) -> None:
    data, offset, what = MALFORMED[name]
    with pytest.raises(FormatError) as caught:
        elf.parse(data)
    assert what in caught.value.what
    assert caught.value.offset == offset


def test_contents_past_the_end_are_refused_and_no_bits_are_not_contents() -> None:
    data = Made(sections=[(".bss", 8, b""), (".text", 1, b"code")]).bytes()
    table = len(data) - 4 * 64
    huge = struct.pack("<QQ", 2**40, 2**40)
    bss, text = table + 64 + 24, table + 128 + 24
    assert elf.parse(data[:bss] + huge + data[bss + 16 :]).sections[1].size == 2**40
    with pytest.raises(FormatError, match=r"section '\.text' is cut short"):
        elf.parse(data[:text] + huge + data[text + 16 :])


def test_counts_that_outgrow_the_header_are_in_section_0() -> None:
    data = Made(sections=[(".text", 1, b"code")], fields={"shnum": 0, "shstrndx": 0xFFFF}).bytes()
    table = len(data) - 3 * 64

    def with_counts(count: int) -> bytes:
        return data[: table + 32] + struct.pack("<QI", count, 2) + data[table + 44 :]

    assert [section.name for section in elf.parse(with_counts(3)).sections] == ["", ".text", ".shstrtab"]
    for count in (4, 10**5, 2**32, 2**64 - 1):
        with pytest.raises(FormatError):
            elf.parse(with_counts(count))


def test_sections_that_overlap_cost_no_more_than_the_file() -> None:
    # 2000 rows over the same bytes: hashing them all would take 2000 times as long as the file is big.
    made = Made(sections=[("x", 1, b"a" * 10_000), *(("y", 1, b"") for _ in range(2000))])
    data = bytearray(made.bytes())
    table = len(data) - 64 * 2003
    row = data[table + 64 : table + 128]
    for i in range(2000):
        data[table + 128 + 64 * i : table + 192 + 64 * i] = row
    with pytest.raises(FormatError, match="add up to 20"):
        elf.loadable_digest(bytes(data))


def test_names_that_share_bytes_cost_no_more_than_their_limit() -> None:
    # 600 names of 64 KiB each, all in the same 64 KiB.
    data = bytearray(Made(sections=[("n", 1, b"") for _ in range(600)], names=b"n" * 65_536 + b"\0").bytes())
    with pytest.raises(FormatError, match="too long"):
        elf.parse(bytes(data))


def test_a_binary_without_sections_is_fine() -> None:
    data = Made(machine=190, flags=0x9005A04, abi_version=8, fields={"shoff": 0, "shnum": 0, "shstrndx": 0}).bytes()
    assert elf.parse(data).sections == ()
    assert elf.target(data) == Target("cuda", "90")
    assert len(elf.loadable_digest(data)) == 32
    assert elf.parse(Made(fields={"shstrndx": 0}).bytes()).sections[1].name == "", "sections without names"


@pytest.mark.parametrize(
    ("machine", "os_abi", "abi_version", "flags", "wanted"),
    [
        (190, 0x33, 7, 0x4B054B, "cuda:75"),
        (190, 0x41, 8, 0x9005A04, "cuda:90"),
        (190, 0x41, 8, 0x9006402, "cuda:100"),
        (190, 0x41, 8, 0x9007802, "cuda:120"),
        (190, 0x41, 9, 0x9005A04, None),  # an ABI version to come
        (190, 0x41, 8, 0x0000004, None),
        (224, 64, 3, 0x54C, "hip:gfx942"),
        (224, 64, 3, 0x54F, "hip:gfx950"),
        (224, 64, 4, 0x449, "hip:gfx1250"),
        (224, 64, 2, 0x20, "hip:gfx600"),
        (224, 64, 3, 0x4E, "hip:gfx1201"),
        (224, 64, 3, 0x27, None),  # reserved
        (224, 64, 3, 0xFF, None),
        (224, 64, 0, 0x02C, None),  # code object V2 has other flags in these bits
        (62, 0, 0, 0x4C, None),
    ],
)
def test_target_is_read_from_machine_abi_version_and_flags(
    machine: int, os_abi: int, abi_version: int, flags: int, wanted: str | None
) -> None:
    found = elf.target(Made(64, False, machine, flags, os_abi, abi_version).bytes())
    assert found == (Target.parse(wanted) if wanted else None)


def test_digest_ignores_debug_sections_their_names_and_every_file_offset() -> None:
    text = (".text", 1, b"code")
    plain = elf.loadable_digest(Made(sections=[text]).bytes())
    for name in (".debug_line", ".debug_str", ".nv_debug_ptx_txt", ".nv.merc.nv_debug_line_sass", ".rela.debug_info"):
        assert elf.loadable_digest(Made(sections=[(name, 1, b"/a/path"), text]).bytes()) == plain
        assert elf.loadable_digest(Made(sections=[text, (name, 1, b"/another/path")]).bytes()) == plain
    for name in (".nv.info", ".nv.info.debug", ".rodata", ".rela.text", ".nv.merc.nv.info", "debug_line", ""):
        assert elf.loadable_digest(Made(sections=[(name, 1, b"/a/path"), text]).bytes()) != plain


undotted = st.lists(st.tuples(names.map(lambda name: name.replace(".", "_")), st.integers(1, 7), st.binary(max_size=9)))


@given(undotted, undotted)
def test_digest_is_equal_only_for_equal_contents(
    ours: list[tuple[str, int, bytes]], theirs: list[tuple[str, int, bytes]]
) -> None:
    equal = elf.loadable_digest(Made(sections=ours).bytes()) == elf.loadable_digest(Made(sections=theirs).bytes())
    assert equal == (ours == theirs)


@pytest.mark.parametrize(("bits", "big"), FORMS)
def test_segments_are_read_and_covered_whatever_the_class(bits: int, big: bool) -> None:
    # type, flags, offset, address, physical address, sizes in the file and in memory, alignment
    form, row_size, start = ("IIQQQQQQ", 56, 64) if bits == 64 else ("8I", 32, 52)

    def made(offset: int, machine: int = 224, flags: int = 5) -> bytes:
        row = [1, flags, offset, 0x1000, 0x2000, 3, 9, 4]
        if bits == 32:
            row = [row[0], *row[2:7], flags, row[7]]
        table = struct.pack((">" if big else "<") + form, *row)
        fields = {"phoff": start + 8, "phnum": 1, "phentsize": row_size}
        sections = [(".text", 1, b"the code"), ("table", 1, table), (".debug_str", 1, b"path")]
        return Made(bits, big, machine, sections=sections, fields=fields).bytes()

    assert elf.parse(made(start)).segments == (elf.Segment(1, 5, start, 0x1000, 0x2000, 3, 9, 4),)
    with pytest.raises(FormatError, match="segment 0 is cut short"):
        elf.parse(made(10**6))
    # The start of the code, its middle, the header, debug information, and the table of segments itself.
    places = (start, start + 3, 0, start + 8 + row_size, start + 8)
    digests = {elf.loadable_digest(made(place)) for place in places}
    assert len(digests | {elf.loadable_digest(made(start, flags=4))}) == len(places) + 1


@pytest.mark.parametrize("change", [{"flags": 1}, {"machine": 183}, {"os_abi": 3}, {"abi_version": 1}, {"bits": 32}])
def test_digest_changes_with_the_header(change: dict[str, int]) -> None:
    text = [(".text", 1, b"code")]
    assert elf.loadable_digest(Made(sections=text, **change).bytes()) != elf.loadable_digest(
        Made(sections=text).bytes()
    )  # type: ignore[arg-type]


# --- host binaries -------------------------------------------------------------------------------------------------


def extension_modules() -> Iterator[Path]:
    for directory in {sysconfig.get_path("platstdlib"), sysconfig.get_config_var("DESTSHARED")} - {None}:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            yield from Path(directory).rglob(f"*{suffix}")


@pytest.mark.skipif(sys.platform != "linux", reason="no ELF on this system")
def test_extension_modules_of_this_python_need_this_machine_and_no_newer_libc() -> None:
    modules = sorted(set(extension_modules()))[:40]
    if not modules:
        pytest.skip("this Python has all its modules built in")
    name, version = platform.libc_ver()
    for module in modules:
        needs = dict(need.partition(":")[::2] for need in elf.host_needs(module.read_bytes()))
        assert needs["machine"] == platform.machine(), module
        if name == "glibc" and "glibc" in needs:
            assert [int(part) for part in needs["glibc"].split(".")] <= [int(part) for part in version.split(".")], (
                module
            )


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("readelf"), reason="readelf is the judge here")
def test_host_needs_has_the_greatest_version_that_readelf_lists() -> None:
    for module in sorted(set(extension_modules()))[:8]:
        listed = subprocess.run(["readelf", "-VW", str(module)], capture_output=True, text=True, check=True).stdout
        versions = [tuple(map(int, match.split("."))) for match in re.findall(r"Name: GLIBC_([\d.]+)", listed)]
        wanted = {"glibc:" + ".".join(map(str, max(versions)))} if versions else set()
        assert {need for need in elf.host_needs(module.read_bytes()) if need.startswith("glibc")} == wanted


@pytest.mark.parametrize(
    ("strings", "needs"),
    [
        (b"\0libc.so.6\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0", ("glibc:2.34", "machine:x86_64")),
        (b"\0GLIBC_2.9\0GLIBC_2.10\0", ("glibc:2.10", "machine:x86_64")),
        (b"\0GLIBC_2.2.5\0GLIBC_ABI_DT_RELR\0", ("glibc:2.36", "machine:x86_64")),
        (b"\0GLIBC_2.38\0GLIBC_ABI_DT_RELR\0", ("glibc:2.38", "machine:x86_64")),
        (b"\0GLIBCXX_3.4.30\0GLIBC_PRIVATE\0GLIBC_2.x\0", ("machine:x86_64",)),
        (b"\0libc.musl-x86_64.so.1\0", ("machine:x86_64", "musl")),
        (b"\0", ("machine:x86_64",)),
    ],
)
def test_host_needs_reads_the_dynamic_strings(strings: bytes, needs: tuple[str, ...]) -> None:
    assert elf.host_needs(Made(sections=[(".dynstr", 3, strings)]).bytes()) == needs
    assert elf.host_needs(Made(sections=[(".data", 1, strings)]).bytes()) == ("machine:x86_64",)


@pytest.mark.parametrize(
    ("machine", "bits", "big", "word"),
    [
        (62, 64, False, "x86_64"),
        (183, 64, False, "aarch64"),
        (21, 64, False, "ppc64le"),
        (21, 64, True, "ppc64"),
        (22, 64, True, "s390x"),
        (243, 64, False, "riscv64"),
        (3, 32, False, "i386"),
        (40, 32, False, "arm"),
        (9999, 64, False, "9999"),
    ],
)
def test_host_needs_names_the_machine(machine: int, bits: int, big: bool, word: str) -> None:
    assert elf.host_needs(Made(bits, big, machine).bytes()) == (f"machine:{word}",)


@pytest.mark.parametrize("function", [elf.parse, elf.target, elf.loadable_digest, elf.host_needs])
def test_a_view_into_a_larger_buffer_is_read_like_bytes(function: Callable[[bytes | memoryview], object]) -> None:
    data = Made(sections=[(".dynstr", 3, b"\0GLIBC_2.34\0")]).bytes()
    assert function(memoryview(b"before" + data + b"after")[6:-5]) == function(data)


def test_file_size_is_zero_where_a_section_has_no_bytes() -> None:
    assert [Section("s", kind, 0, 9).file_size for kind in (0, 1, 8)] == [0, 9, 0]


def test_host_needs_without_a_section_table_searches_all_of_the_file() -> None:
    # The loss: a binary stripped of its table is taken to need nothing, and fails when it is loaded.
    whole = bytearray(Made(sections=[(".dynstr", 3, b"\0GLIBC_2.2.5\0GLIBC_2.34\0")]).bytes())
    whole[40:48] = bytes(8)  # e_shoff
    whole[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    assert elf.parse(bytes(whole)).sections == ()
    assert elf.host_needs(bytes(whole)) == ("glibc:2.34", "machine:x86_64")
