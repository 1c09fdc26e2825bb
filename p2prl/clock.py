"""The clock port, the system clock and backoff delays.

State machines never read a clock. The service that drives them owns one and passes `now` (seconds since the Unix epoch)
as an argument; the simulator passes virtual time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...


_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that never steps back and goes on while the machine sleeps: on Linux `CLOCK_BOOTTIME`, on macOS
`CLOCK_MONOTONIC`. `time.monotonic` does not go on: a laptop that slept for an hour would find everything that its peers
sign an hour too early, and never learn of a new policy or a receipt again."""


class SystemClock:
    """The wall clock at the start, then steady: it never steps back while the process lives, and counts sleep.

    A volunteer's clock may be adjusted at any time, which must not make deadlines computed from `now` fire twice.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.clock_gettime(_STEADY)

    def now(self) -> float:
        return time.clock_gettime(_STEADY) + self._offset


class Uniform(Protocol):
    """Source of randomness for a state machine; `random.Random` satisfies it."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...


def backoff_s(attempt: int, *, base_s: float, cap_s: float, rng: Uniform) -> float:
    """Full-jitter exponential backoff: uniform in [0, min(cap, base·2^attempt)], seconds.

    Full jitter, so that volunteers that lost the same peer at the same time do not all reconnect at the same time.
    """
    return rng.random() * min(cap_s, base_s * 2.0 ** min(attempt, 32))
