"""``run``, ``export`` and ``capture``: what is in place before a command, what was used, and what is kept of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

import bundler
from bundler import saving, watching
from bundler.child import run_child
from bundler.errors import (
    LocalIOError,
    NotABundleError,
    NothingToPackError,
    RequirementError,
    TruncatedError,
    UsageError,
)
from bundler.integrations.capturing import ranked
from bundler.model import RootRecord, Unit
from bundler.outcome import RunReport
from bundler.places import fresh_places, host_places
from bundler.testing import trees

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a command is run under our eyes on Linux")

PACKAGE = str(Path(bundler.__file__).parent.parent)

# A command that does what the words of its command line say, one after the other.
PROGRAM = (
    """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, %r)
from bundler.testing import trees
inductor = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
triton = Path(os.environ.get("TRITON_CACHE_DIR") or Path(os.environ["TRITON_HOME"], ".triton", "cache"))
for word in sys.argv[1:]:
    verb, _, what = word.partition("=")
    if verb == "kernel":
        trees.synthetic_kernel(triton, what)
    elif verb == "graph":
        trees.synthetic_inductor_root(inductor, kernels=2, graphs=1, seed=int(what), helpers=False)
    elif verb == "read":
        files = [path for root in (inductor, triton) for path in root.rglob("*") if path.is_file()]
        [path.read_bytes() for path in files if path.match(what)]
    elif verb == "write":
        inductor.mkdir(parents=True, exist_ok=True)
        name, _, text = what.partition(":")
        (inductor / name).write_text(text)
    elif verb == "rewrite":
        [path.write_bytes(path.read_bytes()) for path in inductor.rglob(what)]
    elif verb == "say":
        print(what, flush=True)
    elif verb == "env":
        name, _, file = what.partition(":")
        Path(file).write_text(str(os.environ.get(name)))
    elif verb == "sleep":
        time.sleep(float(what))
    elif verb == "kill":
        os.kill(os.getpid(), getattr(signal, what))
    elif verb == "exit":
        sys.exit(int(what))
"""
    % PACKAGE
)


@pytest.fixture(autouse=True)
def _not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundler.outcome.QUIET_SECONDS", 0.0)  # else each save of something new takes a second


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., list[str]]:
    """``program("kernel=add", "exit=3")``: the command line of a program that does that."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return lambda *words: [sys.executable, str(file), *words]


class Runs(Protocol):
    def __call__(self, *words: str, **options: Any) -> RunReport: ...


@pytest.fixture
def variables(home: Path) -> dict[str, str]:
    """An environment without a place for kernels."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}


@pytest.fixture
def warm(tmp_path: Path, program: Callable[..., list[str]], variables: dict[str, str]) -> Path:
    """A bundle of two graphs' entries and one plain kernel."""
    out = tmp_path / "warm.tbundle"
    report = bundler.export(program("graph=0", "kernel=add"), out, environ=variables, quiet_seconds=0)
    assert report.status == 0 and report.saved
    return out


@pytest.fixture
def run(tmp_path: Path, program: Callable[..., list[str]], variables: dict[str, str]) -> Runs:
    """Run the program with ``warm.tbundle`` below ``roots``."""

    def go(*words: str, **options: Any) -> RunReport:
        options = {"root_dir": tmp_path / "roots", "environ": variables, **options}
        return bundler.run(program(*words), options.pop("bundle", tmp_path / "warm.tbundle"), **options)

    return go


def identities(bundle: Path) -> set[str]:
    return {f"{entry['root']}/{entry['path']}" for entry in bundler.inspect(bundle)["entries"]}


# --- what is used, and what is new ---------------------------------------------------------------------------------


def test_what_is_restored_is_there_before_the_command_and_what_it_read_is_counted(warm: Path, run: Runs) -> None:
    everything = len(identities(warm))
    report = run("read=fxgraph/*/*/*")
    assert (report.restored, report.used, report.new_entries, report.compiled) == (everything, 1, 0, ())
    assert not report.warnings and report.error is None
    assert run("read=*.cubin").used == 3
    again = run("read=*")
    assert (again.used, again.unchanged, again.restored) == (everything, everything, everything)


