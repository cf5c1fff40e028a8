"""Short cuts that a collect inside a compile takes: each gives what the long way gives."""

from __future__ import annotations

import io
import json
import os
import tempfile
from pathlib import Path

import pytest
import zstandard

from bundler import relocate
from bundler.foreign import prefixes
from bundler.formats import _frame, open_bundle, write
from bundler.model import Index, Profile, RootRecord
from bundler.relocate import PLACEHOLDERS, Base, make_group, parse_group, restore
from bundler.testing.trees import synthetic_kernel

KEY = "K" * 52
NAMES = ["add.cubin", "add.json", 'quo"te.json', "back\\slash.ptx", "é.ttir", "with space.llir", "a_b.c-d"]


def _written(directory: str, names: list[str]) -> bytes:
    return json.dumps({"child_paths": {name: f"{directory}/{name}" for name in names}}).encode()


@pytest.mark.parametrize("names", [NAMES, NAMES[:1], []], ids=["all", "one", "none"])
@pytest.mark.parametrize("parent", ["/c", '/tmp/it\'s "here" é\\x', "", "//twice"])
def test_a_group_file_in_the_usual_spelling_is_read_as_by_the_parser(
    monkeypatch: pytest.MonkeyPatch, names: list[str], parent: str
) -> None:
    data = _written(f"{parent}/{KEY}", names)
    quick = parse_group(data, KEY)
    monkeypatch.setattr(relocate, "_usual_group", lambda *_: None)
    assert parse_group(data, KEY) == quick
    assert restore(quick.data, quick.relocation, f"{parent}/{KEY}") == data


@pytest.mark.parametrize("name", NAMES)
def test_a_made_group_file_has_its_placeholders_where_it_says(name: str) -> None:
    group = make_group([name, "x.json", name + "2"])
    mark = PLACEHOLDERS[Base.ENTRY]
    offsets = [at for at in range(len(group.data)) if group.data.startswith(mark, at)]
    assert list(group.relocation.offsets) == offsets
    assert json.loads(group.data)["child_paths"]["x.json"] == f"{mark.decode()}/x.json"


@pytest.mark.parametrize("lead", [b'"', b"'", b"\0", b"\1", b"\x8c\x0a", b"\x8c/", b"\x8c\xff"])
def test_a_foreign_path_is_found_behind_whatever_starts_a_string(lead: bytes) -> None:
    assert prefixes(b"text " + lead + b"/usr/lib//file.bc\0 more") == ("/usr/lib",)
    assert prefixes(memoryview(b"\0" * 9 + lead + b"/usr/lib/file.bc\xff" + lead + b"/opt/x/y")) == (
        "/opt/x",
        "/usr/lib",
    )


@pytest.mark.parametrize("lead", [b"", b" ", b"x", b"\x8c", b"\x8c\1x", b"=", b"//"])
def test_a_slash_behind_anything_else_is_no_path(lead: bytes) -> None:
    assert prefixes(b"text " + lead + b"/usr/lib/file.bc") == ()


def test_a_small_bundle_is_written_without_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # A full /tmp must not cost a training process its blob.
    def refused(*given: object, **named: object) -> None:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    out = io.BytesIO()
    write(out, Index(Profile.FULL, (RootRecord("triton", "triton", ""),), (), (), ()), [], level=1)
    out.seek(0)
    assert open_bundle(out).index.roots[0].name == "triton"


def test_the_quick_levels_are_one_and_the_next_takes_more_pains(tmp_path: Path) -> None:
    places = [synthetic_kernel(tmp_path, f"triton_poi_fused_add_{number}") for number in range(9)]
    data = b"".join(path.read_bytes() for place in places for path in sorted(place.iterdir()))
    frames = [_frame.compress(data, level) for level in (1, 2, 3, 4, 5)]
    assert len(set(frames[:4])) == 1 and len(frames[4]) < len(frames[3])
    for frame in frames:
        assert _frame.decompress(frame, len(data), what="it", offset=0, name="") == data


@pytest.mark.parametrize("level", [5, 9, 19])
def test_a_frame_does_not_tell_how_many_processors_a_host_has(
    level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [synthetic_kernel(tmp_path, f"triton_poi_fused_add_{number}") for number in range(40)]
    data = b"".join(path.read_bytes() for place in places for path in sorted(place.iterdir()))
    monkeypatch.setattr(_frame, "_SPLIT_FROM", len(data))
    frames = []
    for processors in (1, 2, 64):
        monkeypatch.setattr(_frame, "_processors", lambda processors=processors: processors)
        frames.append(_frame.compress(data, level))
    monkeypatch.setattr(_frame, "_SPLIT_TO", len(data) - 1)
    whole = _frame.compress(data, level)
    assert len(data) > 1 << 20 and len(set(frames)) == 1 and whole != frames[0]
    assert len(frames[0]) < 1.03 * len(whole)
    assert _frame.decompress(frames[0], len(data), what="it", offset=0, name="") == data


def test_the_highest_levels_are_one() -> None:
    data = b"".join(b"%d " % number for number in range(9000))
    assert _frame.compress(data, 22) == _frame.compress(data, 19)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux tells which processors may be used")
def test_processors_are_counted_as_far_as_this_process_may_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _frame._processors() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert _frame._processors() == os.cpu_count()


def test_the_level_of_the_payload_decides_how_hard_the_index_is_compressed(tmp_path: Path) -> None:
    roots = tuple(RootRecord(f"r{number:03}", "triton", f"/some/where/{number * 7919}") for number in range(40))
    sizes = {}
    for level in (1, 3, 19):
        out = io.BytesIO()
        write(out, Index(Profile.FULL, roots, (), (), ()), [], level=level)
        sizes[level] = len(out.getvalue())
    assert sizes[19] < sizes[3] < sizes[1]


def test_a_block_is_compressed_where_zstd_may_start_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss: a pack that fails in a container with a limit of processes."""
    data, real = bytes(range(256)) * (5 << 12), zstandard.ZstdCompressor
    before = _frame.compress(data, 9)
    assert _frame.decompress(before, len(data), what="it", offset=0, name="") == data

    def refusing(*, compression_params: zstandard.ZstdCompressionParameters) -> zstandard.ZstdCompressor:
        if compression_params.threads:
            raise zstandard.ZstdError("Allocation error : not enough memory")
        return real(compression_params=compression_params)

    monkeypatch.setattr(zstandard, "ZstdCompressor", refusing)
    alone = _frame.compress(data, 9)
    assert _frame.decompress(alone, len(data), what="it", offset=0, name="") == data
