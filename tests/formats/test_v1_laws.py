"""Laws of version 1: what is written is read, whole or not at all, from a file or a pipe, whatever happened to it."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import runpy
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundler.errors import BundlerError, DigestMismatchError, FormatError, LocalIOError, TruncatedError
from bundler.formats import Reader, Source, Written, _frame, _index, open_bundle, v1, write
from bundler.formats._task import Task
from bundler.model import (
    Artifact,
    Base,
    Content,
    Entry,
    Index,
    Profile,
    Relocation,
    RootRecord,
    Skipped,
    Spelling,
    Target,
    Unit,
)

make = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_attacks.py")))


@dataclass(frozen=True)
class Tree:
    """What goes into a bundle: contents in payload order, and entries that refer to them."""

    index: Index
    contents: tuple[bytes, ...]
    rows: tuple[Content, ...]

    def sources(self, chunk: int = 1 << 20) -> Iterator[Source]:
        """The contents, their own bytes in chunks of at most ``chunk``."""
        for data, row in zip(self.contents, self.rows, strict=True):
            own = self.own(data, row)
            yield Source(row, partial(_chunks, own, chunk))

    def own(self, data: bytes, row: Content) -> bytes:
        parts, at = [], 0
        for gap, source in row.copies:
            parts.append(data[at : at + gap])
            at += gap + len(self.contents[source])
        return b"".join(parts) + data[at:]


def _chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def tree_of(contents: Iterable[bytes], copies: dict[int, tuple[tuple[int, int], ...]] | None = None) -> Tree:
    """One file for each content; files with placeholders and kernels come along where the bytes allow it."""
    datas = tuple(contents)
    rows = tuple(
        Content(hashlib.sha256(data).digest(), len(data), (copies or {}).get(number, ()))
        for number, data in enumerate(datas)
    )
    entries = [
        Entry(
            "a",
            f"d{number % 3}/f{number:03}",
            Unit.FILE,
            (Artifact(f"f{number:03}", number, _relocation(data)),),
        )
        for number, data in enumerate(datas)
    ]
    if datas:
        files = tuple(Artifact(f"k{number:03}", number) for number in range(len(datas)))
        entries.append(Entry("b", "K", Unit.KERNEL, files, Target("cuda", "90", 32)))
    index = Index(
        Profile.FULL,
        (RootRecord("a", "inductor", "/packed/a"), RootRecord("b", "triton")),
        tuple(sorted(entries, key=lambda entry: entry.identity)),
        (),
        (),
        facts={"os": "linux"},
        skipped=(Skipped("a/x", "because"),),
    )
    return Tree(index, datas, rows)


def _relocation(data: bytes) -> Relocation | None:
    return Relocation(Base.ROOT, Spelling.PYTHON, (0,)) if data.startswith(b"[ROOT]") else None


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    plain = draw(
        st.lists(
            st.binary(max_size=40)
            | st.builds(bytes.__mul__, st.sampled_from([b"a", b"ab", b"[ROOT]"]), st.integers(1, 40)),
            unique=True,
            max_size=6,
        )
    )
    datas, copies = list(plain), {}
    sources = [number for number, data in enumerate(plain) if data]
    for _ in range(draw(st.integers(0, 3)) if sources else 0):
        parts, row = [], []
        for source in draw(st.lists(st.sampled_from(sources), min_size=1, max_size=4)):
            gap = draw(st.binary(max_size=10))
            parts += [gap, plain[source]]
            row.append((len(gap), source))
        data = b"".join(parts) + draw(st.binary(max_size=10))
        if data not in datas:
            copies[len(datas)] = tuple(row)
            datas.append(data)
    return tree_of(datas, copies)


def written(tree: Tree, *, chunk: int = 1 << 20, **options: Any) -> tuple[bytes, Written]:
    out = io.BytesIO()
    report = write(out, options.pop("index", tree.index), tree.sources(chunk), **options)
    assert report.size == len(out.getvalue())
    return out.getvalue(), report


class Pipe(io.RawIOBase):
    """Gives what it has, a few bytes at a time, once; knows neither ``seek`` nor ``tell``."""

    def __init__(self, data: bytes, step: int = 37) -> None:
        self._data = io.BytesIO(data)
        self._step = step

    def read(self, size: int = -1) -> bytes:
        assert size > 0, "a pipe is read in pieces of known size"
        return self._data.read(min(size, self._step))

    def seek(self, *_: Any) -> int:
        raise AssertionError("nothing seeks in a pipe")

    tell = seek  # type: ignore[assignment]


def piped(data: bytes, step: int = 37) -> Reader:
    return open_bundle(Pipe(data, step), seekable=False)  # type: ignore[arg-type]


def filed(data: bytes) -> Reader:
    return open_bundle(io.BytesIO(data))


def delivered(reader: Reader, wanted: Iterable[int], *, salvage: bool = False) -> dict[int, bytes | BundlerError]:
    """What the reader gives, by content; checks that chunks come whole and in order."""
    found: dict[int, bytes | BundlerError] = {}
    parts: list[bytes] = []
    under_way: int | None = None
    for chunk in reader.deliver(list(wanted), salvage=salvage):
        assert under_way in (None, chunk.content) and chunk.content not in found
        assert not found or chunk.content > max(found)
        assert chunk.data or chunk.last, "no empty chunk but the last"
        assert chunk.error is None or (salvage and chunk.last and not chunk.data)
        parts.append(bytes(chunk.data))
        under_way = chunk.content
        if chunk.last:
            found[chunk.content] = chunk.error if chunk.error is not None else b"".join(parts)
            parts.clear()
            under_way = None
    assert under_way is None
    return found


block_sizes = st.sampled_from([5, 16, 64, 1 << 20])


@given(tree=trees(), block_size=block_sizes, chunk=st.sampled_from([1, 5, 1 << 20]), level=st.sampled_from([1, 3, 19]))
def test_what_is_written_is_read(tree: Tree, block_size: int, chunk: int, level: int) -> None:
    data, report = written(tree, chunk=chunk, block_size=block_size, level=level)
    everything = dict(enumerate(tree.contents))
    for reader in (filed(data), piped(data)):
        assert reader.index == report.index
        assert replace(reader.index, contents=(), frames=()) == tree.index
        assert [content._replace(foreign=0) for content in reader.index.contents] == list(tree.rows)
        assert (reader.content_digest, reader.bundle_size) == (report.content_digest, report.size)
        assert delivered(reader, everything) == everything
        reader.finish()
    assert sum(frame.raw_size for frame in report.index.frames) == sum(
        len(tree.own(content, row)) for content, row in zip(tree.contents, tree.rows, strict=True)
    )
    assert all(frame.raw_size == block_size for frame in report.index.frames[:-1])


@given(tree=trees(), block_size=block_sizes, picked=st.sets(st.integers(0, 10)), step=st.sampled_from([1, 37, 1 << 20]))
def test_a_part_is_the_same_as_in_the_whole(tree: Tree, block_size: int, picked: set[int], step: int) -> None:
    data, _ = written(tree, block_size=block_size)
    picked = {number for number in picked if number < len(tree.contents)}
    expected = {number: tree.contents[number] for number in sorted(picked)}
    reader = filed(data)
    assert delivered(reader, picked) == expected == delivered(piped(data, step), picked)
    for number in sorted(picked, reverse=True):
        assert reader.read(number) == tree.contents[number]
        assert reader.is_content(number, tree.contents[number])
        assert not reader.is_content(number, tree.contents[number] + b"x") and not reader.is_content(number, None)


@given(tree=trees(), block_size=block_sizes, picked=st.sets(st.integers(0, 10)))
def test_the_frames_of_contents_are_those_that_are_read_for_them(tree: Tree, block_size: int, picked: set[int]) -> None:
    data, _ = written(tree, block_size=block_size)
    picked = {number for number in picked if number < len(tree.contents)}
    reader, asked = filed(data), set()
    read_frame = reader._stored_frame

    def spy(number: int) -> bytes:
        asked.add(number)
        return read_frame(number)

    reader._stored_frame = spy  # type: ignore[method-assign]
    frames = reader.frames_of(picked)
    assert not asked
    delivered(reader, picked)
    assert asked == frames
    reader.check_frames(frames)
    reader.check_frames()
    assert asked == set(range(len(reader.index.frames)))


@given(tree=trees(), one=block_sizes, other=block_sizes, level=st.sampled_from([1, 9]))
def test_the_content_digest_is_of_what_is_restored_and_of_nothing_else(
    tree: Tree, one: int, other: int, level: int
) -> None:
    _, report = written(tree, block_size=one)
    elsewhere = replace(
        tree.index,
        roots=tuple(replace(root, path="/elsewhere") for root in tree.index.roots),
        facts={"os": "darwin", "more": [1, 2]},
        skipped=(),
    )
    _, again = written(tree, block_size=other, level=level, index=elsewhere)
    assert again.content_digest == report.content_digest
    changes = [
        lambda entry: entry._replace(path=entry.path + "x", unit=Unit.KERNEL),
        lambda entry: entry._replace(target=Target("cuda", "80", 32)),
        lambda entry: entry._replace(target=Target("cuda", "80", 64)),
        lambda entry: entry._replace(artifacts=entry.artifacts[:-1]),
        lambda entry: entry._replace(artifacts=(entry.artifacts[0]._replace(name="k000x"), *entry.artifacts[1:])),
    ]
    digests = {report.content_digest}
    if tree.index.entries:
        # The kernel has every content; without one file of it, or with another name, all are still used.
        *others, kernel = tree.index.entries
        for change in changes if len(kernel.artifacts) > 1 else changes[:3]:
            digests.add(written(tree, index=replace(tree.index, entries=(*others, change(kernel))))[1].content_digest)
        assert len(digests) == 1 + len(changes if len(kernel.artifacts) > 1 else changes[:3])
    digests.add(written(tree, index=replace(tree.index, profile=Profile.RUNTIME))[1].content_digest)
    assert len(digests) > 1


@given(tree=trees(), block_size=block_sizes, chunks=st.tuples(*(st.sampled_from([1, 3, 50, 1 << 20]),) * 2))
def test_the_same_is_written_to_the_same_bytes(tree: Tree, block_size: int, chunks: tuple[int, int]) -> None:
    one, other = (written(tree, chunk=chunk, block_size=block_size)[0] for chunk in chunks)
    assert one == other


# --- damage ----------------------------------------------------------------------------------------------------------


def _same_or_refused(damaged: bytes, tree: Tree, index: Index) -> None:
    """Read in every way: an error of ours, or what was packed."""
    everything = dict(enumerate(tree.contents))
    for opened in (filed, piped):
        try:
            reader = opened(damaged)
        except BundlerError as error:
            assert str(error)
            continue
        assert reader.index == index
        try:
            assert delivered(reader, everything) == everything
            reader.finish()
        except BundlerError as error:
            assert str(error)
        for number, data in delivered(opened(damaged), everything, salvage=True).items():
            assert isinstance(data, BundlerError) or data == tree.contents[number]


@given(
    tree=trees(), block_size=block_sizes, places=st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=3)
)
def test_changed_bytes_give_an_error_or_what_was_packed(
    tree: Tree, block_size: int, places: list[tuple[int, int]]
) -> None:
    data, report = written(tree, block_size=block_size)
    damaged = bytearray(data)
    for place, change in places:
        damaged[place % len(data)] ^= change
    _same_or_refused(bytes(damaged), tree, report.index)


@given(tree=trees(), block_size=block_sizes, cut=st.integers(0), put=st.binary(max_size=4), gap=st.integers(0, 9))
def test_bytes_cut_out_or_put_in_give_an_error_or_what_was_packed(
    tree: Tree, block_size: int, cut: int, put: bytes, gap: int
) -> None:
    data, report = written(tree, block_size=block_size)
    at = cut % len(data)
    _same_or_refused(data[:at] + put + data[at + gap :], tree, report.index)


SMALL = tree_of([b"[ROOT]/x", b"", b"abc" * 9, b"--" + b"abc" * 9 + b"!"], {3: ((2, 2),)})


def test_every_flipped_bit_of_a_small_bundle_is_found() -> None:
    # Not "an error or the same": frames have a digest as stored, so nothing can change unseen.
    data, report = written(SMALL, block_size=10)
    assert len(report.index.frames) == 4
    for at, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        with pytest.raises(BundlerError):
            reader = filed(bytes(damaged))
            reader.check_frames()


def test_every_cut_of_a_small_bundle_is_found() -> None:
    data, report = written(SMALL, block_size=10)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            filed(data[:size])
        with pytest.raises(FormatError):
            reader = piped(data[:size])
            delivered(reader, range(len(SMALL.contents)))
            reader.finish()
        _same_or_refused(data[:size], SMALL, report.index)


def test_nothing_but_our_errors_comes_of_any_bytes() -> None:
    @given(data=st.binary(max_size=200), magic=st.booleans(), forged=st.booleans())
    def law(data: bytes, magic: bool, forged: bool) -> None:
        if forged:
            data = make.forge(data)
        elif magic:
            data = make.MAGIC + b"\1\0\0\0\0\0\0\0" + data
        for opened in (filed, piped):
            with pytest.raises(BundlerError):
                opened(data)

    law()


@given(value=st.recursive(
    st.none() | st.booleans() | st.integers(-3, 200) | st.text(max_size=3) | st.binary(max_size=3) | st.just(bytes(32)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
), part=st.sampled_from(sorted(make.parts())), place=st.integers(0, 9))  # fmt: skip
def test_any_value_in_any_part_of_an_index_is_read_or_refused(value: Any, part: str, place: int) -> None:
    index, payload = make.index_of([make.single("a", b"[ROOT]", make.FILE, [1, 1, 0]), make.kernel("K", target=0)])
    if isinstance(index[part], list) and index[part] and place < 5:
        row = index[part][0]
        if isinstance(row, list) and row:
            row[place % len(row)] = value
        else:
            index[part][0] = value
    elif part == "contents" and place < 8:
        index[part][sorted(index[part])[place % 4]] = value
    else:
        index[part] = value
    data = make.forge(index, payload)
    for opened in (filed, piped):
        try:
            reader = opened(data)
            delivered(reader, range(len(reader.index.contents)), salvage=True)
        except BundlerError as error:
            assert str(error)
        else:
            # One index, one byte string: nothing that is read could have been spelled otherwise.
            assert _index.encode_index(reader.index) == make.spelled(index)


# --- salvage ---------------------------------------------------------------------------------------------------------


@given(tree=trees(), block_size=block_sizes, broken=st.sets(st.integers(0, 20)))
def test_salvage_gives_all_that_no_damaged_frame_holds(tree: Tree, block_size: int, broken: set[int]) -> None:
    data, report = written(tree, block_size=block_size)
    frames = report.index.frames
    broken = {number for number in broken if number < len(frames)}
    damaged, at = bytearray(data), filed(data).header.payload_offset
    for number, frame in enumerate(frames):
        if number in broken:
            damaged[at + frame.stored_size - 1] ^= 1
        at += frame.stored_size
    for reader in (filed(bytes(damaged)), piped(bytes(damaged))):
        found = delivered(reader, range(len(tree.contents)), salvage=True)
        for number, content in enumerate(tree.contents):
            spoilt = reader.frames_of([number]) & broken
            outcome = found[number]
            if not spoilt:
                assert outcome == content
            else:
                assert isinstance(outcome, (DigestMismatchError, FormatError))
        reader.finish()
    if broken:
        with pytest.raises(BundlerError):
            delivered(filed(bytes(damaged)), range(len(tree.contents)))


def test_a_source_that_is_damaged_spoils_what_copies_it_and_nothing_else() -> None:
    sources = [b"a" * 50, b"b" * 50, b"c" * 50]
    tree = tree_of([*sources, b"<" + sources[0] + b">", b"(" + sources[2] + b")"], {3: ((1, 0),), 4: ((1, 2),)})
    index = tree.index
    rows = list(tree.rows)
    rows[0] = rows[0]._replace(digest=bytes(32))  # the frame is whole, the content is not what the index says
    out = io.BytesIO()
    lying = Tree(index, tree.contents, tuple(rows))
    write(out, index, lying.sources())
    for reader in (filed(out.getvalue()), piped(out.getvalue())):
        found = delivered(reader, range(5), salvage=True)
        assert isinstance(found[0], DigestMismatchError)
        assert isinstance(found[3], FormatError) and "content 0, which others copy, is damaged" in str(found[3])
        assert (found[1], found[2], found[4]) == (sources[1], sources[2], tree.contents[4])
    # Sources are read for those that copy them, and not delivered; what is wrong with them is said by their users.
    found = delivered(filed(out.getvalue()), [3, 4], salvage=True)
    assert isinstance(found[3], FormatError) and found[4] == tree.contents[4] and set(found) == {3, 4}


def test_a_damaged_frame_is_read_once_however_many_contents_it_holds() -> None:
    # The loss: time by the square of the contents; and from a pipe everything behind the first damaged frame.
    tree = tree_of([bytes([number]) * 3 for number in range(60)])
    data = bytearray(written(tree, block_size=90)[0])
    reader = filed(bytes(data))
    assert len(reader.index.frames) == 2
    data[reader.header.payload_offset] ^= 1
    for reader in (filed(bytes(data)), piped(bytes(data))):
        reads = 0
        read_frame = reader._stored_frame

        def spy(number: int, read_frame: Any = read_frame) -> bytes:
            nonlocal reads
            reads += 1
            frame: bytes = read_frame(number)
            return frame

        reader._stored_frame = spy  # type: ignore[method-assign]
        found = delivered(reader, range(60), salvage=True)
        assert [isinstance(found[number], DigestMismatchError) for number in range(60)] == [True] * 30 + [False] * 30
        assert reads == 2
        errors = [error for error in found.values() if isinstance(error, BundlerError)]
        assert len({id(error) for error in errors}) == 30 and len({str(error) for error in errors}) == 1


def test_a_bundle_that_is_cut_off_in_a_pipe_gives_what_came_before() -> None:
    tree = tree_of([bytes([number]) * 30 for number in range(6)])
    data, report = written(tree, block_size=60)
    cut = data[: -report.index.frames[-1].stored_size - 1]
    found = delivered(piped(cut), range(6), salvage=True)
    assert [found[number] for number in (0, 1)] == list(tree.contents[:2])
    assert all(isinstance(found[number], TruncatedError) for number in range(2, 6))


# --- memory and time -------------------------------------------------------------------------------------------------


def _peak(work: Any) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("copies", [False, True])
def test_a_content_over_several_blocks_is_read_in_the_memory_of_one(copies: bool) -> None:
    """FORMAT.md promises one block, one frame and what is copied; with copies it once took two blocks more."""
    block = 4 << 20
    source, rest = bytes(1000), bytes(3 * block)
    large = source + rest
    tree = tree_of([source, large], {1: ((0, 0),)} if copies else None)
    data, _ = written(tree, block_size=block)

    def work() -> None:
        for _ in filed(data).deliver([1]):
            pass

    assert _peak(work) < 2.6 * block


BOMBS = {name: data for name, data in make.bombs().items() if "64 MiB" in name or "window" in name or "EiB" in name}


@pytest.mark.parametrize("case", BOMBS)
def test_a_bomb_is_refused_by_what_it_declares(case: str) -> None:
    def work() -> None:
        for opened in (filed, piped):
            with pytest.raises(BundlerError):
                reader = opened(BOMBS[case])
                delivered(reader, range(len(reader.index.contents)))

    assert _peak(work) < 4 << 20


def test_a_pipe_of_endless_bytes_is_refused_by_what_it_declares() -> None:
    class Endless:
        def __init__(self, head: bytes) -> None:
            self.head = io.BytesIO(head)
            self.given = 0

        def read(self, size: int) -> bytes:
            data = self.head.read(size) or bytes(size)
            self.given += len(data)
            assert self.given < 1 << 20, "read on for ever"
            return data

    index, _ = make.index_of([make.single("a", b"x")])
    index["frames"] = [[1 << 40, 1, bytes(32)]]
    head = make.forge(index, payload_size=1 << 40)
    with pytest.raises(FormatError, match="bytes of a frame as stored"):
        open_bundle(Endless(head), seekable=False)  # type: ignore[arg-type]


def test_reading_holds_a_block_and_a_frame_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "_SPOOL_SIZE", 1 << 10)  # sources wait in a file
    block = 256 << 10
    noise = [hashlib.shake_256(bytes([number])).digest(block + 17) for number in range(20)]
    tree = tree_of([*noise, noise[3] + noise[7]], {20: ((0, 3), (0, 7))})
    data, _ = written(tree, block_size=block, level=1)

    def work() -> None:
        for opened in (filed(data), piped(data, 1 << 16)):
            for chunk in opened.deliver(range(21)):
                assert len(chunk.data) <= v1._COPY_SIZE

    # Two blocks at most (the one that is read, and the view of the last one), a stored frame twice while it is joined.
    assert _peak(work) < 8 * block


@pytest.mark.parametrize("spool", [0, 10, 1 << 20])
def test_sources_are_kept_in_memory_or_in_a_file_all_the_same(spool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "_SPOOL_SIZE", spool)
    monkeypatch.setattr(v1, "_COPY_SIZE", 7)
    parts = [b"a" * 33, b"b" * 21]
    whole = b"-".join([parts[0], parts[1], parts[0]])
    tree = tree_of([*parts, whole], {2: ((0, 0), (1, 1), (1, 0))})
    data, _ = written(tree, block_size=5)
    assert delivered(piped(data), [2]) == {2: whole}
    assert filed(data).read(2) == whole


def test_many_frames_are_found_without_adding_up_all_before_them() -> None:
    tree = tree_of([bytes(range(256)) * 8])
    data, report = written(tree, block_size=1, level=1)
    assert len(report.index.frames) == 2048
    reader = filed(data)
    reader.check_frames()
    assert reader.read(0) == tree.contents[0]


# --- the writer ------------------------------------------------------------------------------------------------------


def test_what_a_reader_would_refuse_is_not_written() -> None:
    """The loss: a bundle that nobody can read, found out on another host."""
    cases: dict[str, tuple[Tree, Index]] = {
        "fewer bytes than said": (replace(SMALL, rows=(SMALL.rows[0]._replace(size=9), *SMALL.rows[1:])), SMALL.index),
        "entries out of order": (SMALL, replace(SMALL.index, entries=SMALL.index.entries[::-1])),
        "a content of no file": (SMALL, replace(SMALL.index, entries=SMALL.index.entries[:1])),
        "a bad path": (
            tree_of([]),
            replace(SMALL.index, entries=(Entry("a", "../x", Unit.FILE, (Artifact("x", 0),)),)),
        ),
    }
    for case, (tree, index) in cases.items():
        out = io.BytesIO()
        with pytest.raises((FormatError, BundlerError)):
            write(out, index, tree.sources())
        assert out.getvalue() == b"", case


def test_a_source_that_fails_leaves_nothing_written() -> None:
    def broken() -> Iterator[bytes]:
        yield b"abc"
        raise OSError(errno.EIO, "the disk is gone")

    out = io.BytesIO()
    content = Content(hashlib.sha256(b"abcd").digest(), 4)
    with pytest.raises(OSError, match="the disk is gone"):
        write(out, SMALL.index, [Source(content, broken)])
    assert out.getvalue() == b""


def test_a_block_that_cannot_be_compressed_leaves_nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, level: int) -> bytes:
        raise MemoryError("no room for tables")

    monkeypatch.setattr(_frame, "compress", broken)
    out = io.BytesIO()
    with pytest.raises(MemoryError, match="no room for tables"):
        write(out, SMALL.index, SMALL.sources())
    assert out.getvalue() == b""


def test_progress_is_told_each_content_and_the_index_has_the_last_word() -> None:
    told: list[int] = []
    data, _ = written(
        SMALL, progress=told.append, annotate=lambda index: replace(index, facts={"contents": len(index.contents)})
    )
    assert told == [len(content) for content in SMALL.contents]
    assert filed(data).index.facts == {"contents": 4}


@given(tree=trees(), block_size=block_sizes, chunk=st.sampled_from([1, 5, 1 << 20]))
def test_who_looks_is_shown_the_own_bytes_of_each_content_in_order(tree: Tree, block_size: int, chunk: int) -> None:
    seen = [bytearray() for _ in tree.contents]
    sources = [
        source._replace(look=found.extend if number % 2 else None)
        for number, (source, found) in enumerate(zip(tree.sources(chunk), seen))
    ]
    out = io.BytesIO()
    write(out, tree.index, sources, block_size=block_size)
    assert out.getvalue() == written(tree, block_size=block_size)[0]
    owns = [tree.own(data, row) for data, row in zip(tree.contents, tree.rows, strict=True)]
    assert seen == [own if number % 2 else b"" for number, own in enumerate(owns)]


def test_a_bundle_may_stand_behind_other_bytes_of_a_file() -> None:
    data, _ = written(SMALL, block_size=10)
    file = io.BytesIO(b"something else" + data)
    file.seek(len(b"something else"))
    reader = open_bundle(file, name="it")
    assert [reader.read(number) for number in (3, 0, 2, 1)] == [SMALL.contents[number] for number in (3, 0, 2, 1)]
    reader.check_frames()


def test_a_spool_directory_is_used_and_left_empty(tmp_path: Path) -> None:
    out = io.BytesIO()
    write(out, SMALL.index, SMALL.sources(), spool_directory=str(tmp_path))
    assert out.getvalue() == written(SMALL)[0] and not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_read_is_said_to_be_so() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= 72:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    with pytest.raises(LocalIOError) as caught:
        open_bundle(Broken(written(SMALL)[0]), name="/mnt/it.tbundle")
    assert (caught.value.errno, caught.value.path) == (errno.EIO, "/mnt/it.tbundle")


@pytest.mark.parametrize("refused", [False, True])
def test_a_call_in_another_thread_is_made_in_this_one_where_none_can_be_started(
    refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss: a pack that fails where a limit of threads is reached, or while the interpreter ends."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if refused:
        monkeypatch.setattr(threading.Thread, "start", start)
    here = threading.get_ident()
    assert (Task(threading.get_ident).result() == here) is refused
    with pytest.raises(ZeroDivisionError):
        Task(divmod, 1, 0).result()
