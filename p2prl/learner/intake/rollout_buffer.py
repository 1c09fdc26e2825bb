"""Staleness bound: a buffer of verified groups that drops those too stale to train on.

Staleness is measured against the learner's own step, not against the newest rollout processed. Measured against the
newest rollout, a bound of 32 has let rollouts 57 updates old through. What a batch may hold of one identity and of
newcomers is `batch_caps`; a group that is passed over stays for a later batch, and is credited either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from p2prl.learner.intake.batch_caps import NEWCOMER_PERCENT, BatchChoice, Contributor
from p2prl.learner.intake.dynamic_sampling import DynamicSampling
from p2prl.learner.intake.lost_work import GroupFacts, LostWork
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.protocol.rollout_group import RolloutGroup


def _newcomer(peer: bytes) -> Contributor:
    """Everybody is a newcomer of its own."""
    return Contributor(peer, is_known=False)


class RolloutBuffer:
    """Verified groups waiting to be trained on: those it wanted, and a surplus for when too few of them are left."""

    def __init__(
        self,
        *,
        staleness_bound: int,
        ready_target: int,
        contributor: Callable[[bytes], Contributor] = _newcomer,
        sampling: DynamicSampling | None = None,
    ) -> None:
        """`ready_target` is how many verified groups to keep ready; the surplus grows no larger. `contributor` says
        whom a peer's groups count for, now; `sampling`, which are not trained on, none by default."""
        self._bound = staleness_bound
        self._ready_target = ready_target
        self._contributor = contributor
        self._sampling = sampling or DynamicSampling()
        self._choice = BatchChoice()
        self._groups: deque[VerifiedGroup] = deque()
        self._surplus: list[VerifiedGroup] = []
        self._work = LostWork()

    def __len__(self) -> int:
        return len(self._groups) + len(self._surplus)

    @property
    def figures(self) -> dict[str, float]:
        """What was lost and how it differs from what was trained on, as keys of the metrics log."""
        return self._work.figures | self._sampling.figures

    @property
    def sampling_s(self) -> float:
        """Seconds that nearly all groups are sampled in; see `LostWork.sampling_s`."""
        return self._work.sampling_s

    def expired(self, group: RolloutGroup, peer: bytes) -> None:
        """A group was too stale when its turn came, or when it arrived: it is never checked."""
        self._work.lost(GroupFacts.of(group, peer))

    @property
    def wanted(self) -> int:
        """Groups that are lacking, whatever the surplus: groups that wait for their check are fresher than it is."""
        return max(0, self._ready_target - len(self._groups))

    @property
    def wanted_of_known(self) -> int:
        """Groups of known peers that are lacking, if any such wait: newcomers' groups beyond their places do not fill
        the buffer, or a crowd of them would keep the others' out. At least `wanted`."""
        newcomers = sum(not self._contributor(group.peer).is_known for group in self._groups)
        places = NEWCOMER_PERCENT * self._ready_target // 100
        return (
            self.wanted if newcomers <= places else max(0, self._ready_target - len(self._groups) + newcomers - places)
        )

    def leave_out(self, group: VerifiedGroup, *, surplus: bool = False) -> bool:
        """Whether a verified group is not trained on, because it teaches nothing; then it must not be added."""
        return self._sampling.leave_out(group, surplus=surplus)

    def add(self, group: VerifiedGroup) -> None:
        """Append a verified group that was wanted."""
        self._groups.append(group)

    def add_surplus(self, group: VerifiedGroup) -> VerifiedGroup | None:
        """Add a group verified beyond what was wanted. Returns the stalest one when there is no room for all."""
        self._surplus.append(group)
        self._surplus.sort(key=lambda each: -each.policy_step)
        if len(self._surplus) <= self._ready_target:
            return None
        dropped = self._surplus.pop()
        self._work.lost(_facts(dropped))
        return dropped

    def drop_stale(self, step: int) -> list[VerifiedGroup]:
        """Remove and return the groups whose staleness at `step` is above the bound."""
        stale = [group for group in (*self._groups, *self._surplus) if group.staleness(step) > self._bound]
        if stale:
            self._groups = deque(group for group in self._groups if group.staleness(step) <= self._bound)
            self._surplus = [group for group in self._surplus if group.staleness(step) <= self._bound]
        for group in stale:
            self._work.lost(_facts(group))
        return stale

    def take(self, count: int, *, step: int = 0) -> list[VerifiedGroup]:
        """Remove and return `count` groups, which must exist, for the update that starts at `step`.

        Within the caps: the oldest of those wanted, then the newest surplus. Call `drop_stale` first.
        """
        self._sampling.batch_taken()
        ready = [*self._groups, *self._surplus]
        contributors = [self._contributor(group.peer) for group in ready]
        chosen = self._choice.choose(contributors, count, step=step)
        taken = set(chosen)
        wanted = len(self._groups)
        self._groups = deque(group for index, group in enumerate(ready[:wanted]) if index not in taken)
        self._surplus = [group for index, group in enumerate(ready[wanted:], wanted) if index not in taken]
        batch = [ready[index] for index in chosen]
        for group in batch:
            self._work.trained(_facts(group))
        return batch


def _facts(group: VerifiedGroup) -> GroupFacts:
    return GroupFacts.of(group.group, group.peer, tuple(np.frombuffer(group.rewards, dtype="<f4").tolist()))