def test_a_command_that_reads_nothing_uses_nothing(warm: Path, run: Runs) -> None:
    """As when an engine looks in another directory, and nobody but the report would tell."""
    assert run().used == 0


def test_restored_and_unused_is_warned_of_and_so_is_what_went_elsewhere(
    warm: Path, run: Runs, tmp_path: Path, home: Path
) -> None:
    """As when save and load use different directories: the speed-up never comes, and nobody is told."""
    assert any("none of" in warning for warning in run("kernel=softmax").warnings)
    astray = ["sh", "-c", f"mkdir -p {home}/.triton/cache && echo x > {home}/.triton/cache/file"]
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    report = bundler.run(astray, warm, root_dir=tmp_path / "roots", environ=environ)
    assert any(f"1 new or changed entries appeared in {home}/.triton/cache" in warning for warning in report.warnings)
    exported = bundler.export(astray, tmp_path / "e", environ=environ, quiet_seconds=0)
    assert exported.status == 6 and any(".triton/cache" in warning for warning in exported.warnings)


def test_another_build_that_lies_there_is_kept_and_said(warm: Path, run: Runs, tmp_path: Path) -> None:
    """Loss prevented: a run uses something else than the bundle that it was given, and nobody is told."""
    run("read=*")
    kernel = next((tmp_path / "roots" / "triton").rglob("add.cubin")).parent
    shutil.rmtree(kernel)
    trees.synthetic_kernel(kernel.parent, "add", key=kernel.name, seed=77)
    report = run("read=*")
    everything = len(identities(warm))
    assert (report.restored, report.unchanged) == (everything - 1, everything - 1)
    (warning,) = report.warnings
    assert warning.startswith("not restored: 1 entry of which another build lies here") and kernel.name in warning


def test_what_was_compiled_is_named_by_its_kind(warm: Path, run: Runs) -> None:
    report = run("graph=1", "kernel=softmax", "write=ab.so:" + "x")
    kinds = [each.kind for each in report.compiled]
    assert (kinds.count("triton"), kinds.count("fxgraph"), kinds.count("aotautograd"), kinds.count("cpp")) == (
        3,
        1,
        1,
        1,
    )
    assert ("triton", "softmax") in [(each.kind, each.name) for each in report.compiled]
    assert ("cpp", "ab.so") in [(each.kind, each.name) for each in report.compiled]
    assert report.new_entries > len(report.compiled)


def test_what_is_written_again_as_it_was_is_not_new_and_not_used(warm: Path, run: Runs) -> None:
    report = run("rewrite=*.py")
    assert (report.new_entries, report.used) == (0, 0)


def test_without_access_times_the_use_is_unknown_and_not_zero(
    warm: Path, run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_read", lambda path: b"")  # a probe that reads, on noatime
    report = run("read=*")
    assert (report.used, report.seconds_saved) == (None, None)
    assert any("noatime" in warning for warning in report.warnings)


def test_times_of_change_stay_as_they_are(warm: Path, run: Runs, tmp_path: Path) -> None:
    run()
    files = [path for path in (tmp_path / "roots").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    run()
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_seconds_saved_are_those_of_the_graphs_that_were_used(
    program: Callable[..., list[str]], tmp_path: Path, run: Runs
) -> None:
    root = trees.synthetic_inductor_root(tmp_path / "two", kernels=0, graphs=2, helpers=False)
    bundler.pack([f"inductor={root}"], tmp_path / "warm.tbundle", facts={"compile_milliseconds": 9000})
    (one, _) = sorted(root.glob("fxgraph/*/*/*"))
    assert run(f"read={one.name}").seconds_saved == 4.5
    assert run().seconds_saved == 0.0


def test_the_program_and_what_it_starts_are_counted(warm: Path, run: Runs) -> None:
    assert run().processes == 1
    sleeper = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '0.8'])"]
    assert run_child(sleeper, os.environ).processes == 2


