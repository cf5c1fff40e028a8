"""Commands as calls: what they return and print; trees, bundles, and bundles that are wrong in a known way."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

import bundler
from bundler.cli import main
from bundler.cli._fields import conforms
from bundler.formats import _frame, _index
from bundler.formats._header import HEADER_SIZE, Header
from bundler.model import Index
from bundler.testing import trees

PACKAGE = Path(bundler.__file__).parent.parent


@dataclass(frozen=True)
class Run:
    """How a command ended, and what it printed."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; nothing else may be there."""
        loaded: dict[str, Any] = json.loads(self.out)
        assert self.out.count(b"\n") == 1
        return loaded


class Cli(Protocol):
    def __call__(self, *argv: object) -> Run: ...


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Run a command in this process."""

    def run(*argv: object) -> Run:
        capsysbinary.readouterr()
        code = main([os.fspath(each) if isinstance(each, Path) else str(each) for each in argv])
        captured = capsysbinary.readouterr()
        assert "Traceback" not in captured.err.decode()
        return Run(code, captured.out, captured.err.decode())

    return run


@pytest.fixture
def process_environment(home: Path) -> dict[str, str]:
    """What a process of its own is started with."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE)}


class Process(Protocol):
    def __call__(self, *argv: object, **options: Any) -> Run: ...


@pytest.fixture
def process(process_environment: dict[str, str]) -> Process:
    """Run ``python -m bundler`` in a process of its own."""

    def run(*argv: object, **options: Any) -> Run:
        options.setdefault("env", process_environment)
        command = [sys.executable, "-m", "bundler", *map(str, argv)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=100, **options)
        return Run(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def conform() -> Callable[[Mapping[str, Any], Mapping[str, Any]], None]:
    """``conform(json, fields)``: each documented field is there, in its type, and no other."""

    def check(report: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
        assert report.keys() == fields.keys()
        wrong = [name for name, field in fields.items() if not conforms(report[name], field.shape)]
        assert not wrong, {name: report[name] for name in wrong}

    return check


# --- trees and bundles ---------------------------------------------------------------------------------------------


@pytest.fixture
def inductor(tmp_path: Path) -> Path:
    return trees.synthetic_inductor_root(tmp_path / "inductor", kernels=2, graphs=1, helpers=False)


@pytest.fixture
def triton(tmp_path: Path) -> Path:
    """Two kernels for cuda:90, one for hip:gfx942."""
    root = tmp_path / "triton"
    trees.synthetic_kernel(root, "add")
    trees.synthetic_kernel(root, "softmax")
    trees.synthetic_kernel(root, "add", target=("hip", "gfx942", 64))
    return root


@pytest.fixture
def bundle(tmp_path: Path, triton: Path) -> Path:
    """The roots of ``triton``, packed."""
    out = tmp_path / "triton.tbundle"
    bundler.pack([f"triton={triton}"], out)
    return out


@pytest.fixture
def both(tmp_path: Path, triton: Path, inductor: Path) -> Path:
    """The roots of ``triton`` and ``inductor``, packed."""
    out = tmp_path / "both.tbundle"
    bundler.pack([f"triton={triton}", f"inductor={inductor}"], out)
    return out


@pytest.fixture
def flipped(bundle: Path, tmp_path: Path) -> Path:
    """``bundle``, with a bit of the last byte of its payload turned over."""
    out = tmp_path / "flipped.tbundle"
    data = bytearray(bundle.read_bytes())
    data[-1] ^= 1
    out.write_bytes(data)
    return out


def reindexed(source: Path, out: Path, change: Callable[[Index], Index]) -> Path:
    """Copy a bundle with another index, which no rule was asked about; digests of the index are right."""
    data = source.read_bytes()
    header = Header.decode(data[:HEADER_SIZE])
    stored = data[HEADER_SIZE : HEADER_SIZE + header.index_size]
    raw = _frame.decompress(stored, header.index_raw_size, what="index", offset=HEADER_SIZE, name="")
    raw = _index.encode_index(change(_index.decode_index(raw, offset=HEADER_SIZE, name="")))
    stored = _frame.compress(raw, 3)
    payload = data[HEADER_SIZE + header.index_size :]
    new = replace(header, index_size=len(stored), index_raw_size=len(raw), index_digest=hashlib.sha256(stored).digest())
    out.write_bytes(new.encode() + stored + payload)
    return out


@pytest.fixture
def reindex(bundle: Path, tmp_path: Path) -> Callable[[Callable[[Index], Index]], Path]:
    """``reindex(change)``: ``bundle`` with a changed index."""
    return lambda change: reindexed(bundle, tmp_path / "reindexed.tbundle", change)


@pytest.fixture
def hostile(reindex: Callable[[Callable[[Index], Index]], Path]) -> Path:
    """A bundle with an entry that leads out of its root."""

    def change(index: Index) -> Index:
        first = index.entries[0]._replace(path="../" + index.entries[0].path)
        return replace(index, entries=(first, *index.entries[1:]))

    return reindex(change)


@pytest.fixture
def misplaced(reindex: Callable[[Callable[[Index], Index]], Path]) -> Path:
    """A bundle with a placeholder that is not where the index says."""

    def change(index: Index) -> Index:
        entry = index.entries[0]
        artifacts = []
        for artifact in entry.artifacts:
            moved = artifact.relocation and artifact.relocation._replace(
                offsets=tuple(offset + 1 for offset in artifact.relocation.offsets)
            )
            artifacts.append(artifact._replace(relocation=moved))
        return replace(index, entries=(entry._replace(artifacts=tuple(artifacts)), *index.entries[1:]))

    return reindex(change)


def staging(root: Path) -> list[str]:
    """Names of ours below a directory that should not be there."""
    return [str(path) for path in root.rglob(".tb-*")] if root.exists() else []


@pytest.fixture
def leftovers() -> Callable[[Path], Sequence[str]]:
    return staging
