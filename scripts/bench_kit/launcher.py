"""Starts commands and measures them: a process of its own, as small as Python can be.

A child inherits the peak memory of whoever forked it, so that peaks below the launcher's own cannot be seen; run as
``python -I -S launcher.py`` that is some 10 MB, and it is reported. One JSON object a line comes in (``stages``: the
commands of a pipeline; ``stdout`` and ``stderr``: files; ``env``), and one goes out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one pipeline; times count from before the first start until the last process has ended."""
    sink = os.open(request.get("stdout") or os.devnull, _WRITE, 0o644)
    errors = os.open(request["stderr"], _WRITE, 0o644)
    pids: list[int] = []
    started = time.perf_counter()
    try:
        _start(request["stages"], request["env"], sink, errors, pids)
    except OSError:
        for pid in pids:  # a writer would wait for ever for a reader that is not there
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    finally:
        os.close(sink)
        os.close(errors)
    codes, peaks, cpu = [], [], 0.0
    for pid in pids:
        _, status, usage = os.wait4(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status))
        peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        cpu += usage.ru_utime + usage.ru_stime
    return {"seconds": time.perf_counter() - started, "codes": codes, "peaks": peaks, "cpu": cpu}


def _start(stages: list[list[str]], environment: dict[str, str], sink: int, errors: int, pids: list[int]) -> None:
    """Start each command with the output of the one before as its input; their ids go to ``pids`` as they start."""
    incoming = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for number, stage in enumerate(stages):
        reading, writing = os.pipe() if number < len(stages) - 1 else (-1, os.dup(sink))
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate((incoming, writing, errors))]
        try:
            pids.append(os.posix_spawnp(stage[0], stage, environment, file_actions=actions))
        except OSError:
            if reading >= 0:
                os.close(reading)
            raise
        finally:
            os.close(incoming)
            os.close(writing)
        incoming = reading


def main() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except OSError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
