"""Clients of the processes that measure: the launcher of commands, and workers that hold Python functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


class BenchError(Exception):
    """Something that was to be measured did not work."""


@dataclass
class Sample:
    """What one run of one side gave; what does not apply is None. Seconds; bytes; counts."""

    seconds: float
    cpu: float | None = None
    peak: int | None = None
    size: int | None = None
    files: int | None = None
    calls: int | None = None


def child_environment(**changes: str) -> dict[str, str]:
    """Return the environment of what is measured: this checkout comes first, byte code is kept, nothing talks."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "TRITON_BUNDLER", "TORCHINDUCTOR_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped and not name.startswith("COV")}
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(REPOSITORY) not in paths:  # what stands before it was put there on purpose
        paths.append(str(REPOSITORY))
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **changes}


class _Lines:
    """A process that answers one JSON object with another, a line each."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
        )

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise BenchError(f"{self._process.args!r} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class Launcher(_Lines):
    """Runs pipelines of commands in new processes, and measures time, processor time and peak memory of each run."""

    def __init__(self, work: Path) -> None:
        super().__init__([sys.executable, "-I", "-S", str(HERE / "launcher.py")], child_environment())
        self._errors = work / "stderr.txt"
        self._environment = child_environment()

    def run(
        self,
        *stages: Sequence[str | Path],
        stdout: Path | None = None,
    ) -> Sample:
        """Run a pipeline. The peak is the sum over its processes, which live at the same time.

        Raises:
            BenchError: A process ends with anything but 0.
        """
        request = {
            "stages": [[str(part) for part in stage] for stage in stages],
            "stdout": str(stdout) if stdout else None,
            "stderr": str(self._errors),
            "env": self._environment,
        }
        answer = self.ask(request)
        if any(answer["codes"]):
            text = self._errors.read_text(errors="replace")[-2000:]
            raise BenchError(f"{request['stages']} ended with {answer['codes']}: {text}")
        return Sample(answer["seconds"], answer["cpu"], sum(answer["peaks"]))


class Worker(_Lines):
    """Holds imported modules, and runs functions of ``worker.py`` that time themselves."""

    def __init__(self, *, torch: bool = False) -> None:
        module = "worker_torch" if torch else "worker"
        program = [sys.executable, "-W", "ignore", "-c", f"from bench_kit.{module} import serve; serve()"]
        paths = os.pathsep.join([child_environment()["PYTHONPATH"], str(HERE.parent)])
        super().__init__(program, child_environment(PYTHONPATH=paths))

    def call(self, function: str, /, **arguments: Any) -> dict[str, Any]:
        """Run a function; paths are passed as text."""
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        return self.ask({"function": function, "arguments": plain})

    def measure(self, function: str, /, **arguments: Any) -> Sample:
        """Run a function that answers with the fields of a sample."""
        answer = self.call(function, **arguments)
        return Sample(**{name: answer[name] for name in Sample.__dataclass_fields__ if name in answer})
