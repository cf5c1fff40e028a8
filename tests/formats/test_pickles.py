"""Laws of the pickle walker; ``pickletools.genops`` is the judge of what a pickle is, and pickle of what it says."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bundler.errors import FormatError
from bundler.formats import pickles
from bundler.formats.pickles import Walk, compile_nanoseconds, walk

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
LENGTHS = {-2: 1, -3: 4, -4: 4, -5: 8}  # pickletools' "length comes first" -> bytes of that length


def judged(data: bytes, min_size: int) -> Walk:
    """What ``walk`` should return, from the positions that genops yields: an argument ends where the next begins."""
    found = [(opcode, at) for opcode, _, at in pickletools.genops(data)]
    ends = [at for _, at in found[1:]] + [found[-1][1] + 1]
    long = []
    for (opcode, at), end in zip(found, ends, strict=True):
        if opcode.arg is not None and opcode.arg.n in LENGTHS and opcode.name not in ("LONG1", "LONG4"):
            start = at + 1 + LENGTHS[opcode.arg.n]
            if end - start >= min_size:
                long.append((start, end - start))
    return Walk(ends[-1], long)


class Plain:
    """A class that pickle refers to by name, with state."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70).map(lambda number: number**9)  # some need LONG4
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.binary(max_size=100).map(bytearray)
    | st.sampled_from([Plain, len, pickle.PickleError])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=100), inner, max_size=5)
        | st.frozensets(st.text(max_size=80), max_size=5)
        | st.dictionaries(st.sampled_from("abc"), inner).map(lambda fields: Plain(**fields))
        | inner.map(lambda value: [value, value])  # a reference to what was written before
    ),
    max_leaves=12,
)


@given(value=values, protocol=st.sampled_from(PROTOCOLS), min_size=st.integers(0, 90))
def test_walk_agrees_with_genops_on_pickles_of_every_protocol(value: Any, protocol: int, min_size: int) -> None:
    data = pickle.dumps(value, protocol)
    assert walk(data, min_size=min_size) == judged(data, min_size)


@given(value=values, protocol=st.sampled_from(PROTOCOLS))
def test_walk_agrees_with_genops_on_what_the_python_pickler_writes(value: Any, protocol: int) -> None:
    # Another memo scheme and other frames than those of the C one.
    file = io.BytesIO()
    pickle._Pickler(file, protocol).dump(value)
    assert walk(file.getvalue(), min_size=1) == judged(file.getvalue(), 1)


ARGUMENTS = {
    "uint1": b"\x07",
    "uint2": b"\x07\x01",
    "int4": b"\xff\xff\xff\xff",
    "uint4": b"\x07\0\0\0",
    "uint8": b"\x07" + bytes(7),
    "float8": b"\x07" + bytes(7),
    "decimalnl_short": b"12\n",
    "decimalnl_long": b"12L\n",
    "floatnl": b"1.5\n",
    "stringnl": b"'text'\n",
    "stringnl_noescape": b"text\n",
    "stringnl_noescape_pair": b"module\nname\n",
    "unicodestringnl": b"text\n",
    "long1": b"\x02ab",
    "long4": b"\x02\0\0\0ab",
    "string1": b"\x04text",
    "string4": b"\x04\0\0\0text",
    "bytes1": b"\x04text",
    "bytes4": b"\x04\0\0\0text",
    "bytes8": b"\x04" + bytes(7) + b"text",
    "bytearray8": b"\x04" + bytes(7) + b"text",
    "unicodestring1": b"\x04text",
    "unicodestring4": b"\x04\0\0\0text",
    "unicodestring8": b"\x04" + bytes(7) + b"text",
}


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: str(opcode.name))
def test_every_opcode_of_this_python_is_stepped_over(opcode: pickletools.OpcodeInfo) -> None:
    argument = b"" if opcode.arg is None else ARGUMENTS[opcode.arg.name]
    whole = opcode.code.encode("latin-1") + argument
    data = whole if opcode.name == "STOP" else whole + b"N."
    assert walk(data, min_size=1) == judged(data, 1)
    for cut in range(len(data) - 1, 0, -1):
        with pytest.raises(FormatError):
            walk(data[:cut])


