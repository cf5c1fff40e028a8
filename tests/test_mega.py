"""``pack mega=FILE``: the bytes of ``torch.compiler.save_cache_artifacts()`` become entries of an Inductor root."""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

import bundler
from bundler.errors import BundlerError, LocalIOError


def _text(text: str) -> bytes:
    raw = base64.b64encode(text.encode())
    return len(raw).to_bytes(8, "big") + raw


def _mega(sections: Sequence[tuple[str, Sequence[tuple[str, bytes]]]]) -> bytes:
    """Written from the description of the format, not with our reader."""
    body = (1).to_bytes(8, "big")
    for kind, artifacts in sections:
        body += _text(kind) + len(artifacts).to_bytes(8, "big")
        for key, content in artifacts:
            body += _text(key) + len(content).to_bytes(8, "big") + content
    return zlib.crc32(body).to_bytes(4, "big") + body


GRAPH = pickle.dumps({"graph": b"g" * 500, "_time_taken_ns": 5_000_000_000})
KEY = "f" + "a" * 51


@pytest.fixture
def mega(tmp_path: Path) -> Path:
    (tmp_path / "cache.mega").write_bytes(
        _mega([("inductor", [(KEY, GRAPH)]), ("autotune", [("ab/" + "0" * 64 + ".best_config", b'{"XBLOCK": 8}')])])
    )
    return tmp_path / "cache.mega"


def test_a_mega_cache_becomes_an_inductor_root(mega: Path, tmp_path: Path) -> None:
    report = bundler.pack([f"mega={mega}"], tmp_path / "it.tbundle")
    assert (report.entries, report.skipped) == (2, ())
    bundler.unpack(tmp_path / "it.tbundle", [f"inductor={tmp_path / 'root'}"])
    (graph,) = (tmp_path / "root" / "fxgraph" / KEY[1:3] / KEY).iterdir()
    assert graph.read_bytes() == GRAPH
    assert (tmp_path / "root" / "ab" / ("0" * 64 + ".best_config")).read_bytes() == b'{"XBLOCK": 8}'


def test_inspect_lists_what_pack_would_take(mega: Path, tmp_path: Path) -> None:
    listing = bundler.inspect(mega)
    bundler.pack([f"mega={mega}"], tmp_path / "it.tbundle")
    packed = bundler.inspect(tmp_path / "it.tbundle")
    assert listing["format_version"] == "mega"
    assert [(e["unit"], e["path"], e["files"]) for e in listing["entries"]] == [
        (e["unit"], e["path"], e["files"]) for e in sorted(packed["entries"], key=lambda e: e["unit"], reverse=True)
    ]
    assert bundler.inspect(mega.read_bytes()) == listing


def test_a_damaged_entry_of_a_mega_cache_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(_mega([("inductor", [(KEY, GRAPH[:-5]), ("f" + "b" * 51, GRAPH)])]))
    report = bundler.pack([f"mega={tmp_path / 'm'}"], tmp_path / "it.tbundle")
    assert report.entries == 1 and len(report.skipped) == 1


def test_a_key_that_leads_out_of_the_root_is_skipped(tmp_path: Path) -> None:
    content = [("precompile", [("../../evil", b"x"), ("good", b"y")]), ("inductor", [(KEY, GRAPH)])]
    (tmp_path / "m").write_bytes(_mega(content))
    report = bundler.pack([f"mega={tmp_path / 'm'}"], tmp_path / "it.tbundle")
    assert [row.path for row in report.skipped] == ["inductor/precompile:../../evil"]
    assert [row["path"] for row in bundler.inspect(tmp_path / "m")["skipped"]] == ["precompile:../../evil"]


def test_a_mega_cache_and_the_tree_it_stands_for_give_equal_entries(mega: Path, tmp_path: Path) -> None:
    bundler.pack([f"mega={mega}"], tmp_path / "a.tbundle")
    bundler.unpack(tmp_path / "a.tbundle", [f"inductor={tmp_path / 'root'}"])
    bundler.pack([f"inductor={tmp_path / 'root'}"], tmp_path / "b.tbundle")
    assert bundler.diff(tmp_path / "a.tbundle", tmp_path / "b.tbundle").same


@pytest.mark.parametrize("cut", [0, 3, 12, 40, -1])
def test_a_cut_or_absent_mega_cache_is_an_error(mega: Path, tmp_path: Path, cut: int) -> None:
    mega.write_bytes(mega.read_bytes()[:cut])
    with pytest.raises(BundlerError):
        bundler.pack([f"mega={mega}"], tmp_path / "it.tbundle")
    with pytest.raises(LocalIOError):
        bundler.pack([f"mega={tmp_path / 'absent'}"], tmp_path / "it.tbundle")
    assert not (tmp_path / "it.tbundle").exists()
