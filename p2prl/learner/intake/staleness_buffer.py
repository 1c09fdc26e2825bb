"""Staleness bound: a FIFO buffer of verified groups that drops those too stale to train on.

Staleness is measured against the learner's own step, not against the newest rollout processed. Measured against the
newest rollout, a bound of 32 has let rollouts 57 updates old through.
"""

from __future__ import annotations

from collections import deque

from p2prl.learner.intake.verified_group import VerifiedGroup


class RolloutBuffer:
    """Verified groups waiting to be trained on."""

    def __init__(self, *, staleness_bound: int) -> None:
        self._bound = staleness_bound
        self._groups: deque[VerifiedGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: VerifiedGroup) -> None:
        """Append a verified group."""
        self._groups.append(group)

    def drop_stale(self, step: int) -> list[VerifiedGroup]:
        """Remove and return the groups whose staleness at `step` is above the bound."""
        stale = [group for group in self._groups if group.staleness(step) > self._bound]
        if stale:
            self._groups = deque(group for group in self._groups if group.staleness(step) <= self._bound)
        return stale

    def take(self, count: int) -> list[VerifiedGroup]:
        """Remove and return the oldest `count` groups, which must exist. Call `drop_stale` first."""
        assert len(self._groups) >= count
        return [self._groups.popleft() for _ in range(count)]
