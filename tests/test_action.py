"""The GitHub actions and the examples: their shell steps, run as a runner would, against a directory as the store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import bundler
from bundler.testing.trees import synthetic_kernel

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.skipif(not (ROOT / "action.yml").exists(), reason="not in a checkout")

_EXPRESSION = re.compile(r"\$\{\{ *([^}]*?) *\}\}")


class Runner:
    """Runs composite actions as GitHub does: one shell a step, and files for outputs, variables and the summary."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.summary = place / "summary.md"
        self.log = ""

    def action(self, name: str, **given: str) -> tuple[int, dict[str, str]]:
        """Run an action; return the exit code of the first step that failed, and the outputs."""
        directory = ROOT / name
        action = yaml.safe_load((directory / "action.yml").read_text())
        inputs = {key.replace("-", "_"): str(spec.get("default", "")) for key, spec in action["inputs"].items()}
        inputs = {key: "false" if "github.event" in value else value for key, value in inputs.items()}
        assert given.keys() <= inputs.keys()
        missing = [key for key, spec in action["inputs"].items() if spec.get("required") and key not in given]
        assert not missing
        context = {f"inputs.{key.replace('_', '-')}": value for key, value in {**inputs, **given}.items()}
        code = 0
        for step in action["runs"]["steps"]:
            assert step["shell"] == "bash"
            if code and "cancelled()" not in step.get("if", ""):
                continue
            if "inputs.run" in step.get("if", "") and not context["inputs.run"]:
                continue
            failed = self._step(step, directory, context)
            code = code or failed
        outputs = {
            key: _EXPRESSION.sub(lambda m: context.get(m[1], ""), spec["value"])
            for key, spec in action["outputs"].items()
        }
        return code, outputs

    def _step(self, step: Mapping[str, Any], directory: Path, context: dict[str, str]) -> int:
        assert "${{" not in step["run"], "an input in a script can be a script itself"
        output, variables = self.place / "output", self.place / "env"
        output.write_text("")
        variables.write_text("")
        own = {key: _EXPRESSION.sub(lambda m: context.get(m[1], ""), value) for key, value in step["env"].items()}
        environment = {
            **self.environment,
            **own,
            "GITHUB_ACTION_PATH": str(directory),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_ENV": str(variables),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }
        done = _bash(step["run"], environment, self.place)
        self.log += done.stdout + done.stderr
        for name, value in _assignments(output).items():
            context[f"steps.{step.get('id')}.outputs.{name}"] = value
        self.environment.update(_assignments(variables))
        return done.returncode


def _bash(script: str, environment: Mapping[str, str], place: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command, capture_output=True, text=True, env=dict(environment), cwd=place, check=False, timeout=100
    )


def _assignments(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines, and NAME<<END ... END."""
    found, lines = {}, iter(path.read_text().splitlines())
    for line in lines:
        name, heredoc, end = line.partition("<<")
        if heredoc and "=" not in name:
            value = []
            for each in lines:
                if each == end:
                    break
                value.append(each)
            found[name] = "\n".join(value)
        else:
            name, _, value_text = line.partition("=")
            found[name] = value_text
    return found


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


COMPILE = f"""{sys.executable} -c '
import pathlib, sys
from bundler.testing.trees import synthetic_kernel
synthetic_kernel(pathlib.Path(sys.argv[1]), sys.argv[2], key=sys.argv[2].upper().ljust(52, "K"), source_file="/k.py")
' """


def compile_in(root: str, name: str) -> str:
    """A command that puts a kernel into a root."""
    return f'{COMPILE} "{root}" {name}'


# -- the actions -------------------------------------------------------------------------------------------------------


def test_the_action_around_a_command_is_warm_the_second_time(runner: Runner, store: str, home: Path) -> None:
    run = compile_in("$TRITON_CACHE_DIR", "add")
    options = {"store": store, "python": sys.executable, "salt": "a b'c\"$(touch pwned)"}
    code, cold = runner.action("", run=run, **options)
    assert code == 0, runner.log
    assert (cold["hit"], cold["matched-key"], cold["uploaded"]) == ("false", "", "true")
    (home / "triton").rename(home / "gone")
    code, warm = runner.action("", run=f"ls -d {home}/triton/ADDK*", **options)
    assert code == 0, runner.log
    assert (warm["hit"], warm["matched-key"], warm["uploaded"]) == ("true", cold["key"], "false")
    assert float(warm["seconds-saved"]) >= 0
    summary = runner.summary.read_text()
    assert "| hit | no |" in summary and "| hit | yes |" in summary and "| entries restored | 1 |" in summary
    assert not (runner.place / "pwned").exists()


def test_a_command_that_fails_fails_the_job_and_what_it_compiled_is_saved(runner: Runner, store: str) -> None:
    run = compile_in("$TRITON_CACHE_DIR", "add") + "\nexit 7"
    code, outputs = runner.action("", run=run, store=store, python=sys.executable, key="k")
    assert (code, outputs["uploaded"]) == (7, "true")


def test_the_parts_restore_by_prefix_and_save_where_they_are_told(runner: Runner, store: str, tmp_path: Path) -> None:
    """Two jobs on two runners, with roots that are not in the usual places."""
    python = {"store": store, "python": sys.executable}
    for number, expected in ((1, ("false", "")), (2, ("true", "main-1"))):
        job = Runner(tmp_path / f"runner{number}")
        job.place.mkdir()
        roots = f"\n  triton={job.place}/with blank/triton  \n\n"
        code, outputs = job.action(
            "restore", key=f"main-{number}", restore_keys="none-\nmain-\n", roots=roots, **python
        )
        assert code == 0, job.log
        assert (outputs["hit"], outputs["matched-key"]) == expected
        assert job.environment["TRITON_CACHE_DIR"] == f"{job.place}/with blank/triton"
        done = _bash(compile_in("$TRITON_CACHE_DIR", f"k{number}"), job.environment, job.place)
        assert done.returncode == 0, done.stderr
        code, outputs = job.action("save", key=f"main-{number}", roots=roots, max_size="50MB", **python)
        assert (code, outputs["uploaded"], outputs["added"]) == (0, "true", str(number)), job.log
    assert bundler.restore(store, "main-2", [f"triton={tmp_path / 'out'}"]).unpacked.restored == 2


def test_a_fork_uploads_nothing_and_the_summary_says_so(runner: Runner, store: str, home: Path) -> None:
    synthetic_kernel(home / "triton", "add")
    code, outputs = runner.action("save", store=store, python=sys.executable, key="k", readonly="true")
    assert (code, outputs["uploaded"]) == (0, "false"), runner.log
    assert "| uploaded | no, read-only |" in runner.summary.read_text()
    assert not list(Path(store.removeprefix("file://")).glob("k"))


def test_a_store_that_fails_is_a_warning_unless_it_must_not(runner: Runner, home: Path) -> None:
    synthetic_kernel(home / "triton", "add")
    options = {"store": "file:///proc/none", "python": sys.executable, "key": "k"}
    code, outputs = runner.action("save", **options)
    assert (code, outputs["uploaded"]) == (0, "false") and "::warning title=triton-bundler::" in runner.log
    code, _ = runner.action("save", **options, fail_on_store_error="true")
    assert code == 10 and "::error title=triton-bundler::" in runner.log
    code, outputs = runner.action("restore", **{**options, "store": "nonsense://x"})
    assert code == 2 and outputs["hit"] == "false"


def test_a_required_hit_fails_the_job(runner: Runner, store: str) -> None:
    code, _ = runner.action("restore", store=store, python=sys.executable, key="k", require_hit="true")
    assert code == 10


def test_a_key_cannot_forge_outputs(runner: Runner, store: str) -> None:
    code, outputs = runner.action("restore", store=store, python=sys.executable, key="a\nhit=true")
    assert code == 2 and not outputs["hit"]


@pytest.mark.parametrize("name", ["", "restore", "save"])
def test_every_input_is_used_and_every_output_has_a_source(name: str) -> None:
    text = (ROOT / name / "action.yml").read_text()
    action = yaml.safe_load(text)
    assert all(spec["description"] for spec in (*action["inputs"].values(), *action["outputs"].values()))
    assert [key for key in action["inputs"] if f"inputs.{key} " not in text.replace("}", " ")] == []
    ids = {step.get("id") for step in action["runs"]["steps"]}
    assert {spec["value"].split(".")[1] for spec in action["outputs"].values()} <= ids


# -- the examples ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """An environment with ``triton-bundler`` on the path, and stand-ins for what the examples install or serve."""
    place = tmp_path / "bin"
    place.mkdir()
    test = compile_in("$TRITON_CACHE_DIR", "test")
    start = compile_in("$VLLM_CACHE_ROOT/torch_compile_cache", "a")
    programs = {
        "triton-bundler": f'exec {sys.executable} -m bundler "$@"',
        "python": f'if [ "$2" = pytest ]; then {test}; else exec {sys.executable} "$@"; fi',
        "pip": "exit 0",
        "curl": f"test -e {place}/ready",
        "vllm": f'if [ "$1" = --version ]; then echo 0.20; exit; fi\nrm -f {place}/ready\n{start}\n'
        f"touch {place}/ready\nsleep 3",
    }
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{place}:{os.environ['PATH']}"}


def test_the_gitlab_job_is_warm_the_second_time(tools: dict[str, str], store: str, home: Path, tmp_path: Path) -> None:
    loaded = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    job = {**loaded[".compile-cache"], **loaded["test"]}
    variables = {**tools, **job["variables"], "COMPILE_CACHE_STORE": store}

    def run(**more: str) -> str:
        said = ""
        for part in ([*job["before_script"], *job["script"]], job["after_script"]):  # two shells, as GitLab has it
            done = _bash("\n".join(part), {**variables, **more}, tmp_path)
            assert done.returncode == 0, done.stderr
            said += done.stdout
        return said

    fork = {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "2", "CI_MERGE_REQUEST_PROJECT_ID": "1"}
    assert "read-only: nothing was uploaded" in run(**fork)
    first = run()
    assert "miss: " in first and "saved: " in first
    (home / "triton").rename(home / "gone")
    second = run()
    assert "hit: " in second and "nothing new: " in second


def test_the_dockerfile_restores_what_was_packed(tools: dict[str, str], tmp_path: Path) -> None:
    synthetic_kernel(tmp_path / "triton", "add")
    (tmp_path / "inductor").mkdir()
    (tmp_path / "inductor" / "m.py").write_text("x = 1\n")
    packed = bundler.pack(
        [f"triton={tmp_path / 'triton'}", f"inductor={tmp_path / 'inductor'}"], tmp_path / "warm.tbundle"
    )
    text = re.sub(r"\\\n", " ", (EXAMPLES / "docker" / "Dockerfile").read_text())
    steps = [re.sub(r"^(--\S+ +)*", "", line[4:]) for line in text.splitlines() if line.startswith("RUN ")]
    caches = tmp_path / "opt"
    arguments = {"CACHES": str(caches), "BUNDLE": str(tmp_path / "warm.tbundle")}
    assert set(arguments) <= set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
    for digest in ("", packed.content_digest):
        for step in steps:
            done = _bash(step, {**tools, **arguments, "DIGEST": digest}, tmp_path)
            assert done.returncode == 0, done.stderr
    for name in ("triton", "inductor"):
        assert f"/opt/caches/{name}" in text
        assert bundler.verify_root(f"{name}={caches / name}").ok
    assert _bash(steps[-1], {**tools, **arguments, "DIGEST": "sha256:" + "0" * 64}, tmp_path).returncode == 4


def test_the_init_container_restores_and_never_stops_a_start(tools: dict[str, str], store: str, tmp_path: Path) -> None:
    manifest = yaml.safe_load((EXAMPLES / "kubernetes" / "deployment.yaml").read_text())
    pod = manifest["spec"]["template"]["spec"]
    (init,) = pod["initContainers"]
    variables = {each["name"]: each["value"] for each in init["env"]}
    for each in pod["containers"][0]["env"]:
        assert each["value"].startswith(variables["CACHES"] + "/")
    environment = {**tools, **variables, "CACHES": str(tmp_path / "caches"), "STORE": store}

    def start(**more: str) -> str:
        command = [*init["command"], *init["args"]]
        return subprocess.run(
            command, env={**environment, **more}, check=True, capture_output=True, text=True, timeout=100
        ).stdout

    assert "miss: " in start()
    synthetic_kernel(tmp_path / "triton", "add")
    bundler.save(store, "server-v6", [f"triton={tmp_path / 'triton'}"])
    assert "hit: server-v6" in start()
    assert bundler.verify_root(f"triton={tmp_path / 'caches' / 'triton'}").ok
    assert "starting cold" in start(STORE="nonsense://x")


def test_the_vllm_server_restores_and_saves_once_it_answers(
    tools: dict[str, str], store: str, home: Path, tmp_path: Path
) -> None:
    script = str(EXAMPLES / "vllm" / "serve.sh")

    def serve(**more: str) -> str:
        done = subprocess.run(
            [script, "a/model", "--tensor-parallel-size", "2"],
            env={**tools, "STORE": store, "PATIENCE": "30", **more},
            check=True,
            capture_output=True,
            text=True,
            timeout=100,
        )
        return done.stdout

    first = serve()
    assert "miss: " in first and "saved: " in first
    (home / "vllm").rename(home / "gone")
    second = serve()
    assert "hit: " in second and "nothing new: " in second


def test_the_github_example_names_inputs_that_exist() -> None:
    workflow = yaml.safe_load((EXAMPLES / "github.yml").read_text())
    used = [
        step for job in workflow["jobs"].values() for step in job["steps"] if "triton-bundler" in step.get("uses", "")
    ]
    assert len(used) == 3
    for step in used:
        name = step["uses"].partition("@")[0].partition("triton-bundler")[2].strip("/")
        inputs = yaml.safe_load((ROOT / name / "action.yml").read_text())["inputs"]
        assert step["with"].keys() <= inputs.keys()
        assert all(name in step["with"] for name, spec in inputs.items() if spec.get("required"))


def test_the_examples_are_all_listed() -> None:
    listed = set(re.findall(r"^\| `([^`]+)` ", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    files = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.is_file()}
    assert listed == files - {"README.md"}
