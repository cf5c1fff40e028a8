"""Byte code of real Pythons: written for a run, tied to its sources, restored elsewhere, used there or left alone."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bundler
from bundler.errors import NothingToPackError, UnsafePathError, UsageError
from bundler.formats import bytecode
from bundler.kinds import KINDS
from bundler.outcome import RunReport
from bundler.pinning import pin, python_of
from bundler.places import fresh_places, host_places
from bundler.roots import Root
from bundler.watching import look

make = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "make_attacks.py")))

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a command is run under our eyes on Linux")

MODULES = 120
TAG = str(sys.implementation.cache_tag)

# Says how many modules of the package were compiled from source, what they add up to, and what it was told.
PROGRAM = """
import importlib.machinery, json, os, sys
compiled = []
compile_source = importlib.machinery.SourceFileLoader.source_to_code
def counted(self, data, path, **options):
    compiled.append(path)
    return compile_source(self, data, path, **options)
importlib.machinery.SourceFileLoader.source_to_code = counted
sys.path.insert(0, sys.argv[1])
import package
mine = [path for path in compiled if path.startswith(sys.argv[1])]
told = {"compiled": len(mine), "total": package.total, "prefix": sys.pycache_prefix, "mute": sys.dont_write_bytecode}
with open(sys.argv[2], "w") as file:
    json.dump(told, file)
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A package of some hundred modules, whose sum is ``MODULES``, without byte code."""
    package = tmp_path / "site" / "package"
    package.mkdir(parents=True)
    names = [f"m{number}" for number in range(MODULES)]
    for name in names:
        (package / f"{name}.py").write_text(f"def value(x={len(name)}):\n    return 1\n")
    lines = [f"from package import {', '.join(names)}", f"total = sum(m.value() for m in ({', '.join(names)}))", ""]
    (package / "__init__.py").write_text("\n".join(lines))
    return tmp_path / "site"


@pytest.fixture
def variables(home: Path) -> dict[str, str]:
    """An environment as many images have it: byte code is not written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "TRITON"))}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}


@pytest.fixture
def command(tmp_path: Path, sources: Path) -> list[str]:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return [sys.executable, str(file), str(sources), str(tmp_path / "told.json")]


@pytest.fixture
def run(
    tmp_path: Path, command: list[str], variables: dict[str, str]
) -> Callable[..., tuple[RunReport, dict[str, Any]]]:
    """Run the program with ``warm.tbundle``; returns the report, and what the program said."""

    def go(**options: Any) -> tuple[RunReport, dict[str, Any]]:
        options = {"root_dir": tmp_path / "roots", "environ": variables, "warn": lambda text: None, **options}
        report = bundler.run(
            options.pop("command", command), options.pop("bundle", tmp_path / "warm.tbundle"), **options
        )
        return report, json.loads((tmp_path / "told.json").read_text())

    return go


@pytest.fixture
def warm(tmp_path: Path, command: list[str], variables: dict[str, str]) -> Path:
    out = tmp_path / "warm.tbundle"
    report = bundler.export(command, out, also=["pycache"], environ=variables, quiet_seconds=0)
    assert report.status == 0 and report.saved and report.unset == ("PYTHONDONTWRITEBYTECODE",)
    (warning,) = report.warnings  # the program compiles nothing but itself
    assert "byte code and no compile cache" in warning
    return out


def of_package(bundle: Path) -> list[dict[str, Any]]:
    return [entry for entry in bundler.inspect(bundle)["entries"] if "/package/" in entry["path"]]


def restored(root: Path, name: str) -> Path:
    (found,) = root.rglob(f"package/{name}.{TAG}.pyc")
    return found


def age_sources(sources: Path, seconds: int) -> None:
    """Give the sources other times, as another installation of the same version does."""
    for path in sources.rglob("*.py"):
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))


# --- written, restored, used ---------------------------------------------------------------------------------------