MALFORMED = {
    "nothing": (b"", 0, "cut short"),
    "no STOP": (b"\x80\x04N", 3, "cut short"),
    "bytes behind STOP": (b"N.N", 2, "1 bytes follow"),
    "no opcode": (b"\x80\x04\xff.", 2, "0xff is no opcode"),
    "NUL": (b"\x80\x04\x00.", 2, "0x00 is no opcode"),
    "a fixed argument past the end": (b"\x80\x04J\x01", 4, "cut short"),
    "a length past the end": (b"\x80\x04X\x01\0", 5, "cut short"),
    "a short string past the end": (b"\x80\x04\x8c\x09abc.", 8, "cut short"),
    "a string past the end": (b"\x80\x04X\x09\0\0\0abc.", 2, "0x58 has 9 bytes, 4 are there"),
    "a string of 2**64 - 1 bytes": (b"\x80\x04\x8e" + b"\xff" * 8 + b".", 2, "0x8e has 18446744073709551615 bytes"),
    "a long of -1 bytes": (b"\x80\x02\x8b\xff\xff\xff\xff.", 2, "0x8b has -1 bytes"),
    "a string of -2**31 bytes": (b"T\0\0\0\x80.", 0, "0x54 has -2147483648 bytes"),
    "a line without an end": (b"I12.", 0, "no end of line"),
    "one line of two": (b"cmodule\nname.", 0, "no end of line"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_is_refused_with_its_place(name: str) -> None:
    data, offset, what = MALFORMED[name]
    with pytest.raises(FormatError) as caught:
        walk(data)
    assert what in caught.value.what
    assert caught.value.offset == offset


@given(value=values, protocol=st.sampled_from(PROTOCOLS), draw=st.data())
def test_a_damaged_pickle_is_walked_or_refused_as_genops_does(value: Any, protocol: int, draw: st.DataObject) -> None:
    data = bytearray(pickle.dumps(value, protocol))
    for at in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=4)):
        data[at] ^= draw.draw(st.integers(1, 255))
    compare(bytes(data[: draw.draw(st.just(len(data)) | st.integers(0, len(data)))]))


@given(st.binary(max_size=60))
def test_any_bytes_are_walked_or_refused(data: bytes) -> None:
    compare(data)


# What genops says where the opcodes themselves do not fit the bytes.
STRUCTURAL = re.compile("unknown$|exhausted|^expected|not enough data|byte count|no newline")


def compare(data: bytes) -> None:
    """Whatever genops reads to its last byte is walked the same way; whatever it does not raises FormatError or has
    arguments that genops looks into (digits, quotes, UTF-8) and ``walk`` does not."""
    try:
        wanted = judged(data, 2)
    except (ValueError, OverflowError) as error:
        wanted, refused = None, str(error)
    assert compile_nanoseconds(data) >= 0
    try:
        found = walk(data, min_size=2)
    except FormatError as error:
        assert 0 <= error.offset <= len(data)
        assert wanted is None or wanted.end != len(data)
    else:
        assert found == wanted or (wanted is None and not STRUCTURAL.search(refused))