# --- where the roots lie -------------------------------------------------------------------------------------------


def test_fresh_roots_leave_inductor_its_directories(tmp_path: Path) -> None:
    places = fresh_places((), str(tmp_path), {})
    assert places.variables == {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TRITON_HOME": str(tmp_path / "triton"),
        "VLLM_CACHE_ROOT": str(tmp_path / "vllm"),
    }
    assert places.roots["triton"].path == str(tmp_path / "triton" / ".triton" / "cache")


def test_a_place_of_kernels_that_the_user_chose_stays(tmp_path: Path) -> None:
    places = fresh_places((), str(tmp_path), {"TRITON_CACHE_DIR": "/mine"})
    assert places.roots["triton"].path == "/mine"
    assert not {"TRITON_HOME", "TRITON_CACHE_DIR"} & places.variables.keys()
    assert "/mine" in places.notes[0]
    fresh = fresh_places((), str(tmp_path), {"TRITON_CACHE_DIR": "/mine"}, follow=False)
    assert fresh.variables["TRITON_CACHE_DIR"] == fresh.roots["triton"].path == str(tmp_path / "triton")


def test_a_variable_that_is_set_to_nothing_is_unset(tmp_path: Path) -> None:
    places = fresh_places((), str(tmp_path), {"TRITON_CACHE_DIR": ""})
    assert "TRITON_CACHE_DIR" not in places.environment({"TRITON_CACHE_DIR": "", "A": "b"})


def test_roots_of_other_names_get_places_and_the_first_of_a_kind_the_variable(tmp_path: Path) -> None:
    records = [RootRecord("b", "triton"), RootRecord("triton", "triton"), RootRecord("inductor", "generic")]
    places = fresh_places(records, str(tmp_path), {})
    assert places.roots["b"].path == str(tmp_path / "b")
    assert places.variables["TRITON_HOME"] == str(tmp_path / "triton")
    assert places.variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor-run")
    assert places.roots["inductor"].kind.name == "generic"


def test_without_a_directory_roots_lie_where_the_host_keeps_them(home: Path) -> None:
    records = [RootRecord("triton", "triton"), RootRecord("other", "triton"), RootRecord("files", "generic")]
    places = host_places(records, {"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": "/x"})
    assert places.roots["triton"].path == str(home / ".triton" / "cache")
    assert places.variables == {"TORCHINDUCTOR_CACHE_DIR": "/x", "VLLM_CACHE_ROOT": str(home / ".cache" / "vllm")}
    assert [note.split()[1] for note in places.notes] == ["files", "other"]


def test_a_root_inside_another_is_counted_once(tmp_path: Path) -> None:
    trees.synthetic_inductor_root(tmp_path / "inductor", kernels=2, graphs=1, helpers=False)
    environ = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "HOME": str(tmp_path)}
    places = host_places((), {**environ, "TRITON_CACHE_DIR": str(tmp_path / "inductor" / "triton" / "0")})
    seen = watching.look(places.roots.values())
    assert sorted(root for (root, _), each in seen.items() if each.unit is Unit.KERNEL) == ["triton", "triton"]


# --- saving --------------------------------------------------------------------------------------------------------


def test_a_cold_start_with_save_makes_the_bundle_and_the_next_run_uses_it(run: Runs, tmp_path: Path) -> None:
    new = tmp_path / "new.tbundle"
    report = run("graph=0", bundle=new, save=True)
    assert report.saved and report.added == report.new_entries == len(identities(new))
    assert report.content_digest == bundler.inspect(new)["content_digest"]
    second = run("read=*", bundle=new, root_dir=tmp_path / "elsewhere", save=True)
    assert (second.used, second.new_entries, second.saved) == (report.added, 0, False)


def test_what_is_saved_is_the_union_also_of_what_the_roots_lost(warm: Path, run: Runs, tmp_path: Path) -> None:
    before = identities(warm)
    first = run("kernel=softmax", "rewrite=*.py", save=True)
    assert (first.saved, first.added) == (True, 1)
    for path in (tmp_path / "roots" / "inductor" / "fxgraph").rglob("*"):
        if path.is_file():
            path.unlink()
    program_that_deletes = ["sh", "-c", f"rm -r {tmp_path}/roots/inductor; exit 0"]
    bundler.run(program_that_deletes, warm, root_dir=tmp_path / "roots", save=True)
    assert identities(warm) > before


