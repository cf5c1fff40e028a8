"""The machine and its tools: what stands beside every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_TOOLS = {"tar": "tar", "zstd": "zstd", "gzip": "gzip", "cp": "coreutils"}  # command -> Debian's package


def missing_tools() -> str:
    """Return what has to be installed first; empty when all is there."""
    missing = [name for name in _TOOLS if not shutil.which(name)]
    return f"{', '.join(missing)} (Debian: apt-get install {' '.join(_TOOLS[name] for name in missing)})" * bool(
        missing
    )


def facts(work: Path) -> dict[str, Any]:
    """Return what the figures depend on."""
    versions = {}
    for name in ("zstandard", "msgpack", "click", "torch", "triton"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _first_line(["stat", "-f", "-c", "%T", str(work)]),
        "python": platform.python_version(),
        **versions,
        "zstd": _first_line(["zstd", "--version"]),
        "tar": _first_line(["tar", "--version"]),
        "gzip": _first_line(["gzip", "--version"]),
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
    }


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return "none"
    return (done.stdout or done.stderr).strip().partition("\n")[0].strip("* ")


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
