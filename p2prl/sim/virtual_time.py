"""Virtual time: a heap of actions, run in order of time and, at equal times, in the order they were scheduled."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

START = 1_800_000_000.0
"""Start of virtual time, seconds since the Unix epoch: a real date, so that envelopes and records are not expired."""

Action = Callable[[], None]


class VirtualLoop:
    """Runs actions at their virtual times and never sleeps."""

    def __init__(self) -> None:
        self.now = START
        self._queue: list[tuple[float, int, Action]] = []
        self._sequence = itertools.count()
        self.steps = 0
        """Actions run so far."""

    def at(self, when: float, action: Action) -> None:
        """Run `action` at virtual time `when`; a time in the past means now, after the actions already due."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._sequence), action))

    def run_until(self, when: float, *, after_each: Action | None = None) -> None:
        """Run everything due up to and including `when`, then set the time to `when`."""
        queue = self._queue
        while queue and queue[0][0] <= when:
            self.now, _, action = heapq.heappop(queue)
            self.steps += 1
            action()
            if after_each is not None:
                after_each()
        self.now = max(self.now, when)


class LoopClock:
    """A clock that shows virtual time without error."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.now
