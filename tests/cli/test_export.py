"""``triton-bundler export``: what is required, exit codes, and that nothing is written by half."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.cli.export import FIELDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a command is run under our eyes on Linux")

MAKE = (
    "import os, pathlib; from bundler.testing import trees;"
    "trees.synthetic_inductor_root(pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR']), graphs=1, helpers=False)"
)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command that leaves a graph and its kernels."""
    monkeypatch.setenv("PYTHONPATH", str(Path(bundler.__file__).parent.parent))
    return [sys.executable, "-c", MAKE]


def test_an_export_prints_what_is_documented_and_restores(
    cli: Any, make: list[str], tmp_path: Path, conform: Callable[..., None]
) -> None:
    out = tmp_path / "x.tbundle"
    argv = ["export", "-o", out, "--require", "fxgraph,aotautograd", "--require", "triton", "--quiet-seconds", 0]
    run = cli(*argv, "--json", "--", *make)
    assert run.code == 0, run
    conform(run.json, FIELDS)
    assert run.json["new_entries"] == run.json["added"] == len(bundler.inspect(out)["entries"])
    assert (run.json["restored"], run.json["used"], run.json["saved"]) == (0, 0, True)
    assert cli("unpack", out, "--into", tmp_path / "into").code == 0


def test_words_say_what_was_compiled(cli: Any, make: list[str], tmp_path: Path) -> None:
    run = cli("export", "-o", tmp_path / "x.tbundle", "--quiet-seconds", 0, "--", *make)
    assert run.code == 0 and run.out == b""
    assert "compiled: 1 aotautograd, 1 fxgraph, 4 triton" in run.err
    assert f"bundle: {tmp_path / 'x.tbundle'}" in run.err and "content digest: sha256:" in run.err


def test_what_is_required_and_missing_is_exit_6_with_the_command_s_code_beside_it(
    cli: Any, make: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "x.tbundle"
    run = cli("export", "-o", out, "--require", "fxgraph,cpp", "--quiet-seconds", 0, "--json", "--", *make)
    assert (run.code, run.json["exit_code"], run.json["error"]["type"]) == (6, 0, "RequirementError")
    assert run.json["error"]["missing"] == "cpp" and not out.exists()
    assert run.json["saved"] is False and run.json["content_digest"] is None
    words = cli("export", "-o", out, "--quiet-seconds", 0, "--", "true")
    assert words.code == 6 and "triton-bundler: error: nothing to pack" in words.err


def test_a_command_that_fails_leaves_the_old_file(cli: Any, make: list[str], tmp_path: Path) -> None:
    out = tmp_path / "x.tbundle"
    out.write_text("old")
    for script, code in (("exit 5", 5), ("kill -KILL $$", 137)):
        run = cli("export", "-o", out, "--quiet-seconds", 0, "--", "sh", "-c", script)
        assert run.code == code and "is not written" in run.err
    assert out.read_text() == "old"


def test_options_are_read_before_the_command_runs(cli: Any, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for argv in (["--require", "autograd"], ["--quiet-seconds", "-1"]):
        assert cli("export", "-o", tmp_path / "x", *argv, "--", "touch", mark).code == 2
    assert cli("export", "-o", tmp_path / "no" / "x", "--", "touch", mark).code == 12
    assert not mark.exists()
