"""The bytes of version 1, written out. What is here must never change: FORMAT.md section 12.

Hex digits, and text in quotes for ASCII. Frames are written here by hand, as raw blocks: zstd promises that they can be
decoded for ever, not that it would make the same.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator

import pytest

from bundler.errors import TruncatedError
from bundler.formats import Source, _frame, _index, open_bundle, payload_offset, write
from bundler.formats._header import HEADER_SIZE, Header
from bundler.formats._msgpack import decode, encode
from bundler.model import (
    Artifact,
    Base,
    Content,
    Entry,
    Frame,
    Index,
    Profile,
    Relocation,
    RootRecord,
    Skipped,
    Spelling,
    Target,
    Unit,
)


def spelled(text: str) -> bytes:
    """Read hex digits, ``'text'``, and ``xx*32`` for a byte many times."""
    parts: Iterator[re.Match[str]] = re.finditer(r"'([^']*)'|([0-9a-f]{2})(?:\*(\d+))?|(\S)", text)
    found = bytearray()
    for part in parts:
        assert part[4] is None, f"not hex: {text[part.start() :]!r}"
        found += part[1].encode() if part[1] is not None else bytes.fromhex(part[2]) * int(part[3] or 1)
    return bytes(found)


# --- the smallest bundle: one file "a" of the six bytes "hello\n" ----------------------------------------------------

SMALLEST_HEADER = spelled("""
    89 'TBL' 0d 0a 1a 0a
    01 00
    00 00
    00 00 00 00
    e7 00 00 00 00 00 00 00
    da 00 00 00 00 00 00 00
    13 00 00 00 00 00 00 00
    7b 51 72 fc c2 84 f4 a8 15 42 5d 53 72 65 09 fe 36 21 73 1f e8 56 1e 63 e6 a8 09 45 bf 6e 3a 71
""")
SMALLEST_INDEX = spelled("""
    89
    a8 'contents' 84
        a6 'copies' 90
        a7 'digests' c4 20
            58 91 b5 b5 22 d5 df 08 6d 0f f0 b1 10 fb d9 d2 1b b4 fc 71 63 af 34 d0 82 86 a2 e8 46 f6 be 03
        a7 'foreign' 91 00
        a5 'sizes' 91 06
    a7 'entries' 91 96 00 06 a1 'a' 00 90 91 92 a1 'a' 00
    a5 'facts' 80
    a7 'foreign' 91 90
    a6 'frames' 91 93 13 06 c4 20
        9b 54 81 63 6c dd 47 1c 94 46 4e d3 d5 1c e0 23 82 42 0f 6a e3 38 ef 23 ed 52 a3 04 04 30 7d ad
    a7 'profile' a4 'full'
    a5 'roots' 91 93 a7 'generic' a7 'generic' a0
    a7 'skipped' 90
    a7 'targets' 90
