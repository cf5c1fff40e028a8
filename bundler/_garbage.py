"""Python's garbage collector, kept from looking through tables while they are made.

It looks at every object each time that some hundred more were made than freed, and tables of files are made of tens of
thousands that live on: for 10,000 kernels that was a fifth of a pack, and none of it found anything to free.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["relax", "uncollected"]

P = ParamSpec("P")
T = TypeVar("T")


def uncollected(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that makes a large table run without the collector: it is short, and may be in anybody's process.

    Other threads are without it too for as long; where it was off already, it stays off.
    """

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments, **named)
        finally:
            if was_on:
                gc.enable()

    return call


def relax() -> None:
    """Let the collector of a process of our own look less often; what a command makes is freed without it."""
    gc.set_threshold(50_000, 20, 100)