def test_nothing_new_leaves_the_file_alone(warm: Path, run: Runs) -> None:
    before = warm.stat()
    report = run("read=*", save=True)
    assert (report.saved, report.added) == (False, 0)
    assert (warm.stat().st_ino, warm.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("options", "saved"), [({"save": True}, False), ({"save_on_failure": True}, True)])
def test_a_failure_is_saved_only_when_that_was_asked_for(
    warm: Path, run: Runs, options: dict[str, bool], saved: bool
) -> None:
    before = warm.read_bytes()
    report = run("kernel=softmax", "exit=3", **options)
    assert (report.status, report.saved, report.new_entries) == (3, saved, 1)
    assert (warm.read_bytes() == before) is not saved


def test_of_two_builds_the_old_one_stays_but_a_table_that_grew_is_taken(run: Runs, tmp_path: Path) -> None:
    new = tmp_path / "new.tbundle"
    run("write=table.txt:a", "write=x.best_config:{}", bundle=new, save=True)
    report = run("write=table.txt:ab", 'write=x.best_config:{"b": 1}', bundle=new, save=True)
    assert (report.saved, report.added, report.new_entries) == (True, 0, 2)
    bundler.unpack(new, into=tmp_path / "into")
    assert (tmp_path / "into" / "table.txt").read_text() == "ab"
    assert (tmp_path / "into" / "x.best_config").read_text() == "{}"


def test_without_a_directory_only_what_the_run_made_or_used_is_saved(
    run: Runs, tmp_path: Path, home: Path, variables: dict[str, str]
) -> None:
    """The host's caches hold the entries of other programs too."""
    cache = home / ".triton" / "cache"
    used, other = trees.synthetic_kernel(cache, "add"), trees.synthetic_kernel(cache, "matmul")
    new = tmp_path / "new.tbundle"
    report = run(f"read={used.name}/*", "kernel=softmax", bundle=new, root_dir=None, save=True)
    names = {entry.rpartition("/")[2] for entry in identities(new)}
    assert used.name in names and other.name not in names and report.added == len(names) == 2