@given(value=values, protocol=st.sampled_from(PROTOCOLS))
def test_every_cut_of_a_pickle_is_refused(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    for cut in range(0, len(data), max(1, len(data) // 30)):
        # A cut can only be a pickle of its own where it ends with STOP, and STOP comes once.
        with pytest.raises(FormatError):
            walk(data[:cut])


def test_long_strings_are_listed_with_their_bytes() -> None:
    parts = [b"a" * 64, b"b" * 300, b"c" * 70_000, bytearray(b"d" * 80), "e" * 64, "\N{SNOWMAN}" * 30, "f" * 70_000]
    short = [b"g" * 63, "h" * 63, b"", ""]
    data = pickle.dumps(parts + short, 5)
    found = [data[start : start + length] for start, length in walk(data).long]
    assert found == [part.encode() if isinstance(part, str) else bytes(part) for part in parts]


def test_a_view_into_a_larger_buffer_is_read_like_bytes() -> None:
    data = pickle.dumps([b"a" * 100, Plain(_time_taken_ns=5)], 5)
    view = memoryview(b"before" + data + b"after")[6:-5]
    assert walk(view) == walk(data)
    assert compile_nanoseconds(view) == 5


def test_walk_is_several_times_faster_than_genops() -> None:
    # Seven times on cache entries of torch; the bound is for a busy machine. What it guards: a walk on every repair.
    data = pickle.dumps([{"name": f"buf{i}", "shape": (i, 1), "dtype": "f32", "last": None} for i in range(5000)], 5)

    def best(read: Any) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            read()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(lambda: walk(data)) * 2.5 < best(lambda: list(pickletools.genops(data)))


# --- compile times -------------------------------------------------------------------------------------------------

nanoseconds = st.integers(0, pickles.MAX_NANOSECONDS) | st.sampled_from(
    (0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31)
)


@given(time_ns=nanoseconds, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL), before=values, after=values)
def test_the_time_of_an_fx_graph_is_read_back(time_ns: int, protocol: int, before: Any, after: Any) -> None:
    entry = Plain(before=before, _time_taken_ns=time_ns, after=after)
    for pickler in (pickle.Pickler, pickle._Pickler):
        file = io.BytesIO()
        pickler(file, protocol).dump(entry)
        assert compile_nanoseconds(file.getvalue()) == time_ns


@given(forward=nanoseconds, backward=nanoseconds, graph=nanoseconds, protocol=st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_the_times_of_an_autograd_entry_are_added_and_those_of_graphs_inside_are_not(
    forward: int, backward: int, graph: int, protocol: int
) -> None:
    # Torch's figure for the forward contains that of the graph, so adding all three would count it twice.
    entry = Plain(
        compiled_fw=Plain(_time_taken_ns=graph), forward_time_taken_ns=forward, backward_time_taken_ns=backward
    )
    assert compile_nanoseconds(pickle.dumps(entry, protocol)) == forward + backward


@pytest.mark.parametrize(
    "entry",
    [
        Plain(_time_taken_ns=None),
        Plain(_time_taken_ns=1.5),
        Plain(_time_taken_ns="12"),
        Plain(_time_taken_ns=-1),
        Plain(_time_taken_ns=pickles.MAX_NANOSECONDS + 1),
        Plain(_time_taken_ns=2**64),
        Plain(precompile_time_taken_ns=3, autotune_time_taken_ns=4, my_time_taken_ns=5, _time_taken_ns_=6),
        Plain(text="_time_taken_ns", number=7),
        ["_time_taken_ns", "other", 8],
        b"_time_taken_nsK\x05",
        Plain(),
    ],
)
@pytest.mark.parametrize("protocol", range(1, pickle.HIGHEST_PROTOCOL + 1))
def test_what_is_no_time_counts_as_none(entry: Any, protocol: int) -> None:
    assert compile_nanoseconds(pickle.dumps(entry, protocol)) == 0


@given(value=values, time_ns=nanoseconds)
def test_a_cut_entry_never_raises_nor_invents_more(value: Any, time_ns: int) -> None:
    data = pickle.dumps(Plain(value=value, _time_taken_ns=time_ns), 5)
    assume(b"_time_taken_ns" in data)
    for cut in range(data.index(b"_time_taken_ns"), len(data)):
        assert compile_nanoseconds(data[:cut]) in (0, time_ns)


def test_many_figures_stay_within_64_bits() -> None:
    one = b"\x8c\x0e_time_taken_ns\x94\x8a\x07" + pickles.MAX_NANOSECONDS.to_bytes(7, "little")
    assert 0 < compile_nanoseconds(one * 5000) < 2**63


# --- entries of torch ----------------------------------------------------------------------------------------------


def entries(tree: Path, kind: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((tree / kind).rglob("*")) if path.is_file()]


@pytest.mark.slow
def test_walk_agrees_with_genops_on_cache_entries_of_torch(inductor_tree: Path) -> None:
    found = entries(inductor_tree, "fxgraph") + entries(inductor_tree, "aotautograd")
    assert len(found) >= 3, "a training step has a forward and a backward graph, and one entry that joins them"
    for data in found:
        assert walk(data) == judged(data, 64)
        assert walk(data).end == len(data), "an entry is one pickle and nothing else"


@pytest.mark.slow
def test_every_entry_of_torch_has_a_time_and_autograd_includes_its_graphs(inductor_tree: Path) -> None:
    graphs = sorted(compile_nanoseconds(data) for data in entries(inductor_tree, "fxgraph"))
    whole = [compile_nanoseconds(data) for data in entries(inductor_tree, "aotautograd")]
    assert all(time_ns > 10**6 for time_ns in graphs + whole)
    # What lets a caller add up a cache without counting twice: the sum for the graphs is part of the other.
    assert sum(graphs) <= sum(whole)
