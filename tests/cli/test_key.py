"""``key`` as a command: a line that a shell can use, from this host or from facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bundler.cli.key import FIELDS

FACTS = {
    "os": "Linux 6.8",
    "machine": "x86_64",
    "python": "3.12.4",
    "packages": {"torch": "2.11.0+cu130", "triton": "3.6.0"},
    "gpus": [{"name": "NVIDIA H200", "target": "cuda:90"}],
}
KEY = "tb1-linux-x86_64-py3.12-torch2.11.0_cu130-triton3.6.0-cuda13.0-cuda90"


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(FACTS))
    return path


def test_fixed_facts_make_a_fixed_key(cli: Any, conform: Any, facts: Path, tmp_path: Path) -> None:
    run = cli("key", "--facts", facts, "--salt", "abc", "--json")
    conform(run.json, FIELDS)
    key = run.json["key"].replace("+", "_")
    assert run.code == 0 and key.startswith(f"{KEY}-salt")
    assert [prefix.replace("+", "_") for prefix in run.json["prefixes"]] == [f"{KEY}-"]
    assert all(run.json["key"].startswith(prefix) for prefix in run.json["prefixes"])
    # What inspect prints holds the same facts.
    inspected = tmp_path / "inspect.json"
    inspected.write_text(json.dumps({"entries": [], "facts": FACTS}))
    assert cli("key", "--facts", inspected, "--salt", "abc", "--json").json == run.json


def test_words_are_the_key_alone(cli: Any, facts: Path) -> None:
    key = cli("key", "--facts", facts, "--json").json["key"]
    for quiet in ([], ["--quiet"]):
        run = cli("key", "--facts", facts, *quiet)
        assert (run.lines, run.err) == ([key], "")


def test_prefixes_are_lines(cli: Any, facts: Path) -> None:
    run = cli("key", "--facts", facts, "--salt", "x", "--prefixes")
    assert run.lines == cli("key", "--facts", facts, "--salt", "x", "--json").json["prefixes"]


def test_a_lock_file_and_a_salt_change_the_key_of_this_host(cli: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    plain = cli("key").lines
    (tmp_path / "uv.lock").write_text("a")
    locked = cli("key").lines
    (tmp_path / "uv.lock").write_text("b")
    assert len({*plain, *locked, *cli("key").lines, *cli("key", "--salt", "s").lines}) == 4


@pytest.mark.parametrize(("text", "code"), [(None, 12), ("{", 2), ("[]", 2), ('{"facts": 1}', 2), ("\x00", 2)])
def test_facts_that_are_none_are_refused(cli: Any, tmp_path: Path, text: str | None, code: int) -> None:
    path = tmp_path / "facts.json"
    if text is not None:
        path.write_text(text)
    run = cli("key", "--facts", path, "--json")
    assert run.code == code and str(path) in run.json["error"]["message"]