""")
# zstd: magic; descriptor (one segment, checksum); content size; last block, raw, its size; the block; its checksum.
SMALLEST_STORED = spelled("28 b5 2f fd 24 da d1 06 00") + SMALLEST_INDEX + spelled("1a 0a 40 03")
SMALLEST_PAYLOAD = spelled("28 b5 2f fd 24 06 31 00 00 'hello' 0a 53 88 bd 91")
SMALLEST = SMALLEST_HEADER + SMALLEST_STORED + SMALLEST_PAYLOAD
SMALLEST_DIGEST = "sha256:12594f9c14a16ef9090d5c4c7c09363be2658df6a8767fb4ee53443752278153"


def test_the_smallest_bundle_is_read_as_it_is_written_down() -> None:
    reader = open_bundle(io.BytesIO(SMALLEST))
    assert len(SMALLEST) == reader.bundle_size == 322
    assert reader.index.entries == (Entry("generic", "a", Unit.FILE, (Artifact("a", 0),)),)
    assert reader.read(0) == b"hello\n"
    assert str(reader.content_digest) == SMALLEST_DIGEST
    assert reader.index_digest.value == SMALLEST_HEADER[40:] == hashlib.sha256(SMALLEST_STORED).digest()


def test_its_head_says_how_much_must_be_read_to_open_it() -> None:
    assert payload_offset(SMALLEST[:HEADER_SIZE]) == payload_offset(SMALLEST) == len(SMALLEST) - len(SMALLEST_PAYLOAD)
    with pytest.raises(TruncatedError):
        payload_offset(SMALLEST[: HEADER_SIZE - 1])


def test_what_is_written_differs_from_it_in_its_frames_alone() -> None:
    out = io.BytesIO()
    index = Index(
        Profile.FULL,
        (RootRecord("generic", "generic"),),
        (Entry("generic", "a", Unit.FILE, (Artifact("a", 0),)),),
        (),
        (),
    )
    content = Content(hashlib.sha256(b"hello\n").digest(), 6)
    written = write(out, index, [Source(content, lambda: [b"hel", b"", b"lo\n"])])
    data = out.getvalue()
    assert str(written.content_digest) == SMALLEST_DIGEST and written.size == len(data)
    assert data[:16] == SMALLEST[:16]  # magic, version, flags, no signature
    header = Header.decode(data[:HEADER_SIZE])
    stored = data[HEADER_SIZE:][: header.index_size]
    raw = _frame.decompress(stored, header.index_raw_size, what="the index", offset=HEADER_SIZE, name="")
    frame = data[header.payload_offset :]
    theirs, ours = (Frame(len(f), 6, hashlib.sha256(f).digest()) for f in (SMALLEST_PAYLOAD, frame))
    row = spelled("93 13 06 c4 20") + theirs.digest
    assert raw == SMALLEST_INDEX.replace(row, bytes([0x93, ours.stored_size, 6, 0xC4, 32]) + ours.digest)
    assert header.encode() == data[:HEADER_SIZE]


def test_the_header_is_72_bytes_little_endian() -> None:
    header = Header(0x0101, 0x020202, 0x0303030303, bytes(range(32)), 0x0404)
    assert header.encode() == spelled("""
        89 'TBL' 0d 0a 1a 0a  01 00  00 00  04 04 00 00
        01 01 00 00 00 00 00 00  02 02 02 00 00 00 00 00  03 03 03 03 03 00 00 00
        00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
    """)
    assert Header.decode(header.encode()) == header
    assert header.payload_offset == 72 + 0x0101 + 0x0404
    assert header.bundle_size == header.payload_offset + 0x0303030303


# --- an index with everything in it ----------------------------------------------------------------------------------

EVERYTHING = Index(
    profile=Profile.FULL,
    roots=(RootRecord("inductor", "inductor", "/tmp/i"), RootRecord("triton", "triton", "")),
    entries=(
        Entry("inductor", "ab/x.so", Unit.HOST_BINARY, (Artifact("x.so", 2),), None, ("glibc:2.34", "machine:x86_64")),
        Entry("inductor", "fxgraph/ab/fab/h", Unit.FXGRAPH, (Artifact("h", 3),)),
        Entry(
            "triton",
            "K",
            Unit.KERNEL,
            (
                Artifact("__grp__k.json", 0, Relocation(Base.ENTRY, Spelling.JSON, (31, 300))),
                Artifact("k.cubin", 1),
            ),
            Target("cuda", "90", 32),
        ),
    ),
    contents=(
        Content(b"\x00" * 32, 400),
        Content(b"\x11" * 32, 200, (), 1),
        Content(b"\x22" * 32, 7),
        Content(b"\x33" * 32, 700, ((5, 1), (0, 0)), 1),
    ),
    frames=(Frame(90, 650, b"\xaa" * 32), Frame(70_000, 52, b"\xbb" * 32)),
    foreign=((), ("/opt", "/usr/lib")),
    facts={"os": "linux", "gpus": [], "cpu_count": 2, "offset": -1, "known": True, "driver": None},
    skipped=(Skipped("triton/BAD", "empty"),),
)

EVERYTHING_BYTES = spelled("""
    89
    a8 'contents' 84
        a6 'copies' 91 95 03 05 01 00 00
        a7 'digests' c4 80 00*32 11*32 22*32 33*32
        a7 'foreign' 94 00 01 00 01
        a5 'sizes' 94 cd 01 90 cc c8 07 cd 02 bc
    a7 'entries' 93
        96 00 05 a7 'ab/x.so' 00 92 aa 'glibc:2.34' ae 'machine:x86_64' 91 92 a4 'x.so' 02
        96 00 01 b0 'fxgraph/ab/fab/h' 00 90 91 92 a1 'h' 03
        96 01 00 a1 'K' 01 90 92
            93 ad '__grp__k.json' 00 94 00 00 1f cd 01 0d
            92 a7 'k.cubin' 01
    a5 'facts' 86
        a9 'cpu_count' 02
        a6 'driver' c0
        a4 'gpus' 90
        a5 'known' c3
        a6 'offset' ff
        a2 'os' a5 'linux'
    a7 'foreign' 92 90 92 a4 '/opt' a8 '/usr/lib'
    a6 'frames' 92
        93 5a cd 02 8a c4 20 aa*32
        93 ce 00 01 11 70 34 c4 20 bb*32
    a7 'profile' a4 'full'
    a5 'roots' 92 93 a8 'inductor' a8 'inductor' a6 '/tmp/i' 93 a6 'triton' a6 'triton' a0
    a7 'skipped' 91 92 aa 'triton/BAD' a5 'empty'
    a7 'targets' 91 93 a4 'cuda' a2 '90' 20
