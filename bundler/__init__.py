"""Compile caches of ``torch.compile`` (Inductor) and Triton as one file that can be trusted, and back.

Importing this package loads nothing else of it, and never torch or Triton; a name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bundler.bundle import repair, unpack
    from bundler.caching import restore, save
    from bundler.difference import diff
    from bundler.exporting import export
    from bundler.integrations.capturing import capture
    from bundler.integrations.inductor import disable, enable, stats
    from bundler.keys import make_key
    from bundler.listing import inspect
    from bundler.merging import merge
    from bundler.packing import pack
    from bundler.remote import pull, push
    from bundler.running import run
    from bundler.triton_bundler import TritonBundler
    from bundler.verifying import verify, verify_root

__all__ = [
    "TritonBundler",
    "__version__",
    "capture",
    "diff",
    "disable",
    "enable",
    "export",
    "inspect",
    "make_key",
    "merge",
    "pack",
    "pull",
    "push",
    "repair",
    "restore",
    "run",
    "save",
    "stats",
    "unpack",
    "verify",
    "verify_root",
]

__version__ = "0.1.0"

_HOMES = {
    "TritonBundler": "bundler.triton_bundler",
    "capture": "bundler.integrations.capturing",
    "diff": "bundler.difference",
    "disable": "bundler.integrations.inductor",
    "enable": "bundler.integrations.inductor",
    "export": "bundler.exporting",
    "inspect": "bundler.listing",
    "make_key": "bundler.keys",
    "merge": "bundler.merging",
    "pack": "bundler.packing",
    "pull": "bundler.remote",
    "push": "bundler.remote",
    "repair": "bundler.bundle",
    "restore": "bundler.caching",
    "run": "bundler.running",
    "save": "bundler.caching",
    "stats": "bundler.integrations.inductor",
    "unpack": "bundler.bundle",
    "verify": "bundler.verifying",
    "verify_root": "bundler.verifying",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
