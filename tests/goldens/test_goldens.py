"""Bundles of released versions decode for ever, to the files of their listings, and the same is written today."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bundler
from bundler.bundle import Selection
from bundler.formats import open_bundle
from bundler.reading import opened
from bundler.testing.trees import snapshot

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_goldens.py"
GOLDENS = Path(__file__).parent / "v1"
BASES = {"delta": GOLDENS / "runtime.tbundle"}  # what each delta is read together with
NAMES = sorted(path.stem for path in GOLDENS.glob("*.tbundle"))


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_goldens", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, at work on a copy of the goldens."""
    module = _script()
    copy = tmp_path / "v1"
    shutil.copytree(GOLDENS, copy)
    monkeypatch.setattr(module, "GOLDENS", copy)
    return module


def test_goldens_are_as_they_were() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    result = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_has_the_files_of_its_listing(name: str) -> None:
    # Not through the script: a listing is plain text, and this is all that reading one takes.
    head, *lines = (GOLDENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    with opened(GOLDENS / f"{name}.tbundle", base=BASES.get(name)) as reader:
        assert head == f"# content digest {reader.content_digest}"
        found = []
        for entry in reader.index.entries:
            for artifact in entry.artifacts:
                data = reader.read(artifact.content)
                path = "/".join(filter(None, (entry.root, entry.directory, artifact.name)))
                found.append(f"{path}:{len(data)}:{hashlib.sha256(data).hexdigest()}")
    assert found == lines


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_is_restored(name: str, tmp_path: Path) -> None:
    _, *lines = (GOLDENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    bundler.unpack(
        GOLDENS / f"{name}.tbundle",
        base=BASES.get(name),
        into=tmp_path / "root",
        selection=Selection(force=True),
    )
    expected = {line.rsplit(":", 2)[0]: line.rsplit(":", 1)[1] for line in lines}
    one = len({path.split("/")[0] for path in expected}) == 1
    restored = snapshot(tmp_path / "root")
    assert {f"triton/{path}" if one else path for path in restored} == set(expected)
    for path, data in restored.items():
        digest = hashlib.sha256(data).hexdigest()
        edited = "__grp__" in path or path.endswith("vllm_compile_cache.py")
        assert edited == (digest != expected[f"triton/{path}" if one else path])
        assert not edited or str(tmp_path / "root").encode() in data


def test_a_check_finds_every_kind_of_change(script: ModuleType) -> None:
    assert script.check() == []
    place: Path = script.GOLDENS
    listing = place / "runtime.txt"
    listing.write_text(listing.read_text().replace("add.json:", "add.jsom:"))
    assert script.check() == [
        "runtime: its files are not those of its listing",
        "runtime: what is written today holds other files",
    ]
    shutil.copy(GOLDENS / "runtime.txt", listing)
    shutil.copy(GOLDENS / "runtime.tbundle", place / "later-signature.tbundle")
    assert script.check() == ["later-signature: another header is written today"]
    shutil.copy(GOLDENS / "later-signature.tbundle", place / "later-signature.tbundle")
    (place / "stray").touch()
    (place / "nothing.txt").unlink()
    assert script.check() == [
        f"nothing: {place / 'nothing.tbundle'} or its listing is missing",
        f"{place / 'stray'} is not known",
    ]


def test_a_check_finds_that_the_writer_has_changed(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def other() -> object:
        index, sources, _ = script.everything()
        return index, sources, 8192

    monkeypatch.setitem(script.BUNDLES, "everything", other)
    assert [line for line in script.check() if "raw bytes are written today" in line]


def test_a_golden_that_is_there_is_not_written_again(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    place: Path = script.GOLDENS
    (place / "runtime.tbundle").write_bytes(b"released")
    (place / "nothing.tbundle").unlink()
    assert script.main([]) == 0
    assert (place / "runtime.tbundle").read_bytes() == b"released"
    with open(place / "nothing.tbundle", "rb") as file:
        assert open_bundle(file).index.entries == ()
    assert "never written again" in capsys.readouterr().out
