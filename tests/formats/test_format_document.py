"""The tables of FORMAT.md say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import bundler
from bundler.formats import _frame, _header, _index, limits
from bundler.model import Base, Profile, Spelling
from bundler.relocate import PLACEHOLDERS

DOCUMENT = Path(bundler.__file__).parent / "formats" / "FORMAT.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")

# How a writer of ours chooses; no reader depends on them.
NOT_OF_THE_FORMAT = {"DEFAULT_BLOCK_SIZE", "DEFAULT_LEVEL", "MAX_LEVEL"}


def tables(text: str) -> list[list[dict[str, str]]]:
    """Every table: a list of rows, each by the names of its columns."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def table(*columns: str) -> list[dict[str, str]]:
    """The one table that has these columns first."""
    (found,) = [rows for rows in tables(TEXT) if rows and tuple(rows[0])[: len(columns)] == columns]
    return found


def test_the_header_is_as_the_table_says() -> None:
    rows = table("offset", "size", "field", "meaning")
    assert [(row["field"], int(row["size"])) for row in rows] == [
        (name, size) for name, _, size in _header.HEADER_FIELDS
    ]
    ends = [int(row["offset"]) + int(row["size"]) for row in rows]
    assert [int(row["offset"]) for row in rows] == [0, *ends[:-1]]
    assert ends[-1] == _header.HEADER_SIZE
    meaning = {row["field"]: row["meaning"] for row in rows}
    assert bytes.fromhex(meaning["magic"].strip("`")) == _header.MAGIC
    assert int(meaning["version"]) == _header.VERSION


def test_the_limits_are_as_the_table_says() -> None:
    written = {row["name"]: int(row["value"]) for row in table("name", "value")}
    coded = {name: getattr(limits, name) for name in limits.__all__ if name not in NOT_OF_THE_FORMAT}
    assert written == coded
    assert list(written) == sorted(written)


def test_units_are_numbered_as_the_table_says() -> None:
    rows = table("number", "unit")
    assert [(int(row["number"]), row["unit"]) for row in rows] == list(enumerate(map(str, _index.UNITS)))


def test_the_parts_of_the_index_are_those_of_the_table() -> None:
    assert tuple(row["part"] for row in table("part", "value")) == tuple(sorted(_index._REQUIRED + _index._OPTIONAL))
    (profile,) = [row["value"] for row in table("part", "value") if row["part"] == "profile"]
    assert re.findall(r"`(\w+)`", profile) == [member.value for member in Profile]


def test_placeholders_and_spellings_are_as_the_tables_say() -> None:
    placeholders = {int(row["base"]): row["placeholder"].strip("`").encode() for row in table("base", "placeholder")}
    assert placeholders == {base.value: PLACEHOLDERS[base] for base in Base}
    assert [int(row["spelling"]) for row in table("spelling")] == [spelling.value for spelling in Spelling]


def test_every_version_that_is_read_has_its_changes() -> None:
    assert [int(row["version"]) for row in table("version", "change")] == list(range(1, _header.VERSION + 1))


def test_a_frame_is_what_the_document_promises() -> None:
    # Content size, checksum, no dictionary: section 5. Which decoder made or reads it is not ours to say.
    import zstandard

    found = zstandard.get_frame_parameters(_frame.compress(bytes(1 << 20), 3))
    assert (found.content_size, found.has_checksum, found.dict_id) == (1 << 20, True, 0)
    assert found.window_size <= 1 << limits.WINDOW_LOG


def test_sections_are_numbered_and_the_code_refers_to_existing_ones() -> None:
    numbers = re.findall(r"^##+ (\d+(?:\.\d+)?)\.? ", TEXT, re.MULTILINE)
    assert numbers == sorted(numbers, key=lambda number: tuple(map(int, number.split("."))))
    referred: set[str] = set()
    for path in DOCUMENT.parent.glob("*.py"):
        for first, _, second in re.findall(r"FORMAT\.md\s+sections? (\d+)( (?:to|and) (\d+))?", path.read_text()):
            referred |= {first, second} - {""}
    assert referred and referred <= set(numbers)
