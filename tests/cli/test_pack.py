"""``pack``: options, odd names, and a bundle on stdout."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.formats import open_bundle
from bundler.formats.limits import DEFAULT_LEVEL, MAX_LEVEL
from bundler.testing import trees


def test_the_report_counts_what_is_in_the_bundle(cli: Any, triton: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    report = cli("pack", f"triton={triton}", "-o", out, "--json").json
    files = trees.snapshot(triton)
    assert report["bundle"] == str(out)
    assert (report["entries"], report["files"]) == (3, len(files))
    assert report["bytes_in"] == sum(map(len, files.values()))
    assert report["bytes_out"] == out.stat().st_size
    assert report["content_digest"] == bundler.inspect(out)["content_digest"]


def test_a_root_without_a_kind_has_its_kind_found(cli: Any, triton: Path, inductor: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    assert cli("pack", triton, inductor, "-o", out).code == 0
    assert [root["kind"] for root in bundler.inspect(out)["roots"]] == ["inductor", "triton"]


def test_a_kind_that_looks_wrong_is_taken_with_a_warning(
    cli: Any, triton: Path, inductor: Path, tmp_path: Path
) -> None:
    """The loss: a warm cache that is restored to where nobody looks, and nothing says why."""
    out = tmp_path / "x.tbundle"
    run = cli("pack", f"triton={inductor}", "-o", out, "--json")
    assert run.code == 0 and f"is inductor={inductor} meant?" in run.err
    for root in (f"inductor={inductor}", inductor, f"generic={inductor}", f"triton={triton}", f"other:triton={triton}"):
        assert "looks like" not in cli("pack", root, "-o", out).err


def test_two_roots_of_a_kind_have_names(cli: Any, triton: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    assert cli("pack", f"triton={triton}", f"node1:triton={triton}", "-o", out).code == 0
    assert [root["name"] for root in bundler.inspect(out)["roots"]] == ["node1", "triton"]


def test_the_level_leaves_the_content_digest_alone(cli: Any, triton: Path, tmp_path: Path) -> None:
    low, high = (
        cli("pack", triton, "-o", tmp_path / f"{level}.tbundle", "--level", level, "--json").json for level in (1, 19)
    )
    assert low["content_digest"] == high["content_digest"]
    assert low["bytes_out"] > high["bytes_out"]


def test_the_default_level_is_the_documented_one(cli: Any) -> None:
    words = " ".join(cli("pack", "--help").text.split())
    assert f"zstd level, 1 to {MAX_LEVEL}; {DEFAULT_LEVEL} by default" in words


@pytest.mark.parametrize("level", [0, -1, 23])
def test_a_level_out_of_range_is_a_wrong_call(cli: Any, triton: Path, tmp_path: Path, level: int) -> None:
    assert cli("pack", triton, "-o", tmp_path / "x", "--level", level).code == 2


def test_the_runtime_profile_leaves_the_stages_out(cli: Any, triton: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    assert cli("pack", triton, "-o", out, "--profile", "runtime").code == 0
    names = {file["name"] for entry in bundler.inspect(out)["entries"] for file in entry["files"]}
    assert names == {"add.cubin", "add.hsaco", "add.json", "__grp__add.json"} | {
        "softmax.cubin",
        "softmax.json",
        "__grp__softmax.json",
    }


def test_winners_only_drops_what_autotuning_did_not_choose(cli: Any, tmp_path: Path) -> None:
    root = trees.synthetic_inductor_root(tmp_path / "inductor", kernels=1, graphs=0, helpers=False)
    source = next(path for path in root.rglob("*.py"))
    loser = trees.synthetic_kernel(root / "triton" / "0", "loser", source_file=str(source))
    run = cli("pack", f"inductor={root}", "-o", tmp_path / "x.tbundle", "--winners-only", "--json")
    assert [skipped["path"] for skipped in run.json["skipped"]] == [f"inductor/triton/0/{loser.name}"]


def test_exclude_leaves_out_what_matches(cli: Any, triton: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    patterns = ["--exclude", trees.default_key("add"), "--exclude", f"triton/{trees.default_key('softmax')}"]
    assert cli("pack", triton, "-o", out, *patterns, "--json").json["entries"] == 1


def test_what_is_not_whole_is_skipped_with_its_reason(cli: Any, triton: Path, tmp_path: Path) -> None:
    key = trees.default_key("add")
    (triton / key / "add.cubin").write_bytes(b"")
    run = cli("pack", triton, "-o", tmp_path / "x.tbundle", "--json")
    assert run.code == 0
    (skipped,) = run.json["skipped"]
    assert skipped["path"] == f"triton/{key}" and "add.cubin" in skipped["reason"]
    words = cli("pack", triton, "-o", tmp_path / "x.tbundle")
    assert f"skipped\ttriton/{key}\t" in words.text


def test_the_bundle_goes_to_stdout_and_the_words_to_stderr(cli: Any, triton: Path) -> None:
    run = cli("pack", triton, "-o", "-")
    assert run.code == 0
    assert "bundle: stdout" in run.err
    assert len(open_bundle(io.BytesIO(run.out)).index.entries) == 3


def test_the_bundle_goes_to_stdout_and_the_json_to_stderr(cli: Any, triton: Path) -> None:
    import json

    run = cli("pack", triton, "-o", "-", "--json")
    report = json.loads(run.err)
    assert report["bundle"] == "-" and report["bytes_out"] == len(run.out)


def test_a_bundle_inside_the_root_is_not_packed_again(cli: Any, triton: Path) -> None:
    out = triton / "warm [1].tbundle"
    first = cli("pack", f"triton={triton}", "-o", out, "--json").json
    second = cli("pack", f"triton={triton}", "-o", out, "--json").json
    assert first["content_digest"] == second["content_digest"]
    assert second["entries"] == 3


ODD = {
    "255 bytes": "n" * 255,
    "spaces": "  two  spaces  ",
    "quotes": 'it\'s "quoted" \\ and back',
    "percent and dollar": "%s $HOME `id`",
    "non-ASCII": "ядро-核-🚀",
    "newline": "line\nbreak",
    "escape": "\x1b[31mred",
    "a minus": "-rf",
}


@pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
def test_a_file_of_an_odd_name_travels(cli: Any, name: str, tmp_path: Path) -> None:
    root, out, there = tmp_path / "root", tmp_path / "x.tbundle", tmp_path / "there"
    root.mkdir()
    (root / name).write_bytes(b"content")
    run = cli("pack", f"generic={root}", "-o", out, "--json")
    assert (run.json["entries"], run.json["skipped"]) == (1, [])
    assert cli("unpack", out, "--into", there, "--json").json["restored"] == 1
    assert (there / name).read_bytes() == b"content"
    assert [entry["path"] for entry in cli("inspect", out, "--json").json["entries"]] == [name]


@pytest.mark.parametrize("name", ODD.values(), ids=ODD.keys())
def test_a_root_of_an_odd_name_travels(cli: Any, name: str, tmp_path: Path) -> None:
    root, out, there = tmp_path / name, tmp_path / "x.tbundle", tmp_path / f"to {name}"[:255]
    trees.synthetic_kernel(root, "add")
    assert cli("pack", f"triton={root}", "-o", out).code == 0
    run = cli("unpack", out, "--root", f"triton={there}", "--json")
    assert run.json["env"] == {"TRITON_CACHE_DIR": str(there)}
    assert cli("verify", "--root", f"triton={there}", "--json").json == {
        "ok": True,
        "entries": 1,
        "problems": [],
        "content_digest": None,
        "files_in_base": 0,
    }


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_name_that_is_not_utf8_is_skipped_and_shown_escaped(cli: Any, triton: Path, tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(triton) + b"/\xff\xfe"))).write_bytes(b"x")
    run = cli("pack", triton, "-o", tmp_path / "x.tbundle", "--json")
    assert run.code == 0 and len(run.json["skipped"]) == 1
    assert "\\xff" in cli("pack", triton, "-o", tmp_path / "x.tbundle").text.replace("\\udcff", "\\xff")
