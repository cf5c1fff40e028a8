"""Every way to break FORMAT.md, and the one error that each ends with: class, place and numbers.

The bundles are built by ``scripts/make_attacks.py``, which shares no code with the format.
"""

from __future__ import annotations

import gzip
import io
import runpy
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import zstandard

from bundler.errors import (
    BundlerError,
    DigestMismatchError,
    FormatError,
    LimitExceededError,
    NotABundleError,
    TruncatedError,
    UnsafePathError,
    UnsupportedVersionError,
)
from bundler.formats import _index, _msgpack, _rules, limits, open_bundle
from bundler.model import Content, Index

make = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_attacks.py")))
single, kernel, frame, forge, parts, sha256 = (
    make.single,
    make.kernel,
    make.frame,
    make.forge,
    make.parts,
    make.sha256,
)

Error = tuple[type[BundlerError], dict[str, Any]]
Change = Callable[[dict[str, Any]], object]

TWO = [single("a", b"1234567"), single("b", b"89")]
GOOD: bytes = make.bundle(TWO)
INDEX_SIZE = struct.unpack_from("<Q", GOOD, 16)[0]
PAYLOAD: bytes = make.index_of(TWO)[1]


def opened(data: bytes, *, pipe: bool = False) -> Any:
    return open_bundle(io.BytesIO(data), seekable=not pipe)


def everything(data: bytes, *, pipe: bool = False) -> None:
    """Read a bundle to its end."""
    reader = opened(data, pipe=pipe)
    for _ in reader.deliver(range(len(reader.index.contents))):
        pass
    if not pipe:
        reader.check_frames()
    reader.finish()


def check(data: bytes, expected: Error, *, pipe: bool = False) -> None:
    kind, fields = expected
    with pytest.raises(BundlerError) as caught:
        everything(data, pipe=pipe)
    found = caught.value.fields()
    assert type(caught.value) is kind, caught.value
    for name, value in fields.items():
        if isinstance(value, str) and value.endswith("..."):
            assert found[name].startswith(value[:-3]), found
        else:
            assert found[name] == value, found


def test_the_bundle_that_the_others_are_made_from_is_read() -> None:
    everything(GOOD)
    everything(GOOD, pipe=True)
    everything(make.bundle([kernel()], targets=[make.CUDA_90]))
    everything(forge(parts()))  # nothing at all


# --- header ----------------------------------------------------------------------------------------------------------


def _archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "tar":
        with tarfile.open(fileobj=out, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("a"), io.BytesIO())
    else:
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("a", b"x")
    return out.getvalue()


MAGIC = "89 54 42 4c 0d 0a 1a 0a"
NO_BUNDLE = {
    "nothing": (b"", f"it starts with nothing, not {MAGIC}"),
    "tar": (_archive("tar"), f"it starts with 61 00 00 00 00 00 00 00, not {MAGIC}"),
    "zip": (_archive("zip"), "it starts with 50 4b 03 04..."),
    "gzip": (gzip.compress(GOOD), "it starts with 1f 8b 08..."),
    "zstd": (frame(GOOD), "it starts with 28 b5 2f fd..."),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "it starts with 76 65 72 73 69 6f 6e 20..."),
    "NULs": (bytes(400), "it starts with 00 00 00 00..."),
    "one byte": (b"P", "it starts with 50, not..."),
    "seven bits": (bytes(byte & 0x7F for byte in GOOD), "it starts with 09 54 42 4c..."),
    "line ends converted": (GOOD.replace(b"\r\n", b"\n"), "it starts with 89 54 42 4c 0a 1a..."),
    "line ends converted, the other way": (GOOD.replace(b"\n", b"\r\n"), "it starts with 89 54 42 4c 0d 0d..."),
    "bytes before it": (b"\0" + GOOD, "it starts with 00 89..."),
}


@pytest.mark.parametrize("case", NO_BUNDLE)
def test_what_is_no_bundle_is_told_by_its_first_bytes(case: str) -> None:
    data, what = NO_BUNDLE[case]
    check(data, (NotABundleError, {"what": what, "offset": 0, "name": "bundle"}))


def header(**fields: Any) -> bytes:
    index, payload = make.index_of(TWO)
    built: bytes = forge(index, payload, **fields)
    return built


