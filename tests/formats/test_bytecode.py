"""Laws of the byte code walker; ``marshal`` is the judge of where code ends, and Python of what it writes."""

from __future__ import annotations

import base64
import importlib.util
import marshal
import sys
import sysconfig
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler.errors import FormatError
from bundler.formats.bytecode import HEADER_SIZE, ByteCode, parse, tag_of

OWN = sys.implementation.cache_tag
SOURCE = """
def f(x, /, *, y=10**40, z=-(2**70)):
    "A function, é"
    return [x[1:2] for _ in {"a", b"b", 1.5, 2j, None, ..., True, 7, "t" * 300}]
class A:
    many = (%s)
""" % ", ".join(map(str, range(300)))

# A function with a list comprehension over {"a", b"b", 1.5, 2j, None, ...} and a slice, as each Python compiled it.
WRITTEN = {
    "cpython-310": (
        "eNrL5+XlYmZgYNAIEdBwe8N29DEDGgBJOgBxsRiQSGFIYRRmSGGaw5jCnMLSwhTFkMIazKDJ9pILKPlSA0hoMt5irExmBLJgmAlq"
        "CAgXCwGJdoY0xhTGFKYWjhRmF4ZmRqABLH5gLTAA0sIKxMIgLRJAIp2hhiGWo5axA+yCViZJholMhUxAjUwvQfpegjSsBPJuMekZ"
        "3GKsWgl0REURG1DwF6d+cVGyfq5eQeUtLpuczOKS5PzcAjuQ+mIQIcFQJZqmZ5OTn5yYU2ynh1Bhxwa2Fgx+2H8G2ZJUiRY0Dn63"
        "GBP1wPZoMhWBgqAI5EmwQBEniOAGErcY0xhh1gkxFvEDKT9NCA1RiSDAyjlscvNTSnNS7eC6xBgAfppEDw=="
    ),
    "cpython-312": (
        "eNo7zcvLxczAwLDpYevS8Fpfu8cMSIAJSn8WAxLTGVIYUhirOBgYUpjmMKYwtzBFMVSyaLK+5AJKvtQAEpqMtxgrkxmBLBhmA2KQ"
        "6Z+NIAYwujD0MyUzpTMkM8WyMzDUMtUADUthlmKYyNTDyQIUrWUKBpKMYFY5gyaLnx3ICD2/5xCH/LD/yYAKHG4xJn4GWZX0EkS+"
        "BDl5JYMm8y3GiiIWIPsWY1UxyAUKCgq/OPWLi5L1c/UKKm8xphUJQN1YLAMkGhhuyFhf47aZUNjh2JE4gbHL7RK3zQUWm59Aqhhk"
        "TiuPCIufJiNYVxEPyEsg24v4gcQvDpvc/JTSnFS7IiGYmYJA4gMzIyPjDUHhCUETxb4yMDLaFoFEAbSOR/w="
    ),
    "cpython-313": (
        "eNr7zMvLxczAwGCq1sLWViem/JgBCTBB6c8SQGIqQzBDMKMuBwNDMJMeYzCzFEMWUxFDOosm60suoPRLDSChyXiLsTKZEciCYTYg"
        "Bpn/2QRiBKMwQxhTMZM+QzGTBzsDQ75CMFMwMwtDAJMvJwMDN4MCUDyPSQVIQlhpDJosfnYgQ/T8bjEmPoe454f9Z5DZST8ZUIHD"
        "S5DwS5CzVzJoMt9irChiAbJvMVYVg9ygoKBwi1O/uChZP1evoPIWY1qRANSVxQpAooHhpoz1ZW6bizLWEwo7EicwdrsBmRe5bS6w"
        "2Py8xG1TDDKrlVeUxU+TEayziAfkMZDFRfwgazhscvNTSnNS7YqEYOYKAokPzIyMjDcEhScETRT7xsDIaFsEEgUA6MNEyQ=="
    ),
}


def written(source: str, flags: int = 0) -> bytes:
    """Byte code as this Python writes it, but for what it notes of the source."""
    code = marshal.dumps(compile(source, "/src/a.py", "exec"))
    return importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + bytes(range(1, 9)) + code


def made(code: bytes, magic: int = 3495) -> bytes:
    return magic.to_bytes(2, "little") + b"\r\n" + bytes(12) + code


def test_the_header_is_read() -> None:
    magic = int.from_bytes(importlib.util.MAGIC_NUMBER[:2], "little")
    source = bytes(range(1, 9))
    assert parse(written(SOURCE)) == ByteCode(magic, str(OWN), False, False, source)
    assert parse(written(SOURCE, 1)) == ByteCode(magic, str(OWN), True, False, source)
    assert parse(written(SOURCE, 3)) == ByteCode(magic, str(OWN), True, True, source)
    assert parse(written(SOURCE)).stamp == (0x04030201, 0x08070605)


@pytest.mark.parametrize("python", WRITTEN)
def test_byte_code_of_other_pythons_is_read_to_its_end(python: str) -> None:
    data = zlib.decompress(base64.b64decode(WRITTEN[python]))
    found = parse(data)
    assert (found.python, found.by_hash, found.checked) == (python, True, True)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            parse(data[:size])
    with pytest.raises(FormatError, match="the code ends at byte"):
        parse(data + b"N")


