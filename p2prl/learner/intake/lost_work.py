"""Lost work: how the groups that grew too stale differ from those trained on, by length, time and reward. Pure.

What is dropped for its age is not a random part of the work: long completions of slow machines arrive last. A run that
drops them trains on the short and easy ones, and no other figure shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from p2prl.protocol import limits
from p2prl.protocol.rollout_group import RolloutGroup

_RECENT = 512
"""Groups of each kind to compare: some dozens of updates."""

_BYTES_PER_TOKEN = 4

_MOST_SECONDS = float(limits.MAX_ENVELOPE_AGE_S)
"""Longest time that a group may claim to have taken: an older one does not arrive."""

_MOST_REWARD = 1e6
"""Largest reward, and −1 times the smallest, that counts. Groups that were never checked claim theirs: any finite
number, and the sum of two may be none."""

_MOST_PEERS = 0.9
"""Share of the peers that pacing waits for; the slowest tenth may be machines that fell asleep."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is compared of a group."""

    tokens: float
    """Mean length of its completions."""
    seconds: float
    """Time its author says that it took."""
    peer: bytes
    reward: float
    """Mean reward: the learner's, or its author's claim where the group was never checked."""

    @classmethod
    def of(cls, group: RolloutGroup, peer: bytes, rewards: tuple[float, ...] = ()) -> GroupFacts:
        """Facts of a group; without the learner's `rewards`, those that its author claims."""
        sizes = [len(completion.tokens) / _BYTES_PER_TOKEN for completion in group.completions]
        claimed = [completion.reward for completion in group.completions]
        reward = _mean([_within(each, -_MOST_REWARD, _MOST_REWARD) for each in rewards or claimed])
        return cls(_mean(sizes), _within(group.seconds, 0.0, _MOST_SECONDS), peer, reward)


def _within(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _mean(values: Sequence[float]) -> float:
    """The mean; 0 of none."""
    return fmean(values) if values else 0.0


class LostWork:
    """The newest groups trained on and the newest lost, and how many were lost since the start."""

    def __init__(self) -> None:
        self._trained: deque[GroupFacts] = deque(maxlen=_RECENT)
        self._lost: deque[GroupFacts] = deque(maxlen=_RECENT)
        self._recent: deque[tuple[bool, bytes]] = deque(maxlen=_RECENT)
        """Of the newest groups of both kinds, whether each was lost, and its peer."""
        self._count = 0

    def trained(self, group: GroupFacts) -> None:
        """A group is in the batch of an update."""
        self._trained.append(group)
        self._recent.append((False, group.peer))

    def lost(self, group: GroupFacts) -> None:
        """A group grew too stale, or too many waited."""
        self._lost.append(group)
        self._recent.append((True, group.peer))
        self._count += 1

    @property
    def sampling_s(self) -> float:
        """Seconds in which nine of ten peers sample even their slowest group; 0 while nothing is lost.

        Counts peers whose groups are trained on: what others say of groups that nobody checked must not slow the
        learner down.
        """
        slowest = {each.peer: 0.0 for each in self._trained}
        if not any(is_lost and peer in slowest for is_lost, peer in self._recent):
            return 0.0
        for each in (*self._trained, *self._lost):
            if each.peer in slowest:
                slowest[each.peer] = max(slowest[each.peer], each.seconds)
        seconds = sorted(slowest.values())
        return seconds[int(_MOST_PEERS * len(seconds))]

    @property
    def figures(self) -> dict[str, float]:
        """Keys of the metrics log; those that compare are absent until there is something to compare."""
        found: dict[str, float] = {"lost/groups": self._count}
        if self._recent:
            found["lost/share"] = sum(is_lost for is_lost, _ in self._recent) / len(self._recent)
        if self._lost and self._trained:
            for name in ("tokens", "seconds"):
                lost, trained = (fmean(getattr(each, name) for each in kind) for kind in (self._lost, self._trained))
                if trained > 0.0:
                    found[f"lost/{name}_ratio"] = lost / trained
            rewards = [fmean(each.reward for each in kind) for kind in (self._lost, self._trained)]
            found["lost/reward_difference"] = rewards[0] - rewards[1]
        return found
