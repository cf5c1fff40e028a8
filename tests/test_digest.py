"""A digest is spelled in one way, and read back as the same."""

from __future__ import annotations

import hashlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler.digest import Digest

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of nothing, FIPS 180-4


def test_a_digest_is_written_with_its_algorithm_in_lower_case() -> None:
    assert str(Digest.of(b"")) == f"sha256:{EMPTY}"


@given(value=st.binary(min_size=32, max_size=32))
def test_parse_reads_what_str_writes(value: bytes) -> None:
    digest = Digest(value)
    assert Digest.parse(str(digest)) == digest == Digest.parse(value.hex()) == Digest.parse(value.hex().upper())


@given(data=st.binary(max_size=200))
def test_every_buffer_of_the_same_bytes_has_the_same_digest(data: bytes) -> None:
    assert Digest.of(data) == Digest.of(bytearray(data)) == Digest.of(memoryview(data))
    assert Digest.of(data).value == hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        EMPTY[:-1],
        EMPTY + "0",
        f"sha512:{EMPTY}",
        f"SHA256:{EMPTY}",
        f"sha256:sha256:{EMPTY}",
        f"sha256: {EMPTY[1:]}",
        EMPTY[:-2] + "zz",
        EMPTY[:-3] + "  0",  # bytes.fromhex passes over blanks
        EMPTY[:-1] + "\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_any_other_text_is_no_digest(text: str) -> None:
    with pytest.raises(ValueError):
        Digest.parse(text)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_value_of_another_size_is_no_digest(size: int) -> None:
    with pytest.raises(ValueError, match=f"not {size}"):
        Digest(bytes(size))


def test_digests_sort_by_value_and_serve_as_keys_in_other_processes() -> None:
    low, high = Digest(bytes(32)), Digest(b"\x01" + bytes(31))
    assert sorted([high, low]) == [low, high]
    assert {low: 1}[pickle.loads(pickle.dumps(low))] == 1
