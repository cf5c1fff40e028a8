"""``key``: equal facts, equal string; what decides a hit is in it, and what does not is not."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from bundler.errors import LocalIOError
from bundler.keys import make_key

FACTS: dict[str, Any] = {
    "os": "Linux 6.1.0",
    "machine": "x86_64",
    "python": "3.12.3",
    "packages": {"torch": "2.11.0", "triton": "3.6.0", "nvidia-cuda-runtime": "13.0.96"},
    "gpus": [{"name": "NVIDIA H200", "target": "cuda:90"}] * 8,
    "lock": "ab" * 32,
}


def test_fixed_facts_give_a_fixed_string() -> None:
    key = make_key(facts=FACTS, salt="ops-1")
    base = "tb1-linux-x86_64-py3.12-torch2.11.0-triton3.6.0-cuda13.0-cuda90-lockabababababab-salt"
    assert key.key == base + hashlib.sha256(b"ops-1").hexdigest()[:12]
    assert key.prefixes == (
        "tb1-linux-x86_64-py3.12-torch2.11.0-triton3.6.0-cuda13.0-cuda90-lockabababababab-",
        "tb1-linux-x86_64-py3.12-torch2.11.0-triton3.6.0-cuda13.0-cuda90-",
    )
    assert make_key(facts=dict(reversed(list(FACTS.items()))), salt="ops-1") == key


@pytest.mark.parametrize(
    "change",
    [
        {"os": "Darwin 23"},
        {"machine": "aarch64"},
        {"python": "3.11.7"},
        {"packages": {**FACTS["packages"], "torch": "2.12.0"}},
        {"packages": {**FACTS["packages"], "triton": "3.7.0"}},
        {"packages": {**FACTS["packages"], "nvidia-cuda-runtime": "12.8.1"}},
        {"gpus": [{"name": "A100", "target": "cuda:80"}]},
        {"lock": "cd" * 32},
    ],
)
def test_what_decides_a_hit_is_in_the_key(change: dict[str, Any]) -> None:
    assert make_key(facts={**FACTS, **change}).key != make_key(facts=FACTS).key


@pytest.mark.parametrize(
    "change", [{"python": "3.12.9"}, {"os": "Linux 6.9"}, {"gpus": FACTS["gpus"][:1]}, {"driver": "580"}]
)
def test_what_does_not_decide_a_hit_is_not(change: dict[str, Any]) -> None:
    assert make_key(facts={**FACTS, **change}).key == make_key(facts=FACTS).key


def test_another_salt_is_another_key_of_the_same_prefix() -> None:
    first, second = make_key(facts=FACTS, salt="abc"), make_key(facts=FACTS, salt="abd")
    assert first.key != second.key and first.prefixes == second.prefixes
    assert all(first.key.startswith(prefix) for prefix in first.prefixes)
    assert list(first.prefixes) == sorted(first.prefixes, key=len, reverse=True)


def test_a_key_is_a_name_that_every_store_takes() -> None:
    odd = {
        **FACTS,
        "machine": "x/../86\n",
        "packages": {"torch": "2.1 é", "triton": "\x00"},
        "gpus": [{"target": "cuda:9/0"}],
    }
    assert re.fullmatch(r"[A-Za-z0-9._+-]+", make_key(facts=odd, salt="/").key)


def test_rocm_and_plain_machines_are_told_apart() -> None:
    rocm = {**FACTS, "packages": {"torch": "2.11.0+rocm6.4"}, "gpus": [{"target": "hip:gfx942"}]}
    assert "-rocm6.4-hipgfx942-" in make_key(facts=rocm).key
    assert "-cuda12.6-" in make_key(facts={**FACTS, "packages": {"torch": "2.9.0+cu126"}}).key
    assert make_key(facts={}).key == "tb1-unknown-unknown-py0.0-torch0-triton0-nogpu-cpu"


def test_the_lock_file_of_the_project_is_hashed(tmp_path: Path) -> None:
    bare = make_key(directory=tmp_path)
    (tmp_path / "requirements.txt").write_text("torch==2.11.0\n")
    pinned = make_key(directory=tmp_path)
    (tmp_path / "uv.lock").write_text("version = 1\n")
    locked = make_key(directory=tmp_path)
    assert len({bare.key, pinned.key, locked.key}) == 3
    assert pinned.prefixes[0] + pinned.key.rpartition("-")[2] == pinned.key


def test_a_lock_file_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text("")

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "uv.lock"))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(LocalIOError):
        make_key(facts=None, directory=tmp_path)
