"""Starts commands and measures them: a process of its own, as small as Python can be.

A child inherits the peak memory of whoever forked it, so that peaks below the launcher's own cannot be seen; run as
``python -I -S launcher.py`` that is some 10 MB, and it is reported. One JSON object a line comes in (``stages``: the
commands of a pipeline; ``stdout`` and ``stderr``: files; ``env``), and one goes out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one pipeline; times count from before the first start until the last process has ended."""
    stages = request["stages"]
    source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    sink = os.open(request.get("stdout") or os.devnull, _WRITE, 0o644)
    errors = os.open(request["stderr"], _WRITE, 0o644)
    pids, incoming = [], source
    started = time.perf_counter()
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        reading, writing = (-1, sink) if last else os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, incoming, 0), (os.POSIX_SPAWN_DUP2, writing, 1)]
        actions.append((os.POSIX_SPAWN_DUP2, errors, 2))
        pids.append(os.posix_spawnp(stage[0], stage, request["env"], file_actions=actions))
        os.close(incoming)
        os.close(writing)
        incoming = reading
    os.close(errors)
    codes, peaks, cpu = [], [], 0.0
    for pid in pids:
        _, status, usage = os.wait4(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status))
        peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        cpu += usage.ru_utime + usage.ru_stime
    return {"seconds": time.perf_counter() - started, "codes": codes, "peaks": peaks, "cpu": cpu}


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
