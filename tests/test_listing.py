"""``inspect``: everything the index says, nothing of the payload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import bundler
from bundler.errors import BundlerError
from bundler.testing.trees import synthetic_inductor_root, synthetic_kernel

FIELDS = {
    "format_version", "content_digest", "bundle_size", "content_size", "profile", "targets", "roots", "facts",
    "foreign_paths", "entries", "signed_by",
}  # fmt: skip


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    synthetic_inductor_root(tmp_path / "root")
    bundler.pack([f"inductor={tmp_path / 'root'}"], tmp_path / "it.tbundle")
    return tmp_path / "it.tbundle"


def test_every_field_of_the_contract_is_there_and_is_json(bundle: Path) -> None:
    listing = bundler.inspect(bundle)
    assert listing.keys() >= FIELDS
    assert json.loads(json.dumps(listing)) == listing
    assert listing["bundle_size"] == bundle.stat().st_size
    assert listing["targets"] == ["cuda:90"]
    assert {entry["unit"] for entry in listing["entries"]} >= {"kernel", "fxgraph", "aotautograd", "autotune", "module"}
    assert listing["content_size"] == sum(file["size"] for entry in listing["entries"] for file in entry["files"])


def test_roots_tell_where_they_lay_and_what_is_in_them(bundle: Path, tmp_path: Path) -> None:
    (root,) = bundler.inspect(bundle)["roots"]
    entries = bundler.inspect(bundle)["entries"]
    assert root["name"] == root["kind"] == "inductor" and root["path"] == str(tmp_path / "root")
    assert root["entries"] == len(entries) and root["files"] == sum(len(entry["files"]) for entry in entries)


def test_a_kernel_is_listed_by_path_key_and_name(tmp_path: Path) -> None:
    place = synthetic_kernel(tmp_path / "cache", "add_kernel")
    bundler.pack([f"triton={tmp_path / 'cache'}"], tmp_path / "it.tbundle")
    (entry,) = bundler.inspect(tmp_path / "it.tbundle")["entries"]
    assert (entry["key"], entry["name"], entry["unit"]) == (place.name, "add_kernel", "kernel")
    assert {file["name"] for file in entry["files"]} == {path.name for path in place.iterdir()}


def test_foreign_paths_are_listed_by_directory_and_the_root_itself_once(bundle: Path, tmp_path: Path) -> None:
    rows = bundler.inspect(bundle)["foreign_paths"]
    assert rows and all(row.keys() == {"entry", "file", "path"} for row in rows)
    paths = {row["path"] for row in rows}
    assert str(tmp_path / "root") in paths
    assert not [path for path in paths if path.startswith(str(tmp_path / "root") + "/")]
    # Group files follow the tree: no path in them is foreign.
    assert not [row for row in rows if row["file"].startswith("__grp__")]


def test_inspect_reads_no_further_than_the_index(bundle: Path) -> None:
    """The loss: a listing that cannot be had because one byte of 2 GB is bad."""
    whole = bundler.inspect(bundle)
    data = bytearray(bundle.read_bytes())
    data[-1] ^= 1
    damaged = bundler.inspect(bytes(data))
    assert damaged == whole


def test_a_cut_bundle_is_not_listed(bundle: Path) -> None:
    with pytest.raises(BundlerError):
        bundler.inspect(bundle.read_bytes()[:-1])
