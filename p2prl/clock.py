"""Time as an argument: the clock port, its system adapter and backoff arithmetic.

Cores never read a clock. A shell owns one and hands `now` (seconds since the Unix epoch) to the cores it drives; the
simulator hands them virtual time instead.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell reads time."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...


class SystemClock:
    """The wall clock, made monotonic: it never steps back while the process lives.

    A volunteer's clock may be corrected under us; deadlines computed from `now` must not run twice because of it.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


class Uniform(Protocol):
    """The one source of randomness a core may be given; `random.Random` satisfies it."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


def backoff_s(attempt: int, *, base_s: float, cap_s: float, rng: Uniform) -> float:
    """Full-jitter exponential backoff: uniform in [0, min(cap, base·2^attempt)], seconds.

    Full jitter, because volunteers that lost the same peer at the same moment must not come back at the same moment.
    """
    return rng.random() * min(cap_s, base_s * 2.0 ** min(attempt, 32))