""")

EVERYTHING_FORM = spelled("""
    92 a4 'full' 93
        95 a8 'inductor' a7 'ab/x.so' ab 'host_binary' 90 91
            94 a4 'x.so' 07 c4 20 22*32 90
        95 a8 'inductor' b0 'fxgraph/ab/fab/h' a7 'fxgraph' 90 91
            94 a1 'h' cd 02 bc c4 20 33*32 90
        95 a6 'triton' a1 'K' a6 'kernel' 93 a4 'cuda' a2 '90' 20 92
            94 ad '__grp__k.json' cd 01 90 c4 20 00*32 94 00 00 1f cd 01 0d
            94 a7 'k.cubin' cc c8 c4 20 11*32 90
""")


def test_an_index_with_everything_has_these_bytes() -> None:
    assert _index.encode_index(EVERYTHING) == EVERYTHING_BYTES
    assert _index.decode_index(EVERYTHING_BYTES, offset=0, name="") == EVERYTHING


def test_the_content_digest_is_made_of_these_bytes() -> None:
    assert _index.content_form(EVERYTHING) == EVERYTHING_FORM
    assert hashlib.sha256(EVERYTHING_FORM).hexdigest() == (
        "1cd3c1f33715ef9d9fbe0e102b83252e2d9c408a2c44e785f4e280bacb75e689"
    )


def test_a_part_that_may_be_passed_over_is_passed_over() -> None:
    # What a later version may add without breaking this one: FORMAT.md section 3.1.
    later = encode({**decode(EVERYTHING_BYTES, what="it", offset=0, name=""), "~later": [1, {"a": "b"}]})
    assert _index.decode_index(later, offset=0, name="") == EVERYTHING


# value -> its one spelling
SPELLINGS: list[tuple[object, str]] = [
    (None, "c0"),
    (False, "c2"),
    (True, "c3"),
    (0, "00"),
    (127, "7f"),
    (128, "cc 80"),
    (255, "cc ff"),
    (256, "cd 01 00"),
    (65_536, "ce 00 01 00 00"),
    (1 << 32, "cf 00 00 00 01 00 00 00 00"),
    ((1 << 64) - 1, "cf ff*8"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0 df"),
    (-129, "d1 ff 7f"),
    (-(1 << 63), "d3 80 00*7"),
    ("", "a0"),
    ("a" * 31, "bf 61*31"),
    ("a" * 32, "d9 20 61*32"),
    ("a" * 256, "da 01 00 61*256"),
    ("\u00e9", "a2 c3 a9"),
    (b"", "c4 00"),
    (b"a" * 256, "c5 01 00 61*256"),
    ([], "90"),
    ([0] * 15, "9f 00*15"),
    ((0,) * 16, "dc 00 10 00*16"),
    ([0] * 65_536, "dd 00 01 00 00 00*65536"),
    ({}, "80"),
    ({"b": 1, "a": 2, "B": 3, "": 4, "\u00e9": 5, "ab": 6}, "86 a0 04 a1'B'03 a1'a'02 a2'ab'06 a1'b'01 a2 c3 a9 05"),
]


@pytest.mark.parametrize(("value", "text"), SPELLINGS, ids=[text[:20] for _, text in SPELLINGS])
def test_a_value_has_one_spelling(value: object, text: str) -> None:
    assert encode(value) == spelled(text)
    again = decode(spelled(text), what="it", offset=0, name="")
    assert again == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("value", [1.5, {1}, 1j, {1: "a"}, {b"a": 1}, [[1.5]], range(3), 1 << 64], ids=repr)
def test_what_the_format_has_no_spelling_for_is_not_written(value: object) -> None:
    with pytest.raises((TypeError, OverflowError)):
        encode(value)


def test_values_nest_32_deep_and_no_deeper() -> None:
    value: object = 0
    for _ in range(32):
        value = [value]
    assert decode(encode(value), what="it", offset=0, name="") == value
    with pytest.raises(TypeError, match="deeper than 32"):
        encode([value])