def test_every_module_of_the_standard_library_is_read() -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    assert len(files) > 100
    for file in files:
        parse(written(file.read_text(encoding="utf-8", errors="replace").lstrip("\ufeff")))


def test_code_that_is_cut_short_anywhere_is_refused() -> None:
    """The loss: Python takes such a file for sound, and the import fails, on each start."""
    data = written(SOURCE)
    parse(data)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            parse(data[:size])


@given(st.data())
def test_a_tail_of_nul_is_refused(data: st.DataObject) -> None:
    whole = written(SOURCE)
    size = data.draw(st.integers(HEADER_SIZE, len(whole) - 8))
    with pytest.raises(FormatError):
        parse(whole[:size] + bytes(len(whole) - size))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(code: bytes) -> None:
    for data in (code, made(code), made(b"\xe3" + bytes(20) + code)):
        with suppress(FormatError):  # and no other
            parse(data)


CODE = b"c" + bytes(20)  # of 3.11 to 3.14: five numbers, and eight values, a line, two values behind them

# case -> (code object)
SOUND = {
    "plain": CODE + b"N" * 8 + bytes(4) + b"NN",
    "strings": CODE + b"z\x01az\x00Z\x02ab\xda\x01as\x01\0\0\0xt\0\0\0\0A\x01\0\0\0xu\0\0\0\0" + bytes(4) + b"NN",
    "tuples": CODE + b")\x02NN(\x01\0\0\0T>\x02\0\0\0FN)\x00" + b"N" * 4 + bytes(4) + b"NN",
    "numbers": CODE
    + b"i\x01\0\0\0g"
    + bytes(8)
    + b"y"
    + bytes(16)
    + b"l\xfe\xff\xff\xff"
    + bytes(4)
    + b"l\x01\0\0\0\1\0"
    + b"r\0\0\0\0"
    + b"NN"
    + bytes(4)
    + b"NN",
    "a slice": CODE + b":NNi\x01\0\0\0" + b"N" * 7 + bytes(4) + b"NN",
    "a function": CODE + CODE + b"N" * 8 + bytes(4) + b"NN" + b"N" * 7 + bytes(4) + b"NN",
}


@pytest.mark.parametrize("case", SOUND)
def test_every_type_is_stepped_over(case: str) -> None:
    assert parse(made(SOUND[case])).python == "cpython-311"
    for more in (b"N", b"\0"):
        with pytest.raises(FormatError, match="the code ends at byte"):
            parse(made(SOUND[case] + more))


# case -> (bytes, words of the refusal, offset)
REFUSED = {
    "nothing": (b"", "0 bytes, and the header alone has 16", 0),
    "half a header": (bytes(15), "15 bytes", 0),
    "NUL": (bytes(100), "it starts with 00 00 00 00", 0),
    "other flags": (made(SOUND["plain"])[:4] + b"\4" + made(SOUND["plain"])[5:], "flags 0x4", 4),
    "checked without a hash": (made(SOUND["plain"])[:4] + b"\2" + made(SOUND["plain"])[5:], "flags 0x2", 4),
    "a header alone": (made(b""), "cut short: 16 bytes", 16),
    "no code": (made(b"N"), "of type 0x4e", 16),
    "a dictionary": (made(CODE + b"{0" + b"N" * 7 + bytes(4) + b"NN"), "of type 0x7b", 37),
    "a string past the end": (made(SOUND["plain"][:-1] + b"z\x05abc"), "cut short or overlong: 55 bytes", 55),
    "a count past the end": (made(CODE + b"(\xff\xff\xff\xff" + b"N" * 7 + bytes(4) + b"NN"), "of type 0x0", 49),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_python_writes_is_refused_with_where_and_why(case: str) -> None:
    data, words, offset = REFUSED[case]
    with pytest.raises(FormatError) as error:
        parse(data)
    assert words in str(error.value) and error.value.offset == offset


@pytest.mark.parametrize("magic", [62211, 3394, 3650, 3429, 240])
def test_the_code_of_a_python_that_is_not_known_is_not_looked_at(magic: int) -> None:
    found = parse(made(b"whatever", magic))
    assert (found.magic, found.python) == (magic, "")


def test_a_release_has_the_numbers_up_to_the_next() -> None:
    assert [
        parse(made(SOUND["plain"], magic)).python for magic in (3450, 3495, 3499, 3500, 3531, 3571, 3627, 3649)
    ] == [
        *["cpython-311"] * 3,
        *["cpython-312"] * 2,
        "cpython-313",
        *["cpython-314"] * 2,
    ]


TAGS = {
    "a.cpython-311.pyc": "cpython-311",
    "a.cpython-311.opt-1.pyc": "cpython-311",
    "a.b.cpython-310.pyc": "cpython-310",
    "a.pypy310.pyc": "pypy310",
    "a.cpython-313-pytest-9.0.2.pyc": "cpython-313",
    "a.cpython-313-pytest.pyc": "cpython-313",
    "a.pyc": "",
    "a.cpython-311.py": "",
    "cpython-311.pyc": "",
}


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_is_read_from_a_name(name: str) -> None:
    assert tag_of(name) == TAGS[name]