def test_byte_code_is_written_for_an_export_and_nothing_is_compiled_after_a_restore(
    warm: Path, run: Callable[..., Any], sources: Path, tmp_path: Path
) -> None:
    assert json.loads((tmp_path / "told.json").read_text())["compiled"] == MODULES + 1
    assert len(of_package(warm)) == MODULES + 1
    assert {entry["unit"] for entry in of_package(warm)} == {"file"}
    assert not list(sources.rglob("*.pyc"))
    report, told = run()
    assert (told["compiled"], told["total"], told["mute"]) == (0, MODULES, False)
    assert told["prefix"] == report.env["PYTHONPYCACHEPREFIX"] == report.roots["pycache"]
    assert report.restored == report.used == len(bundler.inspect(warm)["entries"])
    assert (report.new_entries, report.unset) == (0, ("PYTHONDONTWRITEBYTECODE",))
    again, told = run()
    assert (told["compiled"], again.unchanged, again.restored) == (0, report.restored, report.restored)


def test_without_being_asked_an_export_keeps_no_byte_code(
    command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    report = bundler.export(command, tmp_path / "x", environ=variables, quiet_seconds=0)
    assert report.status == 6 and report.unset == ()
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["prefix"], told["mute"]) == (None, True)


def test_a_second_installation_of_the_same_sources_uses_it_too(
    warm: Path, run: Callable[..., Any], sources: Path
) -> None:
    """The loss: pip and uv give sources the time of the installation, and Python compiles what has another time."""
    age_sources(sources, 1000)
    assert run()[1]["compiled"] == 0


def test_byte_code_of_another_source_is_not_used(warm: Path, run: Callable[..., Any], sources: Path) -> None:
    changed = sources / "package" / "m7.py"
    status = changed.stat()
    changed.write_text(changed.read_text().replace("return 1", "return 2"))
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns))  # neither its time nor its size tells
    report, told = run()
    assert (told["compiled"], told["total"], report.new_entries) == (1, MODULES + 1, 1)
    assert run()[1]["total"] == MODULES + 1


def test_a_save_takes_what_is_new_and_what_was_compiled_again(
    warm: Path, run: Callable[..., Any], sources: Path, tmp_path: Path
) -> None:
    before = len(of_package(warm))
    (sources / "package" / "m7.py").write_text("def value():\n    return 100\n")
    (sources / "package" / "more.py").write_text("value = 1\n")
    (sources / "package" / "__init__.py").open("a").write("from package import more\n")
    report, told = run(save=True)
    assert (told["compiled"], report.saved, report.added, report.new_entries) == (3, True, 1, 3)
    assert len(of_package(warm)) == before + 1
    age_sources(sources, 1000)
    second, told = run(root_dir=tmp_path / "elsewhere")
    assert (told["compiled"], told["total"], second.new_entries) == (0, MODULES + 99, 0)


def test_a_bundle_that_is_to_be_made_can_be_asked_for_it(
    run: Callable[..., Any], tmp_path: Path, sources: Path
) -> None:
    new = tmp_path / "new.tbundle"
    assert run(bundle=new, also=["pycache"], save=True)[0].added > MODULES
    age_sources(sources, 1000)
    assert run(bundle=new, root_dir=tmp_path / "elsewhere")[1]["compiled"] == 0
    for verb in (bundler.run, bundler.export):
        with pytest.raises(UsageError, match="what can be asked for: pycache"):
            verb(["true"], new, also=["triton"])


def test_by_default_it_lies_in_a_cache_of_ours_or_where_the_variable_says(
    warm: Path, run: Callable[..., Any], variables: dict[str, str], tmp_path: Path
) -> None:
    report, told = run(root_dir=None)
    assert told["prefix"] == f"{variables['XDG_CACHE_HOME']}/triton-bundler/pycache" and told["compiled"] == 0
    mine = {**variables, "PYTHONPYCACHEPREFIX": str(tmp_path / "mine")}
    report, told = run(root_dir=None, environ=mine)
    assert told["prefix"] == str(tmp_path / "mine") and told["compiled"] == 0 and report.restored > MODULES


