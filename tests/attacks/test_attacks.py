"""Hostile bundles, every verb: an error of ours or a report; nothing written outside, nothing run, nothing left."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bundler
from bundler.bundle import Selection
from bundler.emit import EmitOptions, OnConflict
from bundler.errors import BundlerError, FormatError, LimitExceededError
from bundler.model import Target
from bundler.testing.trees import default_key, snapshot, synthetic_kernel

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a restore needs POSIX directory descriptors")

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "make_attacks.py"
MEMORY = 500 << 20  # bytes: a block, its frame, and an index at its limits


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_attacks", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_attacks = _script()
CANARY = "CANARY"  # relative: whatever runs, runs in the sandbox
ATTACKS: dict[str, bytes] = make_attacks.attacks(CANARY)


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with things outside of the target that must stay as they are."""
    place = tmp_path / "sandbox"
    (place / "outside").mkdir(parents=True)
    (place / "outside" / "mine").write_bytes(b"mine")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield place
    assert not list(tmp_path.rglob(CANARY)), "code of a bundle was run"
    assert not os.path.lexists("/tmp/escaped")


def _all(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def _refused(call: Callable[[], Any]) -> BundlerError | None:
    try:
        call()
    except BundlerError as error:
        assert str(error) and error.fields() is not None
        return error
    return None


def _restores(data: bytes, target: str) -> dict[str, Callable[[], Any]]:
    force = Selection(force=True)
    return {
        "unpack": lambda: bundler.unpack(data, into=target, selection=force),
        "unpack for a GPU": lambda: bundler.unpack(
            data, into=target, selection=Selection(targets=(Target("cuda", "90"),))
        ),
        "salvage": lambda: bundler.unpack(data, into=target, selection=force, options=EmitOptions(salvage=True)),
        "from a pipe": lambda: bundler.unpack(Pipe(data), into=target, selection=force),
        "rehearse": lambda: bundler.unpack(data, into=target, selection=force, options=EmitOptions(dry_run=True)),
    }


@pytest.mark.parametrize("case", ATTACKS)
def test_restores_stay_inside_and_leave_nothing_when_they_refuse(case: str, sandbox: Path) -> None:
    for verb, restore in _restores(ATTACKS[case], "target").items():
        shutil.rmtree("target", ignore_errors=True)
        os.mkdir("target")
        os.symlink("../outside", "target/link")
        os.symlink("../outside/mine", "target/planted")
        error = _refused(restore)
        assert _all(sandbox / "outside") == {"mine"} and Path("outside/mine").read_bytes() == b"mine", verb
        assert {path for path in _all(sandbox) if not path.startswith(("target", "outside"))} == set(), verb
        left = _all(sandbox / "target") - {"link", "planted"}
        assert not [path for path in left if path.startswith(".tb-")], verb
        if error is not None or verb == "rehearse":
            # "In the way": the directories of an entry may exist already when a link is met; no file does.
            assert not [path for path in left if not os.path.isdir(f"target/{path}")], (verb, error)
        assert os.readlink("target/link") == "../outside" and os.readlink("target/planted") == "../outside/mine"


@pytest.mark.parametrize("case", ATTACKS)
def test_reading_verbs_report_or_refuse(case: str, sandbox: Path) -> None:
    data = ATTACKS[case]
    good = io.BytesIO()
    synthetic_kernel(sandbox / "outside" / "cache", "add")
    bundler.pack(["triton=outside/cache"], good, facts={})
    before = _all(sandbox)
    verbs: dict[str, Callable[[], Any]] = {
        "verify": lambda: bundler.verify(data),
        "verify a pipe": lambda: bundler.verify(Pipe(data)),
        "inspect": lambda: bundler.inspect(data),
        "diff": lambda: bundler.diff(data, good.getvalue()),
        "diff with itself": lambda: bundler.diff(data, data),
    }
    outcomes = {verb: _refused(call) for verb, call in verbs.items()}
    assert _all(sandbox) == before
    # What cannot be inspected can be nothing else; what can be, tells one story.
    if outcomes["inspect"] is not None:
        assert all(outcomes.values())
    elif outcomes["verify"] is None:
        assert bundler.verify(data).ok == bundler.verify(Pipe(data)).ok


@pytest.mark.parametrize("case", ATTACKS)
def test_repair_writes_to_what_is_damaged_and_nowhere_else(case: str, sandbox: Path) -> None:
    kernel = synthetic_kernel(sandbox / "target", "add")
    (kernel / "add.cubin").write_bytes(b"")
    (sandbox / "target" / "notes").write_bytes(b"mine too")
    before = snapshot(sandbox)
    error = _refused(lambda: bundler.repair(ATTACKS[case], "triton=target"))
    after = snapshot(sandbox)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert all(path.startswith(f"target/{default_key('add')}/") for path in changed)
    assert error is None or not changed
    # Whole, as the bundle has it, or untouched: never a mixture.
    assert not changed or bundler.verify_root("triton=target").ok or not bundler.verify(ATTACKS[case]).ok


@pytest.mark.parametrize("case", [case for case in ATTACKS if case.startswith("bomb")])
def test_a_bomb_is_refused_before_it_takes_memory(case: str, sandbox: Path) -> None:
    os.mkdir("target")
    tracemalloc.start()
    try:
        error = _refused(lambda: bundler.unpack(ATTACKS[case], into="target", selection=Selection(force=True)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, FormatError), case
    assert peak < MEMORY, f"{peak >> 20} MiB"


# Not every attack breaks a rule: some are to be restored as harmless, or reported. Which ones is part of the contract.
HARMLESS = {
    "path: backslashes",
    "path: drive",
    "path: drive, forward",
    "path: stream",
    "path: device",
    "path: line ends and escapes",
    "path: right to left",
    "path: kernel key",
    "collision: capitals",
    "collision: accents",
    "lie: the GPU",
    "lie: no GPU",
    "lie: a group that points away",
    "lie: a group that lists what is not there",
    "lie: facts of strange types",
    "lie: a signature of nothing",
} | {case for case in ATTACKS if case.startswith("sleeper")}


@pytest.mark.parametrize("case", ATTACKS)
def test_what_breaks_no_rule_is_restored_and_all_else_is_refused(case: str, sandbox: Path) -> None:
    os.mkdir("target")
    os.symlink("../outside", "target/link")
    os.symlink("../outside/mine", "target/planted")
    error = _refused(lambda: bundler.unpack(ATTACKS[case], into="target", selection=Selection(force=True)))
    assert (error is None) == (case in HARMLESS), error


REPORTED = {
    "lie: the GPU": {"target_mismatch"},
    "lie: no GPU": {"target_mismatch"},
    "lie: a group that points away": {"bad_json"},
    "lie: a group that lists what is not there": {"bad_json"},
    "lie: digests swapped": {"digest"},
    "lie: the digest of a frame": {"digest"},
    "lie: no placeholder there": {"format"},
    "lie: a placeholder of the other base": {"format"},
    "sleeper: an autotuning result": {"bad_json"},
    "sleeper: a deep module": {"bad_python"},
    "sleeper: a host binary": {"bad_elf"},
}


@pytest.mark.parametrize("case", REPORTED)
def test_verify_names_what_is_wrong_inside(case: str) -> None:
    report = bundler.verify(ATTACKS[case])
    assert not report.ok and {problem.code for problem in report.problems} == REPORTED[case]


def test_a_conflict_is_never_forced_through_a_link(sandbox: Path) -> None:
    data = make_attacks.bundle([make_attacks.single("link/mine", b"evil")])
    os.mkdir("target")
    os.symlink("../outside", "target/link")
    error = _refused(lambda: bundler.unpack(data, into="target", options=EmitOptions(on_conflict=OnConflict.REPLACE)))
    assert error is not None and error.exit_code == 5
    assert Path("outside/mine").read_bytes() == b"mine"


def test_the_script_writes_each_attack_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_attacks.main([str(tmp_path / "attacks")]) == 0
    assert len(list((tmp_path / "attacks").iterdir())) == len(ATTACKS)
    assert str(len(ATTACKS)) in capsys.readouterr().out


def test_counts_over_their_limit_are_refused_by_name() -> None:
    with pytest.raises(LimitExceededError) as error:
        bundler.inspect(ATTACKS["bomb: 4,000 files of 64 MiB"])
    assert error.value.what == "bytes of files per byte of bundle"
