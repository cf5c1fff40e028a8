"""When to try again: exponential back-off with jitter, up to a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

__all__ = ["DEADLINE", "DamageError", "Retry", "TransientError"]

T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after the first failure of a request during which it is tried again."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt; each pause is twice the one before."""

LONGEST_PAUSE = 5.0
"""Seconds that a pause never exceeds."""

DAMAGED_ATTEMPTS = 3
"""Attempts at bytes that arrive whole and wrong. Noise passes; what is stored wrong stays wrong."""


class TransientError(Exception):
    """A request failed in a way that may pass. Raised by adapters; never leaves a store."""


class DamageError(TransientError):
    """Bytes arrived, or were stored, that are not the ones meant."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy. ``clock`` and ``sleep`` count seconds; ``spread`` gives the random part, from 0 to 1."""

    deadline: float = DEADLINE
    first_pause: float = FIRST_PAUSE
    longest_pause: float = LONGEST_PAUSE
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    spread: Callable[[], float] = field(default=random.random, repr=False)

    def with_deadline(self, seconds: float) -> Retry:
        """Return this policy with another deadline; 0 means one attempt."""
        return replace(self, deadline=seconds)

    def run(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it raises no ``TransientError``, or time is up.

        The clock starts at the first failure: an upload that takes longer than the deadline still gets a second try.

        Raises:
            TransientError: The last one.
        """
        failures = damaged = 0
        started = 0.0
        while True:
            try:
                return attempt()
            except TransientError as error:
                now = self.clock()
                started = started if failures else now
                damaged += isinstance(error, DamageError)
                pause = self.pause(failures)
                failures += 1
                if damaged >= DAMAGED_ATTEMPTS or now - started + pause > self.deadline:
                    raise
            self.sleep(pause)

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after ``failures`` earlier ones: half fixed, half random.

        The random half keeps clients apart that failed together.
        """
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(failures, 32))
        return longest * (0.5 + 0.5 * self.spread())
