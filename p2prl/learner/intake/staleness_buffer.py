"""Staleness bound: a buffer of verified groups that drops those too stale to train on.

Staleness is measured against the learner's own step, not against the newest rollout processed. Measured against the
newest rollout, a bound of 32 has let rollouts 57 updates old through.
"""

from __future__ import annotations

from collections import deque

from p2prl.learner.intake.verified_group import VerifiedGroup


class RolloutBuffer:
    """Verified groups waiting to be trained on: those it wanted, and a surplus for when too few of them are left."""

    def __init__(self, *, staleness_bound: int, ready_target: int) -> None:
        """`ready_target` is how many verified groups to keep ready; the surplus grows no larger."""
        self._bound = staleness_bound
        self._ready_target = ready_target
        self._groups: deque[VerifiedGroup] = deque()
        self._surplus: list[VerifiedGroup] = []

    def __len__(self) -> int:
        return len(self._groups) + len(self._surplus)

    @property
    def wanted(self) -> int:
        """Groups that are lacking, whatever the surplus: groups that wait for their check are fresher than it is."""
        return max(0, self._ready_target - len(self._groups))

    def add(self, group: VerifiedGroup) -> None:
        """Append a verified group that was wanted."""
        self._groups.append(group)

    def add_surplus(self, group: VerifiedGroup) -> VerifiedGroup | None:
        """Add a group verified beyond what was wanted. Returns the stalest one when there is no room for all."""
        self._surplus.append(group)
        self._surplus.sort(key=lambda each: -each.policy_step)
        return self._surplus.pop() if len(self._surplus) > self._ready_target else None

    def drop_stale(self, step: int) -> list[VerifiedGroup]:
        """Remove and return the groups whose staleness at `step` is above the bound."""
        stale = [group for group in (*self._groups, *self._surplus) if group.staleness(step) > self._bound]
        if stale:
            self._groups = deque(group for group in self._groups if group.staleness(step) <= self._bound)
            self._surplus = [group for group in self._surplus if group.staleness(step) <= self._bound]
        return stale

    def take(self, count: int) -> list[VerifiedGroup]:
        """Remove and return `count` groups, which must exist: the oldest of those wanted, then the newest surplus.

        Call `drop_stale` first.
        """
        assert len(self) >= count
        taken = [self._groups.popleft() for _ in range(min(count, len(self._groups)))]
        missing = count - len(taken)
        taken += self._surplus[:missing]
        del self._surplus[:missing]
        return taken
