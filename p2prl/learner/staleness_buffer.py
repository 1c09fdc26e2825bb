"""Verified groups waiting to be trained on, bounded by staleness against the learner's own step.

The bound is against the learner's step, not against the newest rollout processed: measured the other way, a bound of
32 has let rollouts 57 updates old through.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from p2prl.protocol.digests import Digest


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A verified group by its name; tensors are made when it is trained on."""

    digest: Digest
    peer: bytes
    policy_step: int
    """Learner step at which the policy it was sampled with was published."""
    reward: float

    def staleness(self, step: int) -> int:
        """Learner updates between the policy it was sampled with and now."""
        return step - self.policy_step


class RolloutBuffer:
    """First in, first out; nothing older than the bound ever leaves it into a batch."""

    def __init__(self, *, staleness_bound: int) -> None:
        self._bound = staleness_bound
        self._groups: deque[ReadyGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: ReadyGroup) -> None:
        """Append a verified group."""
        self._groups.append(group)

    def drop_stale(self, step: int) -> list[ReadyGroup]:
        """Remove and return the groups that have grown older than the bound."""
        stale = [group for group in self._groups if group.staleness(step) > self._bound]
        if stale:
            self._groups = deque(group for group in self._groups if group.staleness(step) <= self._bound)
        return stale

    def take(self, count: int) -> list[ReadyGroup]:
        """Remove and return the oldest `count` groups, which must be there; `drop_stale` comes first."""
        assert len(self._groups) >= count
        return [self._groups.popleft() for _ in range(count)]
