"""How users see what the hook does: torch's counters, an artifact for tlparse, and the log."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundler.hit import compile_seconds
from bundler.model import GROUP_PREFIX, Index, Unit

__all__ = ["COUNTERS", "Summary", "count", "set_up_log", "summarize", "trace", "warn_once"]

log = logging.getLogger("bundler")

COUNTERS: Mapping[str, str] = {
    "bundler_collect": "blobs made",
    "bundler_collect_kernels": "kernels in them",
    "bundler_collect_host_binaries": "host binaries beside these",
    "bundler_collect_bytes": "their bytes",
    "bundler_collect_us": "microseconds that took",
    "bundler_emit": "blobs restored, or found to be installed already",
    "bundler_emit_kernels": "kernels written",
    "bundler_emit_unchanged": "kernels that were there already",
    "bundler_emit_host_binaries": "host binaries written",
    "bundler_emit_host_binaries_unusable": "host binaries that are of no use here, and were left out",
    "bundler_emit_bytes": "bytes written",
    "bundler_emit_us": "microseconds that took",
    "bundler_saved_us": "microseconds of compiling that the restored blobs stand for",
    "bundler_failures": "blobs that could not be made or restored",
    "bundler_missing_binaries": "binaries that a launcher names and that are in no blob",
}
"""What is counted under ``torch._dynamo.utils.counters["inductor"]``."""

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_MARK = "of_bundler"  # attribute of our handlers
_MAX_WARNINGS = 1000  # distinct ones remembered; a process that has more says them twice
_said: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning, the first time that it is said in this process."""
    if message not in _said:
        if len(_said) >= _MAX_WARNINGS:
            _said.clear()
        _said.add(message)
        log.warning("%s", message)


def count(amounts: Mapping[str, int]) -> None:
    """Add to the counters of Inductor; names are those of ``COUNTERS``, or torch's own."""
    from torch._dynamo.utils import counters

    for name, amount in amounts.items():
        counters["inductor"][name] += amount


def trace(name: str, payload: Mapping[str, object]) -> None:
    """Leave a JSON artifact in torch's structured trace, which tlparse shows (``TORCH_TRACE=directory``)."""
    from torch._logging import trace_structured

    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: json.dumps(payload, indent=1),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a blob says of itself: names of kernels, (device, path key) of each, seconds of compiling it stands for.

    ``files`` are those of the kernels; ``host_binaries`` is how many lie beside them.
    """

    names: Sequence[str]
    identities: frozenset[tuple[int, str]]
    files: int
    host_binaries: int
    compile_seconds: float


def summarize(index: Index) -> Summary:
    """Say what the index of a blob holds."""
    kernels = [entry for entry in index.entries if entry.unit is Unit.KERNEL]
    names = [
        artifact.name[len(GROUP_PREFIX) :].removesuffix(".json")
        for entry in kernels
        for artifact in entry.artifacts
        if artifact.name.startswith(GROUP_PREFIX)
    ]
    return Summary(
        names=names,
        identities=frozenset((int(entry.root), entry.path) for entry in kernels),
        files=sum(len(entry.artifacts) for entry in kernels),
        host_binaries=sum(entry.unit is Unit.HOST_BINARY for entry in index.entries),
        compile_seconds=compile_seconds(index),
    )


def set_up_log(setting: str) -> None:
    """Carry out ``TRITON_BUNDLER_LOG``: a level, which then goes to stderr, or the path of a file to append to."""
    if not setting:
        return
    for handler in [handler for handler in log.handlers if getattr(handler, _MARK, False)]:
        log.removeHandler(handler)
        handler.close()
    is_level = setting.upper() in _LEVELS or setting.isdecimal()
    if is_level:
        log.setLevel(int(setting) if setting.isdecimal() else setting.upper())
        if log.hasHandlers():  # the program says where logs go
            return
    try:
        handler = logging.StreamHandler(sys.stderr) if is_level else logging.FileHandler(os.path.abspath(setting))
    except OSError as error:
        warn_once(f"TRITON_BUNDLER_LOG: cannot write {setting}: {error}")
        return
    if not is_level:
        log.setLevel(logging.DEBUG)
    setattr(handler, _MARK, True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(name)s %(levelname)s %(message)s"))
    log.addHandler(handler)
