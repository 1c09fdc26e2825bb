"""A rollout buffer that delays verified groups, for staleness experiments over real sockets.

Delay is counted in groups, not in seconds: a group is held until a number of others have been verified after it. The
learner's staleness then does not depend on the machine's speed, so busy and idle machines measure the same. Volunteers
notice nothing: their groups are stored, checked and credited at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup


@dataclass(frozen=True, slots=True)
class TaskArrival:
    """Tasks that are asked one after another, each to the end."""

    tasks: tuple[str, ...]
    period: int
    """Updates between two of them."""

    @classmethod
    def parse(cls, text: str) -> TaskArrival:
        """`TASK,TASK:PERIOD`."""
        names, _, period = text.rpartition(":")
        return cls(tuple(names.split(",")), int(period))

    def asked(self, update: int) -> tuple[str, ...]:
        """The tasks of an update, counted from 0."""
        return self.tasks[: update // self.period + 1]


class DelayedBuffer(RolloutBuffer):
    """A rollout buffer whose groups are ready after their delay. Those held when the learner ends are lost."""

    def __init__(self, draw_groups: Callable[[], int], arrival: TaskArrival | None = None, **settings: Any) -> None:
        """`draw_groups` gives each group's delay: how many others must come after it, 0 or more. Groups of tasks that
        are not asked yet when they are verified are credited alone. `settings` are those of a rollout buffer."""
        super().__init__(**settings)
        self._draw_groups = draw_groups
        self._arrival = arrival
        self._step = 0
        self._came = 0
        self._held: list[tuple[int, int, VerifiedGroup]] = []

    def add(self, group: VerifiedGroup) -> None:
        """Hold a verified group, and release those that are due."""
        if self._arrival is not None and group.group.task not in self._arrival.asked(self._step):
            return
        self._came += 1
        heapq.heappush(self._held, (self._came + self._draw_groups(), self._came, group))
        while self._held and self._held[0][0] <= self._came:
            super().add(heapq.heappop(self._held)[2])

    def add_surplus(self, group: VerifiedGroup) -> VerifiedGroup | None:
        """The same: whether a group is wanted is seen only after its delay."""
        self.add(group)
        return None

    def take(self, count: int, *, step: int = 0) -> list[VerifiedGroup]:
        """See `RolloutBuffer`."""
        self._step = step
        return super().take(count, step=step)
