"""``unpack``: where roots go, which entries, conflicts, damage, several bundles, and the environment to set."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bundler
from bundler.testing import trees


def same(there: Path, here: Path) -> bool:
    """Whether a restored tree is a tree that was moved there."""
    rehomed = {name: data for name, data in trees.snapshot(here).items() if not name.endswith(".tbundle")}
    found = trees.snapshot(there)
    return {name: data.replace(str(there).encode(), str(here).encode()) for name, data in found.items()} == rehomed


# --- where ---------------------------------------------------------------------------------------------------------


def test_a_root_goes_where_this_host_keeps_its_kind(cli: Any, both: Path, home: Path, triton: Path) -> None:
    run = cli("unpack", both, "--json")
    assert run.json["roots"] == {"inductor": str(home / "inductor"), "triton": str(home / "triton")}
    assert same(home / "triton", triton)


def test_a_single_root_goes_into_the_path_itself(cli: Any, bundle: Path, tmp_path: Path, triton: Path) -> None:
    assert cli("unpack", bundle, "--into", tmp_path / "there").code == 0
    assert same(tmp_path / "there", triton)


def test_several_roots_go_below_the_path(cli: Any, both: Path, tmp_path: Path, triton: Path, inductor: Path) -> None:
    assert cli("unpack", both, "--into", tmp_path / "there").code == 0
    assert same(tmp_path / "there" / "triton", triton)
    # Modules and graphs keep the paths of the tree they come from.
    assert trees.snapshot(tmp_path / "there" / "inductor").keys() == trees.snapshot(inductor).keys()


def test_root_wins_over_into(cli: Any, both: Path, tmp_path: Path) -> None:
    run = cli("unpack", both, "--into", tmp_path / "a", "--root", f"triton={tmp_path / 'b'}", "--json")
    assert run.json["roots"] == {"inductor": str(tmp_path / "a" / "inductor"), "triton": str(tmp_path / "b")}


def test_a_root_that_the_bundle_does_not_have_is_a_wrong_call(cli: Any, bundle: Path, tmp_path: Path) -> None:
    assert cli("unpack", bundle, "--root", f"inductor={tmp_path}").code == 2


def test_a_generic_root_needs_a_place(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "x").write_text("x")
    assert cli("pack", f"generic={tmp_path / 'g'}", "-o", tmp_path / "g.tbundle").code == 0
    run = cli("unpack", tmp_path / "g.tbundle")
    assert run.code == 2 and "--into" in run.err


# --- which ---------------------------------------------------------------------------------------------------------


def test_only_restores_what_matches(cli: Any, both: Path, tmp_path: Path) -> None:
    run = cli("unpack", both, "--into", tmp_path / "r", "--only", "softmax", "--only", "fxgraph", "--json")
    assert run.json["restored"] == 2
    assert (tmp_path / "r" / "triton" / trees.default_key("softmax")).is_dir()


def test_only_that_matches_nothing_is_a_wrong_call(cli: Any, both: Path, tmp_path: Path) -> None:
    assert cli("unpack", both, "--into", tmp_path / "r", "--only", "nothing*").code == 2


def test_a_target_leaves_other_kernels_out(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--target", "hip:gfx942", "--json")
    assert run.json["restored"] == 1
    assert len(run.json["skipped"]) == 2 and all("cuda:90" in each["reason"] for each in run.json["skipped"])


def test_several_targets_are_united(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--target", "hip:gfx942", "--target", "cuda:90", "--json")
    assert (run.json["restored"], run.json["skipped"]) == (3, [])


def test_force_restores_whatever_the_target(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--target", "cuda:80", "--force", "--json")
    assert (run.code, run.json["restored"]) == (0, 3)


def test_entries_without_a_target_do_not_save_a_bundle_without_a_fitting_kernel(
    cli: Any, both: Path, tmp_path: Path
) -> None:
    assert cli("unpack", both, "--into", tmp_path / "r", "--target", "cuda:80").code == 8
    assert not (tmp_path / "r").exists()


def test_a_device_map_moves_and_doubles(cli: Any, tmp_path: Path) -> None:
    trees.synthetic_kernel(tmp_path / "i" / "triton" / "0", "add")
    assert cli("pack", f"inductor={tmp_path / 'i'}", "-o", tmp_path / "x.tbundle").code == 0
    argv = ["unpack", tmp_path / "x.tbundle", "--into", tmp_path / "r", "--device-map", "0:1", "--device-map", "0:3"]
    assert cli(*argv, "--json").json["restored"] == 2
    assert sorted(os.listdir(tmp_path / "r" / "triton")) == ["1", "3"]
    assert cli("verify", "--root", f"inductor={tmp_path / 'r'}").code == 0


# --- what is there already -----------------------------------------------------------------------------------------


def test_what_is_there_is_left_alone(cli: Any, bundle: Path, tmp_path: Path) -> None:
    cli("unpack", bundle, "--into", tmp_path / "r")
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--json")
    assert (run.json["restored"], run.json["unchanged"], run.json["files_written"]) == (0, 3, 0)


def test_what_is_damaged_is_repaired(cli: Any, bundle: Path, tmp_path: Path, triton: Path) -> None:
    cli("unpack", bundle, "--into", tmp_path / "r")
    (tmp_path / "r" / trees.default_key("add") / "add.cubin").write_bytes(b"")
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--json")
    assert (run.json["repaired"], run.json["unchanged"]) == (1, 2)
    assert same(tmp_path / "r", triton)


@pytest.mark.parametrize(("policy", "action"), [("keep", "kept"), ("replace", "replaced")])
def test_what_differs_follows_the_policy(cli: Any, bundle: Path, tmp_path: Path, policy: str, action: str) -> None:
    key = trees.default_key("add")
    other = trees.synthetic_kernel(tmp_path / "r", "add", key=key, seed=1)
    before = (other / "add.cubin").read_bytes()
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--on-conflict", policy, "--json")
    assert run.json["conflicts"] == [{"entry": f"triton/{key}", "action": action}]
    assert run.json["kept"] == (policy == "keep")
    assert ((other / "add.cubin").read_bytes() == before) == (policy == "keep")


def test_a_dry_run_tells_and_writes_nothing(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--dry-run", "--json")
    assert (run.json["dry_run"], run.json["restored"]) == (True, 3)
    assert not (tmp_path / "r").exists()
    assert "dry run" in cli("unpack", bundle, "--into", tmp_path / "r", "--dry-run").text


def test_a_dry_run_fails_as_the_run_would(cli: Any, bundle: Path, flipped: Path, tmp_path: Path) -> None:
    trees.synthetic_kernel(tmp_path / "r", "add", key=trees.default_key("add"), seed=1)
    before = trees.snapshot(tmp_path / "r")
    assert cli("unpack", bundle, "--into", tmp_path / "r", "--dry-run", "--on-conflict", "fail").code == 9
    assert cli("unpack", flipped, "--into", tmp_path / "r", "--dry-run").code == 4
    assert trees.snapshot(tmp_path / "r") == before


# --- damage --------------------------------------------------------------------------------------------------------


def test_salvage_restores_what_is_good_and_ends_with_4(cli: Any, tmp_path: Path) -> None:
    """Two frames: the first of them whole, the second not."""
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "a").write_bytes(os.urandom(1 << 20))
    (tmp_path / "g" / "b").write_bytes(os.urandom(1 << 20) * 70)
    bundler.pack([f"generic={tmp_path / 'g'}"], tmp_path / "g.tbundle")
    data = bytearray((tmp_path / "g.tbundle").read_bytes())
    data[-1] ^= 1
    (tmp_path / "g.tbundle").write_bytes(data)
    run = cli("unpack", tmp_path / "g.tbundle", "--into", tmp_path / "r", "--salvage", "--json")
    assert run.code == 4
    assert run.json["restored"] == 1
    (damage,) = run.json["damaged"]
    assert (damage["entry"], damage["file"]) == ("generic/b", "b") and "digest" in damage["reason"]
    assert sorted(os.listdir(tmp_path / "r")) == ["a"]


# --- several bundles -----------------------------------------------------------------------------------------------


@pytest.fixture
def apart(tmp_path: Path, triton: Path, inductor: Path) -> list[Path]:
    """A bundle of each root."""
    bundler.pack([f"triton={triton}"], tmp_path / "t.tbundle")
    bundler.pack([f"inductor={inductor}"], tmp_path / "i.tbundle")
    return [tmp_path / "t.tbundle", tmp_path / "i.tbundle"]


def test_several_bundles_are_summed(cli: Any, apart: list[Path], tmp_path: Path) -> None:
    one, two = (cli("unpack", each, "--into", tmp_path / each.stem, "--json").json for each in apart)
    run = cli("unpack", *apart, "--into", tmp_path / "r", "--json")
    for name in ("restored", "files_written", "bytes_written"):
        assert run.json[name] == one[name] + two[name]
    assert run.json["env"].keys() == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}


def test_roots_of_several_bundles_are_placed_together(cli: Any, apart: list[Path], tmp_path: Path) -> None:
    run = cli("unpack", *apart, "--into", tmp_path / "r", "--json")
    assert run.json["roots"] == {kind: str(tmp_path / "r" / kind) for kind in ("inductor", "triton")}
    run = cli("unpack", *apart, "--root", f"triton={tmp_path / 'x'}", "--into", tmp_path / "r2", "--json")
    assert run.json["roots"] == {"inductor": str(tmp_path / "r2" / "inductor"), "triton": str(tmp_path / "x")}


def test_bundles_of_one_root_go_into_the_path_itself(cli: Any, bundle: Path, tmp_path: Path, triton: Path) -> None:
    trees.synthetic_kernel(tmp_path / "more", "matmul")
    bundler.pack([f"triton={tmp_path / 'more'}"], tmp_path / "more.tbundle")
    run = cli("unpack", bundle, tmp_path / "more.tbundle", "--into", tmp_path / "r", "--json")
    assert (run.json["restored"], run.json["roots"]) == (4, {"triton": str(tmp_path / "r")})


@pytest.mark.parametrize("position", [0, 1])
def test_one_bad_bundle_of_several_keeps_all_from_being_written(
    cli: Any, bundle: Path, flipped: Path, tmp_path: Path, position: int
) -> None:
    trees.synthetic_kernel(tmp_path / "other", "matmul", target=("cuda", 80, 32))
    bundler.pack([f"triton={tmp_path / 'other'}"], tmp_path / "other.tbundle")
    for bad, code in ((flipped, 4), (tmp_path / "absent", 12), (tmp_path / "other.tbundle", 8)):
        files = [bundle, bad] if position else [bad, bundle]
        assert cli("unpack", *files, "--into", tmp_path / "r", "--target", "cuda:90").code == code
        assert not (tmp_path / "r").exists()


def test_a_conflict_with_one_of_several_keeps_all_from_being_written(
    cli: Any, apart: list[Path], tmp_path: Path
) -> None:
    trees.synthetic_kernel(tmp_path / "r" / "triton", "add", key=trees.default_key("add"), seed=1)
    before = trees.snapshot(tmp_path / "r")
    run = cli("unpack", *reversed(apart), "--into", tmp_path / "r", "--on-conflict", "fail")
    assert run.code == 9
    assert trees.snapshot(tmp_path / "r") == before


def test_only_may_match_in_one_of_several(cli: Any, apart: list[Path], tmp_path: Path) -> None:
    run = cli("unpack", *apart, "--into", tmp_path / "r", "--only", "softmax", "--json")
    assert (run.code, run.json["restored"]) == (0, 1)
    assert cli("unpack", *apart, "--into", tmp_path / "r", "--only", "nothing").code == 2


def test_a_name_of_two_kinds_is_a_wrong_call(cli: Any, bundle: Path, inductor: Path, tmp_path: Path) -> None:
    bundler.pack([f"triton:inductor={inductor}"], tmp_path / "i.tbundle")
    run = cli("unpack", bundle, tmp_path / "i.tbundle", "--into", tmp_path / "r")
    assert run.code == 2 and "one by one" in run.err


# --- stdin ---------------------------------------------------------------------------------------------------------


class Stdin:
    """What ``sys.stdin`` is to a command."""

    def __init__(self, file: Any) -> None:
        self.buffer = file

    def isatty(self) -> bool:
        return False


class Pipe(io.BytesIO):
    """Bytes that can be read once."""

    name = "<stdin>"

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise io.UnsupportedOperation("seek")

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--salvage"]], ids=["plain", "dry", "salvage"])
def test_a_pipe_is_restored_like_a_file(
    cli: Any, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(Pipe(bundle.read_bytes())))
    piped = cli("unpack", "-", "--into", tmp_path / "a", "--json", *more).json
    plain = cli("unpack", bundle, "--into", tmp_path / "b", "--json", *more).json
    ignored = ("seconds", "env", "roots")
    assert {n: v for n, v in piped.items() if n not in ignored} == {n: v for n, v in plain.items() if n not in ignored}


def test_a_pipe_may_be_one_of_several(cli: Any, apart: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(Pipe(apart[0].read_bytes())))
    run = cli("unpack", "-", apart[1], "--into", tmp_path / "r", "--json")
    assert run.code == 0 and (tmp_path / "r" / "triton" / trees.default_key("add")).is_dir()


def test_a_broken_pipe_bundle_writes_nothing(cli: Any, bundle: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(Pipe(bundle.read_bytes()[:-10])))
    run = cli("unpack", "-", "--into", tmp_path / "r")
    assert run.code == 3 and "<stdin>" in run.err
    assert trees.snapshot(tmp_path / "r") == {}


def test_stdin_that_is_a_terminal_or_closed_is_refused(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Stdin(Pipe(b""))
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert cli("unpack", "-").code == 2
    monkeypatch.setattr(sys, "stdin", None)
    assert cli("unpack", "-").code == 12


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_once(cli: Any, bundle: Path, tmp_path: Path) -> None:
    for argv in (["unpack", tmp_path / "p", "--into", tmp_path / "r"], ["diff", tmp_path / "p", bundle]):
        os.mkfifo(tmp_path / "p")
        with subprocess.Popen(["/bin/sh", "-c", 'cat "$0" > "$1"', bundle, tmp_path / "p"]):
            run = cli(*argv)
        assert run.code == 0, run
        os.unlink(tmp_path / "p")


# --- the environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "two  spaces", "it's", '"$HOME"', "new\nline", "ядро"])
def test_the_printed_environment_is_what_a_shell_sets(cli: Any, both: Path, tmp_path: Path, name: str) -> None:
    run = cli("unpack", both, "--into", tmp_path / name, "--print-env")
    script = run.text + 'printf "%s\\0%s" "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR"'
    shell = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert os.fsdecode(shell.stdout).split("\0") == [str(tmp_path / name / kind) for kind in ("inductor", "triton")]
    assert "restored" in run.err and "restored" not in run.text


def test_the_environment_is_printed_quietly_too(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--print-env", "--quiet")
    assert (run.text, run.err) == (f"export TRITON_CACHE_DIR={tmp_path / 'r'}\n", "")


def test_the_json_has_the_environment_and_nothing_else_is_printed(cli: Any, bundle: Path, tmp_path: Path) -> None:
    run = cli("unpack", bundle, "--into", tmp_path / "r", "--print-env", "--json")
    assert run.json["env"] == {"TRITON_CACHE_DIR": str(tmp_path / "r")}
    assert run.err == ""