def test_two_runs_that_save_at_once_lose_nothing(warm: Path, run: Runs, tmp_path: Path) -> None:
    before = identities(warm)
    names = [f"kernel_{number}" for number in range(4)]

    def go(name: str) -> None:
        run(f"kernel={name}", root_dir=tmp_path / name, save=True)

    threads = [threading.Thread(target=go, args=(name,)) for name in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(identities(warm)) == len(before) + len(names)


def test_a_wake_up_without_a_signal_is_not_handed_on(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss: one of several runs at once that dies of ``Invalid argument``, and saves nothing."""
    odd, real = [4711, 0], signal.sigtimedwait

    def waited(held: Any, timeout: float) -> Any:
        return SimpleNamespace(si_signo=odd.pop(), si_code=0) if odd else real(held, timeout)

    monkeypatch.setattr(signal, "sigtimedwait", waited)
    assert run("exit=3", save=True).exit_code == 3 and not odd


def test_a_save_that_cannot_be_written_is_our_failure_and_the_old_file_is_whole(
    warm: Path, run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = warm.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise LocalIOError(str(warm), 28, "write the bundle")

    monkeypatch.setattr(saving, "merge", full)
    report = run("kernel=softmax", save=True)
    assert (report.exit_code, report.status, report.failed, report.saved) == (0, 12, True, False)
    assert run("kernel=other", "exit=4", save_on_failure=True).status == 4
    assert warm.read_bytes() == before


def test_a_command_that_caches_nothing_writes_no_bundle(run: Runs, tmp_path: Path) -> None:
    report = run(bundle=tmp_path / "new.tbundle", save=True)
    assert (report.status, report.saved, (tmp_path / "new.tbundle").exists()) == (0, False, False)


# --- bundles that are no use ---------------------------------------------------------------------------------------


def test_without_a_file_and_without_save_nothing_starts(run: Runs, tmp_path: Path) -> None:
    with pytest.raises(LocalIOError, match="--save"):
        run("write=trace:x", bundle=tmp_path / "absent")
    assert not (tmp_path / "roots").exists()


def test_a_damaged_bundle_is_a_cold_start_and_is_replaced_only_after_success(warm: Path, run: Runs) -> None:
    damaged = warm.read_bytes()[:-100]
    warm.write_bytes(damaged)
    report = run("say=x")
    assert (report.status, report.restored, type(report.error)) == (0, 0, TruncatedError)
    assert any("cold start" in warning for warning in report.warnings)
    assert run("kernel=softmax", "exit=1", save=True).status == 1 and warm.read_bytes() == damaged
    report = run("kernel=softmax", save=True)
    assert report.saved and len(identities(warm)) == 1 and report.status == 0
    assert Path(f"{warm}.damaged").read_bytes() == damaged


def test_a_flipped_byte_is_a_cold_start(warm: Path, run: Runs) -> None:
    data = bytearray(warm.read_bytes())
    data[-1] ^= 1
    warm.write_bytes(data)
    report = run("graph=5", save=True)
    assert report.restored == 0 and report.error is not None and report.status == 0 and report.saved


def test_a_file_of_another_kind_is_never_replaced(warm: Path, run: Runs) -> None:
    warm.write_text("weights of a model, " * 50)
    report = run("kernel=softmax", save=True)
    assert (report.exit_code, report.status, type(report.error)) == (0, 3, NotABundleError)
    assert warm.read_text().startswith("weights")


def test_nothing_is_saved_to_a_pipe_but_one_can_be_restored(warm: Path, run: Runs, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        run(bundle=tmp_path / "pipe", save=True)
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(warm.read_bytes()))
    writer.start()
    report = run("rewrite=*.py", bundle=tmp_path / "pipe")
    writer.join()
    assert report.restored == len(identities(warm)) and report.new_entries > 0


def test_a_file_of_no_bytes_is_a_place_for_one(run: Runs, tmp_path: Path) -> None:
    (tmp_path / "new.tbundle").touch()
    assert run("kernel=add", bundle=tmp_path / "new.tbundle", save=True).saved


def test_a_bundle_for_another_gpu_is_a_cold_start(warm: Path, run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    from bundler.model import Target

    monkeypatch.setattr("bundler.host.gpu_targets", lambda: (Target("cuda", "80"),))
    report = run("kernel=softmax", save=True)
    assert report.status == 0 and report.restored == 0 and "cuda:80" in str(report.error)
    assert len(identities(warm)) > 3, "and nothing of it is lost"


def test_switched_off_the_command_runs_as_without_us(
    warm: Path, run: Runs, variables: dict[str, str], tmp_path: Path
) -> None:
    before = warm.read_bytes()
    variables.update({"TRITON_BUNDLER": "0", "TRITON_HOME": str(tmp_path / "theirs")})
    report = run("kernel=softmax", "exit=7", environ=variables, save_on_failure=True)
    assert (report.status, report.restored, report.saved, report.new_entries) == (7, 0, False, 1)
    assert warm.read_bytes() == before and report.env == {}
    assert (tmp_path / "theirs" / ".triton" / "cache").exists() and not (tmp_path / "roots").exists()


def test_a_variable_that_passes_caches_by_is_warned_of(warm: Path, run: Runs, variables: dict[str, str]) -> None:
    report = run(environ={**variables, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
    assert "TORCHINDUCTOR_FORCE_DISABLE_CACHES=1" in report.warnings[0]


# --- the child -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT", "SIGSEGV", "SIGUSR1"])
def test_a_signal_that_ends_the_command_is_its_exit_code(
    program: Callable[..., list[str]], name: str, home: Path
) -> None:
    script = ["sh", "-c", f"ulimit -c 0; kill -{name[3:]} $$"]
    report = run_child(script, os.environ)
    assert (report.exit_code, report.signal) == (128 + signal.Signals[name], name)


def test_a_command_that_is_not_there_is_an_error_of_ours(home: Path) -> None:
    with pytest.raises(LocalIOError, match="run the command"):
        run_child(["/no/such/command"], os.environ)
    with pytest.raises(UsageError):
        run_child([], os.environ)
    with pytest.raises(UsageError):
        run_child(["a\0b"], os.environ)


def test_handlers_and_mask_come_back(home: Path) -> None:
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1]
    before = [signal.getsignal(number) for number in numbers], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert run_child(["true"], os.environ).exit_code == 0
    after = [signal.getsignal(number) for number in numbers], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert before == after


def test_open_files_and_stdin_are_the_command_s(home: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    assert run_child(["sh", "-c", f"echo hello >/dev/fd/{write}"], os.environ).exit_code == 0
    os.close(write)
    assert os.read(read, 100) == b"hello\n"
    os.close(read)


def test_an_ignored_signal_is_ignored_there_too(home: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_child(["sh", "-c", "kill -HUP $$; exit 5"], os.environ).exit_code == 5
    finally:
        signal.signal(signal.SIGHUP, before)


# --- export --------------------------------------------------------------------------------------------------------


def test_an_export_holds_what_the_command_left_and_nothing_of_the_host(
    warm: Path, variables: dict[str, str], program: Callable[..., list[str]], tmp_path: Path
) -> None:
    out = tmp_path / "e.tbundle"
    environ = {**variables, "TRITON_CACHE_DIR": str(tmp_path / "old")}
    trees.synthetic_kernel(tmp_path / "old", "matmul")
    report = bundler.export(program("kernel=add"), out, environ=environ, require=["triton"], quiet_seconds=0)
    assert (report.saved, report.added, len(identities(out))) == (True, 1, 1)
    assert [(each.kind, each.name) for each in report.compiled] == [("triton", "add")]
    assert not Path(report.roots["triton"]).exists(), "the roots are temporary"


@pytest.mark.parametrize(
    ("words", "missing"),
    [(["kernel=add"], "fxgraph, aotautograd"), ([], "fxgraph, aotautograd, triton"), (["write=a.cubin:"], "triton")],
)
def test_what_is_required_and_missing_is_named_and_nothing_is_written(
    program: Callable[..., list[str]], variables: dict[str, str], tmp_path: Path, words: list[str], missing: str
) -> None:
    out = tmp_path / "e.tbundle"
    out.write_bytes(b"the old one")
    require = ["fxgraph", "aotautograd", "triton"]
    report = bundler.export(program(*words), out, environ=variables, require=require, quiet_seconds=0)
    assert isinstance(report.error, RequirementError) and (report.exit_code, report.status) == (0, 6)
    assert missing in str(report.error) and out.read_bytes() == b"the old one"


def test_what_is_required_and_torn_is_missing(
    program: Callable[..., list[str]], variables: dict[str, str], tmp_path: Path
) -> None:
    torn = "import os, pathlib; k = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'], 'fxgraph', 'ab', 'key');"
    torn += "k.mkdir(parents=True); (k / 'x').write_bytes(b'')"
    command = [sys.executable, "-c", torn]
    report = bundler.export(command, tmp_path / "e", environ=variables, require=["fxgraph"], quiet_seconds=0)
    assert report.status == 6 and not (tmp_path / "e").exists()


def test_an_export_that_left_nothing_or_failed_writes_nothing(
    program: Callable[..., list[str]], variables: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "e.tbundle"
    empty = bundler.export(program(), out, environ=variables, quiet_seconds=0)
    assert isinstance(empty.error, NothingToPackError) and empty.status == 6
    failed = bundler.export(program("graph=0", "exit=9"), out, environ=variables, quiet_seconds=0)
    assert (failed.status, failed.saved, failed.error) == (9, False, None)
    assert not out.exists()


def test_an_export_waits_for_whoever_still_writes(variables: dict[str, str], tmp_path: Path) -> None:
    late = "cd $TORCHINDUCTOR_CACHE_DIR/..; mkdir inductor; echo 1 > inductor/a; (sleep 0.4; echo 2 > inductor/b) &"
    out = tmp_path / "e.tbundle"
    report = bundler.export(["sh", "-c", late], out, environ=variables, quiet_seconds=0.8)
    assert report.added == 2 and report.save_seconds >= 0.8


def test_quiet_has_a_deadline(tmp_path: Path) -> None:
    places = fresh_places((), str(tmp_path), {})
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "a").touch()
    _, quiet = watching.wait_until_quiet(places.roots.values(), {}, 60.0, 0.1)
    assert not quiet


def test_an_export_is_refused_before_the_command_when_it_cannot_end_well(
    program: Callable[..., list[str]], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="autograd"):
        bundler.export(program("say=x"), tmp_path / "e", require=["autograd"])
    with pytest.raises(LocalIOError):
        bundler.export(program("say=x"), tmp_path / "no" / "e")


def test_a_switched_off_export_says_so(
    program: Callable[..., list[str]], variables: dict[str, str], tmp_path: Path
) -> None:
    report = bundler.export(program("say=x"), tmp_path / "e", environ={**variables, "TRITON_BUNDLER": "0"})
    assert (report.exit_code, report.status) == (0, 2) and not (tmp_path / "e").exists()


def test_entries_that_are_bundled_hold_raw_copies_unless_something_else_is_asked_for(
    run: Runs, program: Callable[..., list[str]], variables: dict[str, str], tmp_path: Path
) -> None:
    """The loss: each kernel twice in the bundle, once in its directory and once in a blob inside an FX graph entry."""
    names = ("export", "save", "run", "chosen")
    asked = [f"env=TRITON_BUNDLER_ENTRIES:{tmp_path / name}" for name in names]
    command = program("kernel=add", asked[0])
    bundler.export(command, tmp_path / "warm.tbundle", environ=variables, quiet_seconds=0)
    assert run(asked[1], save=True).env["TRITON_BUNDLER_ENTRIES"] == "raw"
    assert "TRITON_BUNDLER_ENTRIES" not in run(asked[2]).env
    run(asked[3], save=True, environ={**variables, "TRITON_BUNDLER_ENTRIES": "blob"})
    assert [(tmp_path / name).read_text() for name in names] == ["raw", "raw", "None", "blob"]


# --- capture -------------------------------------------------------------------------------------------------------


def compile_something(seed: int = 0) -> None:
    trees.synthetic_inductor_root(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]), graphs=1, seed=seed, helpers=False)


def test_a_block_is_captured_and_the_environment_comes_back(home: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    with bundler.capture(tmp_path / "c.tbundle", require=["fxgraph", "triton"], quiet_seconds=0) as captured:
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != before["TORCHINDUCTOR_CACHE_DIR"]
        assert os.environ["TRITON_BUNDLER_ENTRIES"] == "raw"
        compile_something()
    assert dict(os.environ) == before
    assert captured.report is not None and captured.report.entries == len(identities(tmp_path / "c.tbundle"))
    with bundler.capture(tmp_path / "d.tbundle", quiet_seconds=0):
        compile_something(1)
    assert not identities(tmp_path / "c.tbundle") & identities(tmp_path / "d.tbundle"), "roots are fresh each time"


def test_an_exception_in_the_block_writes_nothing(home: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    with pytest.raises(KeyError), bundler.capture(tmp_path / "c.tbundle", quiet_seconds=0):
        compile_something()
        raise KeyError
    assert not (tmp_path / "c.tbundle").exists() and dict(os.environ) == before


def test_a_torch_that_cannot_forget_leaves_the_environment_as_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Lost otherwise: where the caches of this process lie, for as long as it runs.
    def cannot() -> None:
        raise RuntimeError("workers do not end")

    monkeypatch.setitem(sys.modules, "torch._inductor.utils", SimpleNamespace(clear_caches=cannot))
    before = dict(os.environ)
    with pytest.raises(RuntimeError, match="workers"), bundler.capture(tmp_path / "c", quiet_seconds=0):
        pytest.fail("the block was begun")
    assert dict(os.environ) == before


def test_a_block_without_what_is_required_fails_loudly(home: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    with pytest.raises(RequirementError), bundler.capture(tmp_path / "c", require=["autotune"], quiet_seconds=0):
        trees.synthetic_kernel(Path(os.environ["TRITON_CACHE_DIR"]), "add")
    with pytest.raises(NothingToPackError), bundler.capture(tmp_path / "c", quiet_seconds=0):
        pass
    with pytest.raises(UsageError), bundler.capture(tmp_path / "c", require=["nonsense"]):
        pass
    assert not (tmp_path / "c").exists() and dict(os.environ) == before


def test_one_capture_at_a_time(home: Path, tmp_path: Path) -> None:
    with bundler.capture(tmp_path / "c", quiet_seconds=0):
        compile_something()
        with pytest.raises(UsageError), bundler.capture(tmp_path / "d"):
            pass
    assert (tmp_path / "c").exists()


def test_a_place_that_a_library_changes_in_the_block_is_named(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As when a stand-alone compile moves the kernels of the whole process, and the bundle lacks them."""
    with bundler.capture(tmp_path / "c", quiet_seconds=0):
        compile_something()
        os.environ["TRITON_CACHE_DIR"] = str(tmp_path / "away")
    assert f"TRITON_CACHE_DIR was set to {tmp_path / 'away'}" in caplog.text


def test_switched_off_a_block_runs_and_nothing_is_written(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_BUNDLER", "0")
    before = dict(os.environ)
    with bundler.capture(tmp_path / "c", require=["fxgraph"]):
        assert dict(os.environ) == before
    assert not (tmp_path / "c").exists()


RANKS = {
    "no torchrun": ({}, "warm.tbundle"),
    "one rank": ({"RANK": "0", "WORLD_SIZE": "1"}, "warm.tbundle"),
    "several": ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, "warm.rank3.tbundle"),
    "nonsense": ({"RANK": "x", "WORLD_SIZE": "8"}, "warm.tbundle"),
}


@pytest.mark.parametrize(("environ", "expected"), RANKS.values(), ids=RANKS.keys())
def test_each_rank_has_a_file_of_its_own(environ: dict[str, str], expected: str) -> None:
    assert ranked("warm.tbundle", environ) == expected


def test_files_of_ranks_can_be_merged(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bundler.merging import merge

    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        with bundler.capture(tmp_path / "c.tbundle", quiet_seconds=0):
            compile_something(rank)
    files = sorted(tmp_path.glob("*.tbundle"))
    assert [file.name for file in files] == ["c.rank0.tbundle", "c.rank1.tbundle"]
    merged = merge(files, tmp_path / "c.tbundle")
    assert identities(tmp_path / "c.tbundle") == identities(files[0]) | identities(files[1])
    assert merged.entries == len(identities(tmp_path / "c.tbundle"))


CAPTURE_WITH_TORCH = """
import os, sys, torch, bundler
from torch._dynamo.utils import counters
from torch._inductor import async_compile, codecache
own = codecache.cache_dir()
with bundler.capture(sys.argv[1], require=["fxgraph", "aotautograd", "cpp"]):
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == own
bundler.unpack(sys.argv[1], [f"inductor={own}"])
torch._dynamo.reset()
counters.clear()
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
assert counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"] >= 1, counters
assert not counters["inductor"]["fxgraph_cache_miss"], counters
"""


@pytest.mark.torch
def test_a_block_is_captured_when_torch_is_imported_already(home: Path, tmp_path: Path, shared: Path) -> None:
    (shared / "tmp").mkdir(exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": PACKAGE, "TMPDIR": str(shared / "tmp")}
    del environ["TRITON_CACHE_DIR"]
    command = [sys.executable, "-c", CAPTURE_WITH_TORCH, str(tmp_path / "c.tbundle")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
