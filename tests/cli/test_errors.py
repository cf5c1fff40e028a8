"""Every way to fail has its exit code, one line for a person, and an object for a program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundler import cli as package
from bundler.testing import trees


class Bench:
    """What the cases below are made of."""

    def __init__(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.get: Callable[[str], Path] = request.getfixturevalue
        self.tmp = tmp_path

    def file(self, name: str, data: bytes) -> Path:
        (self.tmp / name).write_bytes(data)
        return self.tmp / name

    def conflicting(self) -> list[object]:
        """Unpack over another build of one of the kernels."""
        bundle, root = self.get("bundle"), self.tmp / "installed"
        key = trees.default_key("add")
        trees.synthetic_kernel(root, "add", key=key, seed=1)
        return ["unpack", bundle, "--into", root, "--on-conflict", "fail"]

    def link(self) -> list[object]:
        root = self.tmp / "linked"
        root.mkdir()
        (root / trees.default_key("add")).symlink_to(self.tmp)
        return ["unpack", self.get("bundle"), "--into", root]

    def damaged_kernel(self) -> list[object]:
        (self.get("triton") / trees.default_key("add") / "add.cubin").write_bytes(b"")
        return ["pack", self.get("triton"), "-o", self.tmp / "out.tbundle", "--strict"]


# what happened -> how to make it happen, exit code, error.type, fields that the error must have
CASES: dict[str, tuple[Callable[[Bench], list[object]], int, str, tuple[str, ...]]] = {
    "not a bundle": (lambda b: ["verify", b.file("x", b"PK\x03\x04")], 3, "NotABundleError", ("offset", "name")),
    "an empty file": (lambda b: ["inspect", b.file("x", b"")], 3, "NotABundleError", ("what",)),
    "cut short": (
        lambda b: ["unpack", b.file("x", b.get("bundle").read_bytes()[:-1]), "--into", b.tmp / "r"],
        3,
        "TruncatedError",
        ("needed", "available"),
    ),
    "another version": (
        lambda b: ["inspect", b.file("x", b.get("bundle").read_bytes()[:8] + b"\x63" + bytes(200))],
        3,
        "UnsupportedVersionError",
        ("found", "supported"),
    ),
    "over a limit": (
        lambda b: ["inspect", b.file("x", b.get("bundle").read_bytes()[:16] + b"\xff" * 8 + bytes(200))],
        3,
        "LimitExceededError",
        ("size", "limit"),
    ),
    "a changed index": (
        lambda b: ["diff", b.get("bundle"), b.file("x", _flip(b.get("bundle").read_bytes(), 100))],
        4,
        "DigestMismatchError",
        ("expected", "actual"),
    ),
    "a changed payload": (
        lambda b: ["unpack", b.get("flipped"), "--into", b.tmp / "r"],
        4,
        "DigestMismatchError",
        ("expected", "actual", "offset"),
    ),
    "another digest than expected": (
        lambda b: ["verify", b.get("bundle"), "--expect-digest", "sha256:" + "0" * 64],
        4,
        "OtherBundleError",
        ("expected", "actual"),
    ),
    "a path out of the root": (lambda b: ["inspect", b.get("hostile")], 5, "UnsafePathError", ("path", "reason")),
    "a link below the root": (Bench.link, 5, "UnsafePathError", ("path", "reason")),
    "strict": (Bench.damaged_kernel, 6, "SkippedError", ("entry", "missing", "count")),
    "nothing to pack": (lambda b: ["pack", b.get("empty"), "-o", b.tmp / "o"], 6, "NothingToPackError", ("entry",)),
    "a lost placeholder": (
        lambda b: ["unpack", b.get("misplaced"), "--into", b.tmp / "r"],
        7,
        "RelocationError",
        ("name", "reason", "offset"),
    ),
    "no such GPU": (
        lambda b: ["unpack", b.get("bundle"), "--into", b.tmp / "r", "--target", "cuda:80"],
        8,
        "IncompatibleTargetError",
        ("bundle", "host"),
    ),
    "a conflict": (Bench.conflicting, 9, "EntryExistsError", ("path",)),
    "no such file": (lambda b: ["inspect", b.tmp / "absent"], 12, "LocalIOError", ("path", "errno", "action")),
    "a directory": (lambda b: ["verify", b.tmp], 12, "LocalIOError", ("path", "errno")),
    "no such root": (lambda b: ["pack", b.tmp / "absent", "-o", b.tmp / "o"], 12, "LocalIOError", ("path", "errno")),
    "no such root to verify": (lambda b: ["verify", "--root", b.tmp / "absent"], 12, "LocalIOError", ("path",)),
    "nowhere to write": (
        lambda b: ["pack", b.get("triton"), "-o", b.tmp / "absent" / "o"],
        12,
        "LocalIOError",
        ("path", "errno"),
    ),
    "a file in place of a root": (
        lambda b: ["unpack", b.get("bundle"), "--into", b.file("r", b"")],
        12,
        "LocalIOError",
        ("path", "errno"),
    ),
}

USAGE: dict[str, list[object]] = {
    "no such command": ["pakc"],
    "no such option": ["pack", "--fast"],
    "no root": ["pack", "-o", "x"],
    "no output": ["pack", "x"],
    "no file": ["unpack"],
    "an unknown kind": ["pack", "inductr=/x", "-o", "x"],
    "two roots of one name": ["pack", "triton=/x", "triton=/y", "-o", "x"],
    "a level that is no number": ["pack", "x", "-o", "x", "--level", "best"],
    "an unknown profile": ["pack", "x", "-o", "x", "--profile", "tiny"],
    "a target without a colon": ["unpack", "x", "--target", "sm_90"],
    "a target with a dot": ["unpack", "x", "--target", "cuda:9.0"],
    "a device map of one": ["unpack", "x", "--device-map", "0"],
    "a device map of letters": ["unpack", "x", "--device-map", "a:b"],
    "a digest that is none": ["verify", "x", "--expect-digest", "sha256:12"],
    "a digest that is not hex": ["verify", "x", "--expect-digest", "z" * 64],
    "neither bundle nor root": ["verify"],
    "bundle and root": ["verify", "x", "--root", "y"],
    "a digest for a root": ["verify", "--root", "y", "--expect-digest", "0" * 64],
    "stdin twice": ["unpack", "-", "-"],
    "stdin twice, to compare": ["diff", "-", "-"],
    "repair without a root": ["repair", "x"],
    "an option with a strange value": ["unpack", "x", "--on-conflict", "merge"],
}


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


@pytest.mark.parametrize(("make", "code", "kind", "fields"), CASES.values(), ids=CASES.keys())
def test_an_error_has_its_code_one_line_and_an_object(
    make: Callable[[Bench], list[object]],
    code: int,
    kind: str,
    fields: tuple[str, ...],
    cli: Any,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    argv = make(Bench(request, tmp_path))
    run = cli(*argv)
    assert run.code == code
    assert run.out == b""
    assert run.err.startswith("triton-bundler: error: ") and run.err.count("\n") == 1
    as_json = cli(*argv, "--json")
    assert as_json.code == code
    error = as_json.json["error"]
    assert error["type"] == kind
    assert as_json.err == "" and error["message"] in run.err.encode().decode("unicode_escape")
    assert {"type", "message", *fields} <= error.keys()


def test_every_family_that_can_happen_has_a_case() -> None:
    assert {code for _, code, _, _ in CASES.values()} == {3, 4, 5, 6, 7, 8, 9, 12}


@pytest.mark.parametrize("argv", USAGE.values(), ids=USAGE.keys())
def test_a_wrong_call_ends_with_2_and_says_what_to_look_at(argv: list[object], cli: Any) -> None:
    run = cli(*argv)
    assert run.code == 2 and run.out == b""
    assert run.err.startswith("triton-bundler: error: ") and run.err.count("\n") == 1
    as_json = cli(*argv, "--json")
    assert as_json.code == 2
    assert as_json.json["error"]["type"] == "UsageError" and as_json.json["error"]["message"]


@pytest.mark.parametrize(
    "code", ["not a bundle", "a changed payload", "a conflict", "no such GPU", "a lost placeholder"]
)
def test_a_restore_that_fails_writes_nothing(
    code: str, cli: Any, request: pytest.FixtureRequest, tmp_path: Path, leftovers: Any
) -> None:
    argv = CASES[code][0](Bench(request, tmp_path))
    root = Path(str(argv[argv.index("--into") + 1])) if "--into" in argv else tmp_path / "r"
    before = trees.snapshot(root) if root.exists() else {}
    assert cli(*argv).code
    assert (trees.snapshot(root) if root.exists() else {}) == before
    assert not leftovers(tmp_path)


def test_a_pack_that_fails_leaves_the_old_bundle(
    cli: Any, triton: Path, bundle: Path, tmp_path: Path, leftovers: Any
) -> None:
    before = bundle.read_bytes()
    (triton / trees.default_key("add") / "add.cubin").write_bytes(b"")
    assert cli("pack", triton, "-o", bundle, "--strict").code == 6
    assert bundle.read_bytes() == before
    assert not leftovers(tmp_path)


def test_a_bundle_that_cannot_be_read_has_no_entries_but_a_problem(
    cli: Any, tmp_path: Path, hostile: Path, bundle: Path
) -> None:
    (tmp_path / "x").write_bytes(b"nothing")
    (tmp_path / "y").write_bytes(_flip(bundle.read_bytes(), 100))
    for path, code, problem in ((tmp_path / "x", 3, "format"), (tmp_path / "y", 4, "digest"), (hostile, 5, "format")):
        run = cli("verify", path, "--json")
        assert run.code == code
        assert (run.json["ok"], run.json["entries"]) == (False, 0)
        assert [each["code"] for each in run.json["problems"]] == [problem]
        assert run.json["problems"][0]["detail"] == run.json["error"]["message"]


def test_an_unexpected_exception_ends_with_1_and_without_a_traceback(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("no\nway")

    monkeypatch.setattr("bundler.listing.inspect", fail)
    run = cli("inspect", bundle)
    assert run.code == 1
    assert run.err.count("\n") == 1 and "ZeroDivisionError: no\\nway" in run.err and package.DEBUG in run.err
    assert cli("inspect", bundle, "--json").json["error"]["type"] == "ZeroDivisionError"


def test_the_traceback_is_shown_on_request(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(package.DEBUG, "1")
    assert package.main(["inspect", str(bundle) + "x"]) == 12
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_os_error_that_nobody_expected_is_local_input_or_output(
    cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28), "/tmp/spool")

    monkeypatch.setattr("bundler.listing.inspect", fail)
    run = cli("inspect", bundle, "--json")
    assert (run.code, run.json["error"]["type"], run.json["error"]["path"]) == (12, "LocalIOError", "/tmp/spool")


def test_a_pipe_that_nobody_reads_ends_quietly(cli: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokenPipeError(32, "x")

    monkeypatch.setattr("bundler.listing.inspect", fail)
    run = cli("inspect", bundle)
    assert (run.code, run.out, run.err) == (141, b"", "")


def test_nothing_at_all_shows_the_help(cli: Any) -> None:
    run = cli()
    assert run.code == 2 and "Usage: triton-bundler" in run.err


def test_help_and_version_end_with_0(cli: Any) -> None:
    assert cli("--version").code == 0
    for argv in (["--help"], ["pack", "-h"], ["unpack", "--help"]):
        run = cli(*argv)
        assert run.code == 0 and b"Usage: triton-bundler" in run.out
