"""Programs that fill real compile caches, each to be run in a process of its own; shipped for the demo and the tests.

``compile_triton.py`` compiles the kernels of ``kernels.py`` for GPUs that need not be there; ``compile_torch.py`` takes
a training step under ``torch.compile`` on the CPU. Each prints one JSON object as its last line.

The programs import torch and Triton, which only ``integrations`` may do otherwise: they are run, never imported, and
``tests/test_layers.py`` exempts them. This module imports neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["COMPILE_TORCH", "COMPILE_TRITON", "ProgramError", "run"]

_HERE = Path(__file__).parent
COMPILE_TORCH = _HERE / "compile_torch.py"
COMPILE_TRITON = _HERE / "compile_triton.py"


class ProgramError(RuntimeError):
    """A program ended with another status than 0, or printed no JSON object. The text holds all its output."""


def run(program: Path, arguments: Sequence[str] = (), *, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run ``program`` with this interpreter, and return the JSON object that it prints.

    Args:
        program: :data:`COMPILE_TORCH`, :data:`COMPILE_TRITON`, or another that ends with a line of JSON.
        arguments: Its command line.
        env: Variables to set on top of this process's own; a value of "" unsets.

    Raises:
        ProgramError: It failed.
    """
    variables = {name: value for name, value in {**os.environ, **(env or {})}.items() if value}
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise ProgramError(f"{program.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report