HEADERS: dict[str, tuple[bytes, Error]] = {
    "version 0": (header(version=0), (UnsupportedVersionError, {"found": 0, "supported": (1,), "offset": 8})),
    "version 2": (header(version=2), (UnsupportedVersionError, {"found": 2, "supported": (1,), "offset": 8})),
    "version 65535": (header(version=65535), (UnsupportedVersionError, {"found": 65535})),
    "a flag": (header(flags=1), (FormatError, {"what": "header flags are 0x0001, version 1 knows none", "offset": 10})),
    "the last flag": (header(flags=1 << 15), (FormatError, {"what": "header flags are 0x8000, version 1 knows none"})),
    "a large signature": (
        header(signature_size=limits.MAX_SIGNATURE_SIZE + 1),
        (LimitExceededError, {"what": "bytes of the signature section", "size": 65537, "limit": 65536}),
    ),
    "a large index": (
        header(index_size=limits.MAX_INDEX_SIZE + 1),
        (LimitExceededError, {"what": "bytes of the index", "size": 33554433, "limit": 33554432}),
    ),
    "a large index decompressed": (
        header(index_raw_size=limits.MAX_INDEX_RAW_SIZE + 1),
        (LimitExceededError, {"what": "bytes of the index decompressed", "size": 67108865, "limit": 67108864}),
    ),
    "a signature that is not there": (
        header(signature_size=1),
        (TruncatedError, {"offset": 0, "needed": len(GOOD) + 1, "available": len(GOOD), "what": "the bundle"}),
    ),
    "an index longer by one": (header(index_size=INDEX_SIZE + 1), (TruncatedError, {"needed": len(GOOD) + 1})),
    "an index shorter by one": (
        header(index_size=INDEX_SIZE - 1),
        (FormatError, {"what": "1 bytes follow the last frame", "offset": len(GOOD) - 1}),
    ),
    "a payload longer by one": (header(payload_size=len(PAYLOAD) + 1), (TruncatedError, {"needed": len(GOOD) + 1})),
    "a payload shorter by one": (
        header(payload_size=len(PAYLOAD) - 1),
        (FormatError, {"what": "1 bytes follow the last frame", "offset": len(GOOD) - 1}),
    ),
    "a payload of 8 EiB": (header(payload_size=1 << 63), (TruncatedError, {"available": len(GOOD)})),
    "an index that is nothing": (
        forge(parts(), stored=b"", index_raw_size=0),
        (FormatError, {"what": "the index is not a zstd frame...", "offset": 72}),
    ),
    "another digest": (
        header(index_digest=bytes(32)),
        (DigestMismatchError, {"name": "bundle: the index", "expected": "sha256:" + "0" * 64, "offset": 72}),
    ),
    "an index of another size": (
        header(index_raw_size=len(make.spelled(make.index_of(TWO)[0])) + 1),
        (FormatError, {"what": "the index declares...", "offset": 72}),
    ),
    "bytes behind the end": (
        GOOD + b"ab",
        (FormatError, {"what": "2 bytes follow the last frame", "offset": len(GOOD)}),
    ),
    "a signature that was put in between": (
        forge(*make.index_of(TWO), signature=b"sig", signature_size=0),
        (FormatError, {"what": "3 bytes follow the last frame"}),
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_does_not_fit_is_refused(case: str) -> None:
    check(*HEADERS[case])


SIGNED: bytes = forge(*make.index_of(TWO), signature=b"signature")
SIGNED_AT = 72 + INDEX_SIZE
SECTIONS = [
    ("the header", 0, 72),
    ("the index", 72, SIGNED_AT),
    ("the signature section", SIGNED_AT, SIGNED_AT + 9),
    ("frame 0", SIGNED_AT + 9, len(SIGNED)),
]


@pytest.mark.parametrize(("what", "start", "end"), SECTIONS, ids=[what for what, _, _ in SECTIONS])
def test_a_pipe_that_ends_early_says_in_which_section(what: str, start: int, end: int) -> None:
    for size in {max(start, 8), start + 9 if start == 0 else start + 1, end - 1}:
        expected = {"offset": start, "needed": end - start, "available": size - start, "what": what}
        check(SIGNED[:size], (TruncatedError, expected), pipe=True)


def test_a_pipe_that_goes_on_is_refused_when_all_of_it_was_read() -> None:
    check(GOOD + b"x", (FormatError, {"what": "bytes follow the last frame", "offset": len(GOOD)}), pipe=True)


def test_a_pipe_that_ends_in_what_nobody_wants_is_refused_too() -> None:
    reader = opened(GOOD[:-1], pipe=True)
    with pytest.raises(TruncatedError) as caught:
        reader.finish()
    assert caught.value.fields() == {
        "offset": len(GOOD) - len(PAYLOAD),
        "needed": len(PAYLOAD),
        "available": len(PAYLOAD) - 1,
        "what": "the payload",
        "name": "bundle",
    }


# --- frames ----------------------------------------------------------------------------------------------------------

DATA = b"123456789"
DICTIONARY = zstandard.ZstdCompressionDict(b"0123456789" * 20, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _raw_frame(descriptor: int, window: bytes, size: bytes, data: bytes, tail: bytes) -> bytes:
    block = (1 | len(data) << 3).to_bytes(3, "little") + data
    return struct.pack("<I", 0xFD2FB528) + bytes([descriptor]) + window + size + block + tail


CHECKSUM = frame(DATA)[-4:]
FRAMES: dict[str, tuple[bytes, type[BundlerError], str]] = {
    "no frame": (b"not a frame at all", FormatError, " is not a zstd frame..."),
    "a byte": (b"\x28", FormatError, " is not a zstd frame..."),
    "no size": (
        frame(DATA, write_content_size=0),
        FormatError,
        " declares 18446744073709551615 bytes, the index says 9",
    ),
    "less": (frame(DATA[:-1]), FormatError, " declares 8 bytes, the index says 9"),
    "more": (frame(DATA + b"0"), FormatError, " declares 10 bytes, the index says 9"),
    "a bomb": (frame(bytes(1 << 24)), FormatError, " declares 16777216 bytes, the index says 9"),
    "nothing": (frame(b""), FormatError, " declares 0 bytes, the index says 9"),
    "no checksum": (frame(DATA, write_checksum=0), FormatError, " does not end in a checksum"),
    "a wrong checksum": (frame(DATA)[:-1] + b"\0", FormatError, " does not decompress..."),
    "cut off": (frame(DATA)[:-1], FormatError, " does not decompress..."),
    "bytes behind": (frame(DATA) + b"x", FormatError, " does not decompress..."),
    "two frames": (frame(DATA) + frame(b"x"), FormatError, " does not decompress..."),
    "a frame to skip behind": (frame(DATA) + b"\x50\x2a\x4d\x18\0\0\0\0", FormatError, " does not decompress..."),
    "a frame to skip": (b"\x50\x2a\x4d\x18\x09\0\0\0" + DATA, FormatError, " does not end in a checksum"),
    "a dictionary": (
        _raw_frame(0x25, b"\x07", bytes([9]), DATA, CHECKSUM),
        FormatError,
        " asks for dictionary 7, the format has none",
    ),
    "a huge window": (
        _raw_frame(0x84, bytes([18 << 3]), struct.pack("<I", 9), DATA, CHECKSUM),
        LimitExceededError,
        "window of ",
    ),
    "a size that is not so": (
        _raw_frame(0x24, b"", bytes([9]), DATA[:-1], CHECKSUM),
        FormatError,
        " does not decom...",
    ),
    "a size that is not so, the other way": (
        _raw_frame(0x24, b"", bytes([9]), DATA + b"0", CHECKSUM),
        FormatError,
        " does not decompress...",
    ),
    "a reserved bit": (_raw_frame(0x2C, b"", bytes([9]), DATA, CHECKSUM), FormatError, " is not a zstd frame..."),
}


def test_a_frame_made_by_hand_is_read() -> None:
    good = _raw_frame(0x24, b"", bytes([9]), DATA, CHECKSUM)
    everything(_with_frame(good))
    # 128 MiB, the largest window.
    everything(_with_frame(_raw_frame(0x84, bytes([17 << 3]), struct.pack("<I", 9), DATA, CHECKSUM)))


def _with_frame(stored: bytes) -> bytes:
    index, _ = make.index_of([single("a", DATA)])
    index["frames"] = [[len(stored), len(DATA), sha256(stored)]]
    built: bytes = forge(index, stored)
    return built


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_is_not_just_what_was_declared_is_refused(case: str) -> None:
    stored, kind, what = FRAMES[case]
    data = _with_frame(stored)
    if kind is LimitExceededError:
        check(data, (kind, {"what": "window of frame 0 in bytes", "size": 1 << 28, "limit": 1 << 27}))
    else:
        check(data, (kind, {"what": f"frame 0{what}", "offset": len(data) - len(stored)}))


@pytest.mark.parametrize("case", FRAMES)
def test_so_is_the_frame_of_an_index(case: str) -> None:
    stored, kind, what = FRAMES[case]
    data = forge(DATA, stored=stored)
    if kind is LimitExceededError:
        check(data, (kind, {"what": "window of the index in bytes", "size": 1 << 28}))
    else:
        check(data, (kind, {"what": f"the index{what}", "offset": 72}))


def test_an_index_of_no_bytes_is_refused() -> None:
    for stored in (frame(b""), b"\x50\x2a\x4d\x18\0\0\0\0"):
        with pytest.raises(FormatError):
            opened(forge(b"", stored=stored))


def test_a_frame_of_other_bytes_than_its_digest_is_refused_before_it_is_decompressed() -> None:
    data = bytearray(GOOD)
    data[-1] ^= 1
    expected = {
        "name": "bundle: frame 0",
        "expected": f"sha256:{sha256(PAYLOAD).hex()}",
        "offset": len(GOOD) - len(PAYLOAD),
    }
    check(bytes(data), (DigestMismatchError, expected))


def test_a_content_of_other_bytes_than_its_digest_is_refused() -> None:
    swapped = sha256(b"89") + sha256(b"1234567")
    data = make.bundle(TWO, change=lambda index: index["contents"].update(digests=swapped))
    expected = {"expected": f"sha256:{sha256(b'89').hex()}", "actual": f"sha256:{sha256(b'1234567').hex()}"}
    check(data, (DigestMismatchError, {"name": "bundle: content 0", "offset": -1, **expected}))


def test_an_empty_content_of_another_digest_is_refused() -> None:
    data = make.bundle([single("a", b"")], change=lambda index: index["contents"].update(digests=bytes(32)))
    check(data, (DigestMismatchError, {"name": "bundle: content 0"}))


# --- msgpack ---------------------------------------------------------------------------------------------------------

PARTS = parts()


def spelled_with(part: str, value: bytes) -> bytes:
    built: bytes = make._raw_with(part, value)
    return built


def _pairs(*pairs: tuple[bytes, bytes]) -> bytes:
    return bytes([0x80 | len(pairs)]) + b"".join(key + value for key, value in pairs)


CANON = "the index is not in the canonical spelling"
BAD = "the index is not msgpack of this format: "
SPELLINGS: dict[str, tuple[bytes, str]] = {
    "an integer in two bytes": (spelled_with("facts", b"\x81\xa1a\xcc\x05"), CANON),
    "an integer in nine bytes": (spelled_with("facts", b"\x81\xa1a\xcf" + bytes(7) + b"\x05"), CANON),
    "an integer as if it were negative": (spelled_with("facts", b"\x81\xa1a\xd0\x05"), CANON),
    "a negative integer in two bytes": (spelled_with("facts", b"\x81\xa1a\xd0\xff"), CANON),
    "a string with a long length": (spelled_with("profile", b"\xd9\x04full"), CANON),
    "a string of old": (spelled_with("profile", b"\xda\0\x04full"), CANON),
    "bytes with a long length": (spelled_with("facts", b"\x81\xa1a\xc5\0\x01x"), CANON),
    "an array with a long length": (spelled_with("entries", b"\xdc\0\0"), CANON),
    "an array with the longest length": (spelled_with("entries", b"\xdd\0\0\0\0"), CANON),
    "a map with a long length": (spelled_with("facts", b"\xde\0\0"), CANON),
    "keys out of order": (spelled_with("facts", _pairs((b"\xa1b", b"\0"), (b"\xa1a", b"\0"))), CANON),
    "a key twice": (spelled_with("facts", _pairs((b"\xa1a", b"\0"), (b"\xa1a", b"\0"))), CANON),
    "a key twice, of two values": (spelled_with("facts", _pairs((b"\xa1a", b"\0"), (b"\xa1a", b"\1"))), CANON),
    "bytes behind it": (make.spelled(PARTS) + b"\xc0", BAD + "unpack(b) received extra data..."),
    "parts out of order": (msgpack.packb(dict(sorted(PARTS.items(), reverse=True))), CANON),
    "a float": (spelled_with("facts", b"\x81\xa1a\xcb" + bytes(8)), BAD + "the format has no float"),
    "a short float": (spelled_with("facts", b"\x81\xa1a\xca" + bytes(4)), BAD + "the format has no float"),
    "an extension": (spelled_with("facts", b"\x81\xa1a\xd4\x05x"), BAD + "extension type 5"),
    "a time": (spelled_with("facts", b"\x81\xa1a\xd6\xff\0\0\0\0"), BAD + "the format has no Timestamp"),
    "a number as a key": (spelled_with("facts", b"\x81\x01\x00"), BAD + "int is not allowed for map key..."),
    "bytes as a key": (spelled_with("facts", b"\x81\xc4\x01a\x00"), BAD + "the keys of a map are strings"),
    "an array as a key": (spelled_with("facts", b"\x81\x90\x00"), BAD + "..."),
    "a string that is not UTF-8": (spelled_with("profile", b"\xa1\xff"), BAD + "'utf-8' codec..."),
    "half of a surrogate pair": (spelled_with("profile", b"\xa3\xed\xa0\x80"), BAD + "'utf-8' codec..."),
    "a byte that msgpack never uses": (spelled_with("profile", b"\xc1"), BAD + "..."),
    "cut off": (make.spelled(PARTS)[:-1], BAD + "..."),
    "a string that is longer than all": (spelled_with("profile", b"\xdb\xff\xff\xff\xff"), BAD + "..."),
    "an array that is longer than all": (spelled_with("entries", b"\xdd\xff\xff\xff\xff"), BAD + "..."),
    "34 deep": (spelled_with("facts", b"\x81\xa1a" + b"\x91" * 32 + b"\xc0"), BAD + "nested deeper than 32"),
    "2,000 deep": (spelled_with("facts", b"\x81\xa1a" + b"\x91" * 2000 + b"\xc0"), BAD + "..."),
    "nothing": (b"\xc0", "the index is not a map"),
    "an array": (b"\x90", "the index is not a map"),
    "a number": (b"\x07", "the index is not a map"),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_an_index_in_another_spelling_is_refused(case: str) -> None:
    raw, what = SPELLINGS[case]
    check(forge(raw), (FormatError, {"what": what, "offset": 72, "name": "bundle"}))


# --- shape -----------------------------------------------------------------------------------------------------------


def changed(change: Change) -> bytes:
    built: bytes = make.bundle(TWO, change=change)
    return built


def put(part: str, value: Any) -> bytes:
    return changed(lambda index: index.update({part: value}))


def column(**columns: Any) -> bytes:
    return changed(lambda index: index["contents"].update(columns))


def entry_row(place: int, value: Any) -> bytes:
    return changed(lambda index: index["entries"][0].__setitem__(place, value))


def files(*rows: Any) -> bytes:
    return entry_row(5, list(rows))


DIGEST = bytes(32)
SHAPES: dict[str, tuple[bytes, str]] = {
    "an unknown part": (put("zzz", 1), "index parts unknown: ['zzz'], missing: []"),
    **{
        f"no {part}": (
            changed(lambda index, part=part: index.pop(part)),
            f"index parts unknown: [], missing: ['{part}']",
        )
        for part in PARTS
    },
    "an unknown profile": (put("profile", "half"), "profile 'half' is unknown"),
    "a profile that is no word": (put("profile", 1), "profile 1 is unknown"),
    "a profile that is a list": (put("profile", ["full"]), "profile ['full'] is unknown"),
    "facts that are no map": (put("facts", []), "index part facts is not a map"),
    "roots that are no array": (put("roots", {}), "index part roots is not an array"),
    "a root that is no row": (put("roots", ["triton"]), "row 0 of index part roots has another shape"),
    "a root of two fields": (put("roots", [["triton", "triton"]]), "row 0 of index part roots has another shape"),
    "a root of four fields": (put("roots", [["a", "b", "c", "d"]]), "row 0 of index part roots has another shape"),
    "a root named by a number": (put("roots", [[1, "triton", ""]]), "row 0 of index part roots has another shape"),
    "a root named by bytes": (put("roots", [[b"a", "triton", ""]]), "row 0 of index part roots has another shape"),
    "targets of another shape": (put("targets", [["cuda", 90, 32]]), "row 0 of index part targets has another shape"),
    "a target with a truth in place of a number": (
        put("targets", [["cuda", "90", True]]),
        "row 0 of index part targets has another shape",
    ),
    "a negative warp size": (
        put("targets", [["cuda", "90", -1]]),
        "row 0 of index part targets holds a negative number",
    ),
    "skipped of another shape": (put("skipped", [["a"]]), "row 0 of index part skipped has another shape"),
    "frames of another shape": (put("frames", [[1, 2, "digest"]]), "row 0 of index part frames has another shape"),
    "a frame of a negative size": (
        put("frames", [[1, -2, DIGEST]]),
        "row 0 of index part frames holds a negative number",
    ),
    "foreign that is no array": (put("foreign", {}), "index part foreign is not an array"),
    "a foreign row that is no array": (put("foreign", [[], "a"]), "index part foreign is not an array"),
    "a foreign path that is no string": (
        put("foreign", [[], [b"a"]]),
        "index part foreign holds something else than strings",
    ),
    "entries that are no array": (put("entries", {}), "index part entries is not an array"),
    "an entry of five fields": (put("entries", [[0, 6, "a", 0, []]]), "row 0 of index part entries has another shape"),
    "an entry whose files are a map": (entry_row(5, {}), "row 0 of index part entries has another shape"),
    "an entry in root -1": (entry_row(0, -1), "row 0 of index part entries holds a negative number"),
    "an entry in root 1": (entry_row(0, 1), "root number 1 of 1"),
    "an entry of unit 7": (entry_row(1, 7), "unit number 7 of 7"),
    "an entry for target 1": (entry_row(3, 1), "target number 0 of 0"),
    "needs that are no strings": (entry_row(4, [1]), "index part needs holds something else than strings"),
    "a file that is no row": (files("a"), "a file row has another shape"),
    "a file without a content": (files(["a"]), "a file row has another shape"),
    "a file named by a number": (files([1, 0]), "a file row has another shape"),
    "a file of content true": (files(["a", True]), "a file row has another shape"),
    "a file of content -1": (files(["a", -1]), "a file row has another shape"),
    "a file of four fields": (files(["a", 0, [0, 0, 0], 0]), "a file row has another shape"),
    "a relocation that is no array": (files(["a", 0, 5]), "index part relocations is not an array"),
    "a relocation of no placeholder": (files(["a", 0, [0, 0]]), "a relocation row lists no placeholder"),
    "an empty relocation": (files(["a", 0, []]), "a relocation row lists no placeholder"),
    "a negative offset": (
        files(["a", 0, [0, 0, -1]]),
        "index part relocations holds something else than whole numbers",
    ),
    "a negative delta": (
        files(["a", 0, [0, 0, 9, -9]]),
        "index part relocations holds something else than whole numbers",
    ),
    "an offset that is true": (
        files(["a", 0, [0, 0, True]]),
        "index part relocations holds something else than whole...",
    ),
    "base 2": (files(["a", 0, [2, 0, 0]]), "base of a relocation number 2 of 2"),
    "spelling 2": (files(["a", 0, [0, 2, 0]]), "spelling of a relocation number 2 of 2"),
    "contents that are no map": (put("contents", []), "index part contents is not a map"),
    "a column more": (
        column(zzz=[]),
        "the contents table has the columns ['copies', 'digests', 'foreign', 'sizes', 'zzz']",
    ),
    "a column less": (
        changed(lambda index: index["contents"].pop("copies")),
        "the contents table has the columns ['digests', 'foreign', 'sizes']",
    ),
    "sizes of another length": (column(sizes=[9]), "the columns of the contents table differ in length"),
    "digests of another length": (column(digests=bytes(63)), "the columns of the contents table differ in length"),
    "digests that are no bytes": (column(digests="d" * 64), "the columns of the contents table differ in length"),
    "foreign of another length": (column(foreign=[0]), "the columns of the contents table differ in length"),
    "a negative size": (column(sizes=[10, -1]), "index part contents.sizes holds something else than whole numbers"),
    "a size that is true": (
        column(sizes=[8, True]),
        "index part contents.sizes holds something else than whole numbers",
    ),
    "sizes that are no array": (column(sizes=9), "index part contents.sizes is not an array"),
    "a negative foreign row": (
        column(foreign=[0, -1]),
        "index part contents.foreign holds something else than whole...",
    ),
    "copies that are no array": (column(copies={}), "index part contents.copies is not an array"),
    "a copy that is no row": (column(copies=[5]), "index part contents.copies is not an array"),
    "an empty row of copies": (column(copies=[[]]), "a row of copies, for content -1 of 2, has another shape"),
    "a row of no copy": (column(copies=[[1]]), "a row of copies, for content 1 of 2, has another shape"),
    "half a copy": (column(copies=[[1, 0]]), "a row of copies, for content 1 of 2, has another shape"),
    "a copy and a half": (column(copies=[[1, 0, 0, 0]]), "a row of copies, for content 1 of 2, has another shape"),
    "copies of no content": (column(copies=[[2, 0, 0]]), "a row of copies, for content 2 of 2, has another shape"),
    "copies twice": (column(copies=[[1, 0, 0], [1, 0, 0]]), "a row of copies, for content 1 of 2, has another shape"),
    "copies out of order": (column(copies=[[1, 0, 0], [0, 0, 0]]), "a row of copies, for content 0 of 2, has..."),
    "a negative gap": (
        column(copies=[[1, -1, 0]]),
        "index part contents.copies holds something else than whole numbers",
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_an_index_of_another_shape_is_refused(case: str) -> None:
    data, what = SHAPES[case]
    check(data, (FormatError, {"what": what, "offset": 72, "name": "bundle"}))


def test_a_part_that_may_be_passed_over_changes_nothing() -> None:
    everything(put("~later", {"anything": [1, None]}))
    assert opened(put("~later", 1)).content_digest == opened(GOOD).content_digest


# --- rules -----------------------------------------------------------------------------------------------------------

TARGETS = [["cuda", "80", 32], ["cuda", "90", 32]]


def kernels(change: Change = lambda index: None, targets: list[Any] = TARGETS) -> bytes:
    """Two kernels for two targets (the files say cuda:90 of both)."""
    built: bytes = make.bundle([kernel("J"), kernel("K", target=2)], targets=targets, change=change)
    return built


def ordered(*entries: Any) -> bytes:
    built: bytes = make.bundle(entries)
    return built


def copied(copies: list[list[int]], sizes: list[int], own: bytes = b"one" * 50) -> bytes:
    """Contents of files a, b, ... with these sizes and copies; ``own`` are the raw bytes of the payload."""
    payload = frame(own)
    digests = b"".join(sha256(bytes([number])) for number in range(len(sizes)))
    built: bytes = forge(
        parts(
            contents={"copies": copies, "digests": digests, "foreign": [0] * len(sizes), "sizes": sizes},
            entries=[[0, 6, name, 0, [], [[name, number]]] for number, name in enumerate("abcdefgh"[: len(sizes)])],
            frames=[[len(payload), len(own), sha256(payload)]],
        ),
        payload,
    )
    return built


PLACEHOLDERS = b"[REPLACE] [ROOT] [ROOT]"


def placed(*relocation: int, data: bytes = PLACEHOLDERS) -> bytes:
    built: bytes = make.bundle([single("a", data, make.FILE, list(relocation))])
    return built


FRAME = frame(b"123456789")
ROW = [len(FRAME), 9, sha256(FRAME)]
NESTED = [single("a", b"1"), single("a/b", b"2")]


def of_first(change: Callable[[list[Any]], object]) -> bytes:
    """Two kernels, with a change to the rows of files of the first."""
    return kernels(lambda index: change(index["entries"][0][5]))


SHORT, ROOTS = (
    ", the header says ".join(("the frames are {} bytes", str(len(FRAME)))),
    "the roots are not sorted, or one stands twice",
)
TARGETED = "the targets are not sorted, one stands twice, or one belongs to no entry"
SORTED, FILES = "entry {} is not sorted, or stands twice", "the files of {} are none, not sorted, or twice there"
OWN, NEED = (
    "the contents have {} bytes of their own, the frames hold 9",
    "content 1 has {} bytes of its own, its copies need {}",
)
COPIES, BEFORE = "content {} copies content {}, {}", "which does not stand before it"
OVERLAP, BOTH = (
    "the placeholders of triton/a/a overlap or lie beyond {} bytes",
    "{} is a file of one entry and a directory of another",
)
TWO_ROOTS = [["a", "triton", ""], ["b", "triton", ""]]

RULES: dict[str, tuple[bytes, str]] = {
    # frames
    "frames of less than the payload": (put("frames", [[len(FRAME) - 1, 9, DIGEST]]), SHORT.format(len(FRAME) - 1)),
    "frames of more than the payload": (put("frames", [ROW, [1, 1, DIGEST]]), SHORT.format(len(FRAME) + 1)),
    "no frames": (put("frames", []), SHORT.format(0)),
    "a short digest of a frame": (put("frames", [[*ROW[:2], bytes(31)]]), "the digest of frame 0 has 31 bytes, not 32"),
    "a frame of no bytes": (put("frames", [ROW, [0, 0, DIGEST]]), "frame 1 is empty"),
    "a frame of no raw bytes": (put("frames", [[len(FRAME) - 1, 9, DIGEST], [1, 0, DIGEST]]), "frame 1 is empty"),
    "a frame of no stored bytes": (put("frames", [ROW, [0, 1, DIGEST]]), "frame 1 is empty"),
    # contents
    "contents of less than the frames": (column(sizes=[7, 1]), OWN.format(8)),
    "contents of more than the frames": (column(sizes=[7, 3]), OWN.format(10)),
    "a content twice": (column(digests=sha256(b"1234567") * 2), "a content stands twice"),
    "a file of no content": (files(["a", 2]), "a file refers to content 2, out of range"),
    "a content of no file": (files(["a", 1]), "1 contents belong to no file"),
    "contents of no file": (put("entries", []), "2 contents belong to no file"),
    "no such foreign row": (column(foreign=[0, 1]), "content 1 names row 1 of foreign paths"),
    "a copy of itself": (copied([[1, 0, 1]], [9, 9]), COPIES.format(1, 1, BEFORE)),
    "a copy of a later one": (copied([[0, 0, 1]], [9, 9]), COPIES.format(0, 1, BEFORE)),
    "a copy of nothing": (copied([[1, 0, 9]], [9, 9]), COPIES.format(1, 9, BEFORE)),
    "a copy of copies": (
        copied([[1, 0, 0], [2, 0, 1]], [50, 50, 50]),
        COPIES.format(2, 1, "itself made of copies"),
    ),
    "a copy of an empty one": (copied([[1, 0, 0]], [0, 9]), COPIES.format(1, 0, "which is empty")),
    "copies of more than the content": (copied([[1, 0, 0]], [9, 8]), NEED.format(-1, 0)),
    "a gap of more than its own bytes": (copied([[1, 2, 0]], [9, 10]), NEED.format(1, 2)),
    "gaps of more than its own bytes": (copied([[1, 1, 0, 1, 0]], [9, 19]), NEED.format(1, 2)),
    # roots, targets, foreign
    "roots out of order": (put("roots", TWO_ROOTS[::-1]), ROOTS),
    "a root twice": (put("roots", [TWO_ROOTS[0]] * 2), ROOTS),
    **{
        f"a root named {name!r}": (put("roots", [[name, "triton", ""]]), f"root name {name!r}")
        for name in ("", "..", ".hidden", "-x", "a/b", "a b", "é", "a\0", "n" * 65, "a\n")
    },
    "no foreign rows": (put("foreign", []), "content 0 names row 0 of foreign paths"),
    "a first foreign row that is not empty": (put("foreign", [["/opt"]]), "row 0 of foreign paths is not empty"),
    "no foreign rows and no contents": (forge(parts(foreign=[])), "row 0 of foreign paths is not empty"),
    "targets out of order": (kernels(targets=TARGETS[::-1]), TARGETED),
    "a target twice": (kernels(targets=[TARGETS[1]] * 2), TARGETED),
    "a target of no entry": (put("targets", TARGETS), TARGETED),
    # entries
    "entries out of order": (changed(lambda index: index["entries"].reverse()), SORTED.format("triton/a")),
    "an entry twice": (
        changed(lambda index: index["entries"].append(index["entries"][1])),
        SORTED.format("triton/b"),
    ),
    "entries sorted by number of root": (
        make.bundle(TWO, roots=TWO_ROOTS, change=lambda index: index["entries"][0].__setitem__(0, 1)),
        SORTED.format("a/b"),
    ),
    "an entry of no file": (make.bundle([(0, make.FILE, "a", 0, [])]), FILES.format("triton/a")),
    "an entry of two files": (files(["a", 0], ["b", 1]), "triton/a does not have the one file of its name"),
    "a file of another name": (files(["b", 0]), "triton/a does not have the one file of its name"),
    "a kernel of no file": (make.bundle([(0, make.KERNEL, "J", 0, [])]), FILES.format("triton/J")),
    "files of a kernel out of order": (of_first(lambda rows: rows.reverse()), FILES.format("triton/J")),
    "a file of a kernel twice": (of_first(lambda rows: rows.insert(0, rows[0])), FILES.format("triton/J")),
    "a file of a kernel in another directory": (
        of_first(lambda rows: rows[-1].__setitem__(0, "b/c")),
        "file 'b/c' of kernel triton/J lies in another directory",
    ),
    # places
    "a file and a directory": (ordered(*NESTED), BOTH.format("triton/a")),
    "a file and a directory with others between": (
        ordered(single("a", b"1"), single("a b", b"2"), single("a-b", b"3"), single("a/b/c", b"4")),
        BOTH.format("triton/a"),
    ),
    "a kernel in a file": (
        make.bundle([single("a", b"1"), kernel("a/K")], targets=[make.CUDA_90]),
        BOTH.format("triton/a"),
    ),
    "a kernel in the file of a kernel": (
        make.bundle([kernel("K"), kernel("K/add.ttir")], targets=[make.CUDA_90]),
        BOTH.format("triton/K/add.ttir"),
    ),
    "a file of a kernel, and as an entry": (
        make.bundle([kernel("K"), single("K/add.ttir", b"1")], targets=[make.CUDA_90]),
        "two entries write triton/K/add.ttir",
    ),
    # placeholders
    "placeholders on one place": (placed(1, 1, 10, 0), OVERLAP.format(23)),
    "placeholders that overlap": (placed(1, 1, 10, 5), OVERLAP.format(23)),
    "a placeholder beyond the end": (placed(1, 1, 18), OVERLAP.format(23)),
    "a placeholder far beyond the end": (placed(0, 0, (1 << 64) - 1), OVERLAP.format(23)),
    "a placeholder in nothing": (placed(0, 0, 0, data=b""), OVERLAP.format(0)),
}


@pytest.mark.parametrize("case", RULES)
def test_an_index_that_breaks_a_rule_is_refused(case: str) -> None:
    data, what = RULES[case]
    check(data, (FormatError, {"what": what, "offset": 72, "name": "bundle"}))


def test_placeholders_may_touch_each_other_and_the_end() -> None:
    everything(placed(1, 1, 0, 6, data=b"[ROOT][ROOT]"))
    everything(placed(1, 1, 17))


def test_names_that_sort_between_a_file_and_what_would_lie_below_it_are_no_collision() -> None:
    everything(ordered(single("a", b"1"), single("a b/c", b"2"), single("a-b/c", b"3"), single("ab/c", b"4")))
    everything(
        make.bundle([single("K-x/a", b"1"), kernel("K"), single("K/sub/a", b"2")][::-1][1:], targets=[make.CUDA_90])
    )


def test_the_same_content_in_many_files_is_no_second_content() -> None:
    everything(make.bundle([single("a", b"1"), single("b", b"1"), single("c", b"")]))


# name -> (path, class, fields)
PATHS: dict[str, tuple[str, type[BundlerError], dict[str, Any]]] = {
    "empty": ("", UnsafePathError, {"reason": "a bundle holds plain relative paths, and this one has the part ''"}),
    "absolute": ("/a", UnsafePathError, {"path": "/a"}),
    "an empty part": ("a//b", UnsafePathError, {"reason": "a bundle holds plain relative paths, and this one has..."}),
    "a trailing slash": ("a/", UnsafePathError, {"path": "a/"}),
    "dot": (".", UnsafePathError, {"reason": "a bundle holds plain relative paths, and this one has the part '.'"}),
    "up": ("../a", UnsafePathError, {"reason": "a bundle holds plain relative paths, and this one has the part '..'"}),
    "up in the middle": ("a/../b", UnsafePathError, {"path": "a/../b"}),
    "NUL": ("a\0b", UnsafePathError, {"reason": "a NUL in a name"}),
    "a staging name": (".tb-1", UnsafePathError, {"reason": "names that start with .tb- are reserved for staging"}),
    "a staging name below": ("a/.tb-1/b", UnsafePathError, {"path": "a/.tb-1/b"}),
    "a name of 256 bytes": ("é" * 128, LimitExceededError, {"what": "bytes of a file name", "size": 256, "limit": 255}),
    "129 parts": (
        "/".join("d" * 129),
        LimitExceededError,
        {"what": "number of parts of a path", "size": 129, "limit": 128},
    ),
}
PATHS["a path of 4,096 bytes"] = (
    "/".join(["d" * 240] * 17)[:4096],
    LimitExceededError,
    {"what": "bytes of a path", "size": 4096, "limit": 4095},
)


@pytest.mark.parametrize("case", PATHS)
def test_a_path_that_is_not_plain_is_refused(case: str) -> None:
    path, kind, fields = PATHS[case]
    named = {} if kind is UnsafePathError else {"name": f"triton/{path}"}
    check(make.bundle([single(path)]), (kind, fields | named))
    check(make.bundle([kernel(path)], targets=[make.CUDA_90]), (kind, fields | named))


@pytest.mark.parametrize("name", ["", ".", "..", "a\0", ".tb-x"])
def test_a_file_name_in_a_kernel_that_is_not_plain_is_refused(name: str) -> None:
    check(of_first(lambda rows: rows[0].__setitem__(0, name)), (UnsafePathError, {"path": name}))


def test_a_long_file_name_in_a_kernel_is_refused() -> None:
    name = "n" * 256
    expected = {"what": "bytes of a file name", "size": 256, "limit": 255, "name": f"triton/J/{name}"}
    check(of_first(lambda rows: rows[-1].__setitem__(0, name)), (LimitExceededError, expected))


def test_the_longest_paths_and_names_are_taken() -> None:
    for path in (
        "n" * 255,
        "é" * 127,
        "/".join(["d" * 240] * 17)[:4095],
        "/".join("d" * 128),
        "..a",
        "a..",
        "...",
        ".tb",
    ):
        everything(make.bundle([single(path)]))


def test_a_path_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UnsafePathError) as caught:
        _rules.check_path("caf\udce9", "it")
    assert caught.value.fields() == {"path": "caf\udce9", "reason": "the name is not UTF-8"}


# --- limits ----------------------------------------------------------------------------------------------------------

# constant -> (its value for the test, bundle, what, size)
LIMITS: dict[str, tuple[str, int, bytes, str, int]] = {
    "roots": ("MAX_COUNT", 1, put("roots", [["a", "triton", ""], ["triton", "triton", ""]]), "number of roots", 2),
    "entries": ("MAX_COUNT", 2, ordered(*(single(name, b"1") for name in "abc")), "number of entries", 3),
    "contents": ("MAX_COUNT", 7, kernels(), "number of contents", 8),
    "frames": ("MAX_COUNT", 2, put("frames", [ROW] * 3), "number of frames", 3),
    "files of an entry": ("MAX_COUNT", 3, files(*([f"a{n}", 0] for n in range(4))), "number of files in one entry", 4),
    "raw bytes of a frame": ("MAX_BLOCK_SIZE", 8, GOOD, "raw bytes of a frame", 9),
    "bytes of a frame": ("MAX_FRAME_SIZE", len(FRAME) - 1, GOOD, "bytes of a frame as stored", len(FRAME)),
    "bytes of a content": ("MAX_CONTENT_SIZE", 6, GOOD, "bytes of a content", 7),
    "placeholders": ("MAX_PLACEHOLDERS", 1, placed(1, 1, 10, 7), "number of placeholders in a file", 2),
    "bytes with placeholders": ("MAX_RELOCATED_SIZE", 22, placed(1, 1, 10), "bytes of a file with placeholders", 23),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_count_or_size_over_its_limit_is_refused_with_both_numbers(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    constant, limit, data, what, size = LIMITS[case]
    monkeypatch.setattr(_rules, constant, limit)
    named = {"name": "triton/a/a"} if "placeholders" in case else {"name": "bundle"}
    check(data, (LimitExceededError, {"what": what, "size": size, "limit": limit, **named}))
    monkeypatch.setattr(_rules, constant, size)
    if case not in ("roots", "frames", "files of an entry"):  # which break a rule besides
        opened(data)


def test_an_index_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = make.spelled(make.index_of(TWO)[0])
    count = 0

    def count_values(value: Any) -> None:
        nonlocal count
        if isinstance(value, (list, dict)):
            count += 1 + len(value)
            for item in value.values() if isinstance(value, dict) else value:
                count_values(item)

    count_values(msgpack.unpackb(raw))
    monkeypatch.setattr(_msgpack, "MAX_INDEX_VALUES", count)
    opened(GOOD)
    monkeypatch.setattr(_msgpack, "MAX_INDEX_VALUES", count - 1)
    expected = {"what": "number of values in the index", "size": count, "limit": count - 1, "name": "bundle"}
    check(GOOD, (LimitExceededError, expected))
    monkeypatch.setattr(_msgpack, "MAX_INDEX_VALUES", 8)  # the map of parts has nine
    check(GOOD, (FormatError, {"what": BAD + "..."}))


def test_empty_arrays_are_counted_before_the_array_that_holds_them_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_msgpack, "MAX_INDEX_VALUES", 1000)
    rows = b"\xdc\x03\xe8" + b"\x90" * 1000
    with pytest.raises(LimitExceededError) as caught:
        _msgpack.decode(b"\x92" + b"\x91" + b"\x90" + rows, what="it", offset=0, name="")
    assert caught.value.size == 1001  # an array of 1,000 was not read to its end


ROOM = limits.MAX_FREE_EXPANSION


@pytest.mark.parametrize("what", ["files", "placeholders", "directories"])
def test_what_expands_beyond_measure_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {
        "files": lambda: ordered(*(single(f"f{n:02}", bytes(1 << 20)) for n in range(40))),
        "placeholders": lambda: placed(1, 1, 0, *[6] * 9_999, data=b"[ROOT]" * 10_000),
        "directories": lambda: ordered(*(single(f"{n}/" + "/".join("d" * 100)) for n in range(100, 200))),
    }[what]()
    opened(data)
    size = {"files": 40 << 20, "placeholders": 60_000 + 10_000 * 4095, "directories": 100 * (4 + 100 * 4095)}[what]
    monkeypatch.setattr(_rules, "MAX_FREE_EXPANSION", 1 << 20)
    monkeypatch.setattr(_rules, "MAX_EXPANSION", size // len(data) + 1)
    opened(data)
    monkeypatch.setattr(_rules, "MAX_EXPANSION", size // len(data) - 1)
    check(
        data,
        (
            LimitExceededError,
            {"what": "bytes of files per byte of bundle", "size": size // len(data), "limit": size // len(data) - 1},
        ),
    )
    monkeypatch.setattr(_rules, "MAX_FREE_EXPANSION", size)
    opened(data)


def test_many_rows_of_copies_take_no_longer_than_they_are_many() -> None:
    """The loss: time by the square of their number, hours for a few hundred kilobytes."""
    count = 60_000
    table = {
        "copies": [[n, 0, 0] for n in range(1, count)],
        "digests": b"".join(n.to_bytes(32, "big") for n in range(count)),
        "foreign": [0] * count,
        "sizes": [1] * count,
    }
    contents = _index._contents(_index._Rows(0, ""), table)
    assert contents[1] == Content((1).to_bytes(32, "big"), 1, ((0, 0),))


def test_many_deep_paths_take_no_more_memory_than_they_are_long() -> None:
    deep = "/".join("d" * 120)
    paths = [f"{n}/{deep}" for n in range(1000, 1400)]
    data = make.bundle([single(path) for path in paths])
    tracemalloc.start()
    opened(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * sum(map(len, paths))


def test_an_index_is_the_one_spelling_of_what_it_says() -> None:
    for data in (GOOD, kernels(), placed(1, 1, 10), copied([[2, 1, 0, 2, 1]], [9, 8, 30], own=bytes(30))):
        reader = opened(data)
        assert isinstance(reader.index, Index)
        raw = zstandard.decompress(data[72 : 72 + reader.header.index_size])
        assert _index.encode_index(reader.index) == raw
