"""Compile caches of ``torch.compile`` (Inductor) and Triton as one file that can be trusted, and back.

Importing this package loads nothing else of it, and never torch or Triton; a name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bundler.bundle import pack, repair, unpack

__all__ = ["__version__", "pack", "repair", "unpack"]

__version__ = "0.1.0"

_HOMES = {
    "pack": "bundler.bundle",
    "repair": "bundler.bundle",
    "unpack": "bundler.bundle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
