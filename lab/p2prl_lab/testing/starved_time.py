"""Time as the processes of a busy machine have it: it passes slowly while they wait for a processor that others use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Tasks = Mapping[str, tuple[int, int]]
"""(nanoseconds it ran, nanoseconds it waited for a processor) of each thread, by a name for it."""

LEAST_SHARE = 0.02
"""A second lasts fifty at most: else a swarm that spins on a starved machine would never be given up."""

_LEAST_DEMAND = 0.02
"""Processors asked for, below which the processes are idle, whatever little they wait."""

_LOOK_S = 2.0


def granted_share(before: Tasks, after: Tasks, seconds: float) -> float:
    """Share of the processor time that the threads asked for in `seconds` and got; 1 for those that asked for none.

    Threads that began meanwhile count from their beginning.
    """
    ran = waited = 0
    for name, (ran_after, waited_after) in after.items():
        ran_before, waited_before = before.get(name, (0, 0))
        ran += ran_after - ran_before
        waited += waited_after - waited_before
    if ran + waited < _LEAST_DEMAND * seconds * 1e9:
        return 1.0
    return max(LEAST_SHARE, ran / (ran + waited))


class StarvedTime:
    """A clock for limits on waiting: a second counts by the share of the processor time that the processes got."""

    def __init__(self, tasks: Callable[[], Tasks], now: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._now = now
        self._seen, self._at = tasks(), now()
        self._elapsed = 0.0

    def __call__(self) -> float:
        """Seconds that have counted so far. It moves in steps of two seconds and more."""
        if (seconds := self._now() - self._at) >= _LOOK_S:
            before, self._seen, self._at = self._seen, self._tasks(), self._now()
            self._elapsed += seconds * granted_share(before, self._seen, seconds)
        return self._elapsed


def threads_of(processes: Iterable[int]) -> Tasks:
    """What Linux counts of the threads of these processes, by their ids; empty on other systems."""
    found: dict[str, tuple[int, int]] = {}
    for process in processes:
        for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):
                ran, waited, _ = file.read_text().split()
                found[file.parent.name] = (int(ran), int(waited))
    return found
