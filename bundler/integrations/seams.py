"""What torch must look like for the hook to join it: names, parameters and fields. Looked at before it is changed.

Read in torch 2.9 to 2.15. ``put_winner`` came with 2.12; assertions became exceptions in 2.14; up to 2.7
``collect`` returned a bare list, and there is nothing to join.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["MODULE", "OPTIONAL", "REQUIRED", "STATE", "missing"]

MODULE = "torch._inductor.triton_bundler"

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "begin_compile": (),
    "end_compile": (),
    "put": ("kernel_hash", "device"),
    "collect": (),
    "read_and_emit": ("bundle",),
}
"""Methods of torch's class that are joined, with their parameters."""

OPTIONAL: Mapping[str, tuple[str, ...]] = {"put_winner": ("kernel_hash",), "put_static_autotuner": ("key", "kernel")}
"""Joined where they are; a torch without them has no such thing to tell."""

STATE = ("_entries", "_static_autotuners", "_winners")
"""What torch keeps on its class for the compile under way; the first is needed."""

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "TritonBundle": ("kernel_artifacts", "static_autotuners"),
    "TritonBundlerMetadata": ("cached_kernel_names",),
    "TritonKernelArtifacts": ("kernel_hash", "device", "artifacts"),
    "TritonKernelArtifact": ("filename", "payload"),
}


def missing(module: Any) -> str:
    """Name the first thing about torch's bundler that is not as expected; "" when all is."""
    for name, fields in _FIELDS.items():
        cls = getattr(module, name, None)
        has = {field.name: field.init for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
        for field in fields:
            if not has.get(field):  # there is no making one, or replacing what it holds
                return f"{name}.{field}"
    if not callable(getattr(module, "triton_cache_dir", None)):
        return "triton_cache_dir()"
    bundler = getattr(module, "TritonBundler", None)
    if STATE[0] not in getattr(bundler, "__dict__", {}):
        return f"TritonBundler.{STATE[0]}"
    if getattr(bundler, "_REPLACE_BYTES", None) != b"[REPLACE]":
        return "TritonBundler._REPLACE_BYTES"
    for name, parameters in {"is_enabled": (), **REQUIRED}.items():
        if not _takes(bundler, name, parameters):
            return f"TritonBundler.{name}({', '.join(parameters)})"
    for name, parameters in OPTIONAL.items():
        if hasattr(bundler, name) and not _takes(bundler, name, parameters):
            return f"TritonBundler.{name}({', '.join(parameters)})"
    return ""


def _takes(cls: Any, name: str, parameters: tuple[str, ...]) -> bool:
    """Whether a class or static method takes just these parameters; others may follow when they have defaults."""
    if not isinstance(cls.__dict__.get(name), (classmethod, staticmethod)):
        return False
    found = list(inspect.signature(getattr(cls, name)).parameters.values())
    names = tuple(parameter.name for parameter in found)
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    rest = found[len(parameters) :]
    return names[: len(parameters)] == parameters and all(
        parameter.default is not inspect.Parameter.empty or parameter.kind in free for parameter in rest
    )