def test_it_is_restored_by_unpack_and_python_is_told_where(
    warm: Path, command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    report = bundler.unpack(warm, into=tmp_path / "into")
    assert report.env == {"PYTHONPYCACHEPREFIX": str(tmp_path / "into")}
    subprocess.run(command, env={**variables, **report.env}, check=True)
    assert json.loads((tmp_path / "told.json").read_text())["compiled"] == 0


# --- what is damaged, or for another Python ------------------------------------------------------------------------


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "empty"),
    "NUL": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "nul_filled"),
    "cut short": (tear, "bad_python"),
    "a header alone": (lambda path: path.write_bytes(path.read_bytes()[:16]), "bad_python"),
    "a tail of NUL": (lambda path: path.write_bytes(path.read_bytes()[:-30] + bytes(30)), "bad_python"),
    "text": (lambda path: path.write_text("def value(): return 1"), "bad_python"),
    "named for another Python": (lambda path: path.write_bytes(b"\x6f" + path.read_bytes()[1:]), "bad_python"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_skipped_by_pack_named_by_verify_and_healed_by_a_restore(
    case: str, warm: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    """The loss: Python takes a file with a sound header for sound, and the import fails on every start."""
    damage, code = DAMAGE[case]
    run()
    root = tmp_path / "roots" / "pycache"
    damage(restored(root, "m3"))
    problems = bundler.verify_root(str(root)).problems
    assert [(problem.code, problem.file) for problem in problems] == [(code, f"m3.{TAG}.pyc")]
    packed = bundler.pack([f"pycache={root}"], tmp_path / "again.tbundle")
    assert [skipped.path.rpartition("/")[2] for skipped in packed.skipped] == [f"m3.{TAG}.pyc"]
    assert len(of_package(tmp_path / "again.tbundle")) == MODULES
    assert bundler.unpack(warm, into=root).repaired == 1
    assert bundler.verify_root(f"pycache={root}").ok
    assert run()[1]["compiled"] == 0


def test_a_damaged_bundle_restores_no_byte_code(warm: Path, run: Callable[..., Any]) -> None:
    data = bytearray(warm.read_bytes())
    data[-100] ^= 0xFF
    warm.write_bytes(data)
    report, told = run()
    assert report.restored == 0 and report.error is not None
    assert (told["compiled"], told["prefix"], told["total"]) == (MODULES + 1, None, MODULES)


def other_python() -> str | None:
    """A Python of another release than this one, if there is one on this machine."""
    roots = [
        Path("/usr/bin"),
        Path("/usr/local/bin"),
        *Path(os.environ.get("PYENV_ROOT", str(Path.home()) + "/.pyenv")).glob("versions/*/bin"),
    ]
    for path in sorted(path for root in roots for path in root.glob("python3.*")):
        minor = path.name.removeprefix("python3.")
        if minor.isdigit() and 10 <= int(minor) <= 14 and int(minor) != sys.version_info.minor:
            return str(path)
    return None


def test_for_another_python_it_is_left_out_with_the_reason(
    warm: Path, run: Callable[..., Any], command: list[str], tmp_path: Path
) -> None:
    other = other_python()
    if other is None:
        pytest.skip("no other Python here")
    report, told = run(command=[other, *command[1:]])
    assert (report.restored, told["compiled"], told["total"]) == (0, MODULES + 1, MODULES)
    version = Path(other).name.removeprefix("python3.")
    assert any(f"byte code of {TAG}, and the command runs cpython-3{version}" in text for text in report.warnings)


def test_where_the_name_does_not_tell_all_is_restored_and_python_finds_its_own(
    warm: Path, run: Callable[..., Any], command: list[str]
) -> None:
    report, told = run(command=["sh", "-c", " ".join(command)])
    assert report.restored == report.used and told["compiled"] == 0


def test_that_none_of_it_was_used_is_said_apart_from_the_caches(
    warm: Path, run: Callable[..., Any], command: list[str]
) -> None:
    report, told = run(command=[command[0], "-E", *command[1:]])
    assert report.used == 0 and told["compiled"] == MODULES + 1
    assert any("restored files of byte code was used" in text for text in report.warnings)
    assert not any("restored entries was used" in text for text in report.warnings)


# --- two writers ---------------------------------------------------------------------------------------------------


def test_byte_code_of_one_source_from_two_writers_is_equivalent(warm: Path, tmp_path: Path) -> None:
    """The loss: Python's own bytes differ from run to run, and a merge of two ranks would be a conflict."""
    root = tmp_path / "other"
    bundler.unpack(warm, into=root)
    path = restored(root, "m3")
    path.write_bytes(respelled(path.read_bytes()))
    assert bundler.verify_root(f"pycache={root}").ok
    bundler.pack([f"pycache={root}"], tmp_path / "other.tbundle")
    compared = bundler.diff(warm, tmp_path / "other.tbundle")
    assert compared.same and len(compared.equivalent) == 1
    assert bundler.merge([warm, tmp_path / "other.tbundle"], tmp_path / "both.tbundle").conflicts == ()
    again = bundler.unpack(warm, into=root)
    assert (again.equivalent, again.files_written) == (1, 0)


def respelled(data: bytes) -> bytes:
    """Mark the code as referred to, or not: the same code to Python, in other bytes."""
    return data[:16] + bytes([data[16] ^ 0x80]) + data[17:]


# --- tying -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(sources: Path, tmp_path: Path) -> Callable[[], tuple[Root, Path]]:
    """``made()``: a root with byte code of ``m3``, tied to the time of its source, and its file."""

    def go() -> tuple[Root, Path]:
        root = tmp_path / "prefix"
        source = sources / "package" / "m3.py"
        place = Path(f"{root}{source.parent}", f"m3.{TAG}.pyc")
        place.parent.mkdir(parents=True, exist_ok=True)
        status = source.stat()
        stamp = int(status.st_mtime).to_bytes(4, "little") + status.st_size.to_bytes(4, "little")
        code = marshal.dumps(compile(source.read_text(), str(source), "exec"))
        place.write_bytes(importlib.util.MAGIC_NUMBER + bytes(4) + stamp + code)
        return Root("pycache", KINDS["pycache"], str(root)), place

    return go


def test_only_the_header_changes_and_the_hash_is_that_of_the_source(
    made: Callable[[], tuple[Root, Path]], sources: Path
) -> None:
    root, place = made()
    before = place.read_bytes()
    assert pin(look([root]).values()) == []
    after = place.read_bytes()
    found = bytecode.parse(after)
    assert (found.by_hash, found.checked) == (True, True)
    assert found.source == importlib.util.source_hash((sources / "package" / "m3.py").read_bytes())
    assert (after[:4], after[16:]) == (before[:4], before[16:])
    stamp = place.stat()
    assert pin(look([root]).values()) == []  # tied already
    assert (place.stat().st_ino, place.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_a_source_is_found_by_all_of_its_name(made: Callable[[], tuple[Root, Path]], sources: Path) -> None:
    root, place = made()
    source = sources / "package" / "m3.py"
    source.rename(source.with_name("m.3.py"))
    place = place.rename(place.with_name(f"m.3.{TAG}.opt-1.pyc"))
    assert pin(look([root]).values()) == [] and bytecode.parse(place.read_bytes()).checked


UNTIED: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "its source is gone": (lambda place, source: source.unlink(), "not there, or not what it was"),
    "its source is newer": (lambda place, source: os.utime(source, (1, 1)), "not there, or not what it was"),
    "its source is larger": (lambda place, source: source.write_bytes(b"#" * 99), "not there, or not what it was"),
    "its source is a pipe": (
        lambda place, source: (source.unlink(), os.mkfifo(source)),
        "not there, or not what it was",
    ),
    "it belongs to somebody else": (
        lambda place, source: (
            os.chown(place, 12345, -1) if os.geteuid() == 0 else pytest.skip("only root may give files away")
        ),
        "belongs to somebody else",
    ),
    "it is of another Python": (
        lambda place, source: place.write_bytes((3649).to_bytes(2, "little") + place.read_bytes()[2:]),
        "another Python",
    ),
}


@pytest.mark.parametrize("case", UNTIED)
def test_what_cannot_be_tied_stays_and_is_told(case: str, made: Callable[[], tuple[Root, Path]], sources: Path) -> None:
    spoil, reason = UNTIED[case]
    root, place = made()
    spoil(place, sources / "package" / "m3.py")
    before = place.read_bytes()
    (said,) = pin(look([root]).values())
    assert said.startswith("1 file of byte code:") and reason in said
    assert place.read_bytes() == before


def test_byte_code_of_a_private_source_stays_private(made: Callable[[], tuple[Root, Path]], sources: Path) -> None:
    root, place = made()
    place.chmod(0o600)
    assert pin(look([root]).values()) == []
    assert bytecode.parse(place.read_bytes()).checked and place.stat().st_mode & 0o777 == 0o600


def test_nothing_but_byte_code_is_of_such_a_root(made: Callable[[], tuple[Root, Path]], tmp_path: Path) -> None:
    """The loss: private files in a bundle, because a prefix lies in a directory where other things lie too."""
    root, place = made()
    for stranger in (place.with_name("id_rsa"), Path(root.path, "notes.txt"), place.with_name("m3.py")):
        stranger.write_text("private")
    assert [seen.place for seen in look([root]).values()] == [str(place)]
    report = bundler.pack([f"pycache={root.path}"], tmp_path / "p.tbundle")
    assert (report.entries, report.skipped) == (1, ())


def test_a_bundle_puts_nothing_else_into_such_a_root(tmp_path: Path) -> None:
    """The loss: a file of any name below a directory of the user's own."""
    attack = tmp_path / "attack.tbundle"
    index, payload = make.index_of([make.single(name) for name in (f"a/m.{TAG}.pyc", "profile.sh")])
    index["roots"] = [["triton", "pycache", ""]]
    attack.write_bytes(make.forge(index, payload))
    with pytest.raises(UnsafePathError, match="nothing of this name belongs into a root of kind pycache"):
        bundler.unpack(attack, into=tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_damage_is_not_made_worse_and_nothing_else_is_touched(made: Callable[[], tuple[Root, Path]]) -> None:
    root, place = made()
    tear(place)
    notes = place.with_name("notes")
    notes.write_text("x")
    before = place.read_bytes()
    assert pin(look([root]).values()) == []
    assert (place.read_bytes(), notes.read_text()) == (before, "x")


def test_a_file_that_cannot_be_rewritten_is_told(
    made: Callable[[], tuple[Root, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = made()

    def refuse(*given: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("bundler._atomic.rename", refuse)
    (said,) = pin(look([root]).values())
    assert "Read-only file system" in said


# --- which Python a command starts -----------------------------------------------------------------------------------


def test_the_python_of_a_command_is_told_by_names_alone(tmp_path: Path) -> None:
    (tmp_path / "python3.12").write_text("")
    (tmp_path / "python3.12").chmod(0o755)
    (tmp_path / "python").symlink_to("python3.12")
    scripts = {
        "torchrun": f"#!{tmp_path}/python\n",
        "blank": f"#! {tmp_path}/python3.12 -s\n",
        "env": "#!/usr/bin/env python\n",
        "split": "#!/usr/bin/env -S python -s\n",
        "twice": f"#!{tmp_path}/torchrun\n",
        "shell": "#!/bin/sh\nexec python\n",
        "none": "echo\n",
        "circle": f"#!{tmp_path}/circle\n",
        "lost": "#!/no/such/python\n",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    for name in ("python", "python3.12", "torchrun", "blank", "env", "split", "twice"):
        assert python_of([name, "-c", "pass"], environ | {"PATH": f"{tmp_path}:/usr/bin"}) == "cpython-312", name
        assert python_of([str(tmp_path / name)], environ | {"PATH": f"{tmp_path}:/usr/bin"}) == "cpython-312"
    for name in ("shell", "none", "circle", "lost", "absent"):
        assert python_of([name], environ) == ""
    assert python_of([], environ) == ""
    assert shutil.which("env") is None or python_of(["/usr/bin/env", "python"], environ) == ""


def test_a_script_that_cannot_be_read_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0o111)

    def refuse(*given: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    assert python_of([str(tmp_path / "secret")], {}) == ""


# --- where it lies, and when -----------------------------------------------------------------------------------------


def test_a_kind_that_has_to_be_asked_for_is_in_a_run_only_then(tmp_path: Path) -> None:
    mute = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}
    for places in (fresh_places((), str(tmp_path), mute), host_places((), mute)):
        assert "pycache" not in places.roots and places.unset == ()
        assert "PYTHONPYCACHEPREFIX" not in places.variables
    for places in (fresh_places((), str(tmp_path), mute, also=["pycache"]), host_places((), mute, also=["pycache"])):
        assert places.variables["PYTHONPYCACHEPREFIX"] == places.roots["pycache"].path
        assert places.unset == ("PYTHONDONTWRITEBYTECODE",)
        assert "PYTHONDONTWRITEBYTECODE" not in places.environment(mute)


def test_a_capture_leaves_the_place_of_byte_code_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/mine")
    with pytest.raises(NothingToPackError), bundler.capture(tmp_path / "x", quiet_seconds=0):
        assert os.environ["PYTHONPYCACHEPREFIX"] == "/mine"
