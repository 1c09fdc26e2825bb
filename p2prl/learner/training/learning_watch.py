"""Watch of the groups a run trains on: says once what keeps it from learning, and once that it is over. Pure.

A group whose rewards are all equal has no gradient (`docs/algorithms.md`). One such group says nothing; a window full
of them says that the run spends everybody's time for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

WINDOW_GROUPS = 64
"""Groups looked back on. With 8 completions each, a policy that earns a reward once in 100 completions shows none in so
many groups once in 170 windows."""

_FAILED_SHARE = 0.5
"""Share of answers that the scorers fail on, from which they are reported: below it the others still teach."""


class Trouble(StrEnum):
    """What keeps a run from learning. The values are items of `signal/warnings` in the metrics log."""

    NO_REWARD = "no_reward"
    NO_SIGNAL = "no_signal"
    ALL_TRUNCATED = "all_truncated"
    SCORER_FAILS = "scorer_fails"


SUMMARY = {
    Trouble.NO_REWARD: f"no completion of the last {WINDOW_GROUPS} groups earned any reward",
    Trouble.NO_SIGNAL: f"in each of the last {WINDOW_GROUPS} groups all completions earned the same: nothing to learn",
    Trouble.ALL_TRUNCATED: f"every completion of the last {WINDOW_GROUPS} groups was cut off at the longest length",
    Trouble.SCORER_FAILS: f"the scorer failed on most answers of the last {WINDOW_GROUPS} groups, which count 0",
}
"""Each trouble in one clause."""

_REMEDY = {
    Trouble.NO_REWARD: "The task is too hard for this model, or its answers come in another form than the scorer"
    " reads. Make a new run with easier prompts, a chat template, a system prompt that says the form, or a better first"
    " model.",
    Trouble.NO_SIGNAL: "Make a new run with harder prompts if all are right, easier ones if all are wrong, or more"
    " completions per prompt (--group-size).",
    Trouble.ALL_TRUNCATED: "Make a new run with a larger --max-new-tokens, or with a model or a chat template that ends"
    " its answers.",
    Trouble.SCORER_FAILS: "Score some answers by hand to see the error: the scorer's timeout, memory or code. A run's"
    " scoring is part of its manifest, so a corrected one makes a new run.",
}


@dataclass(frozen=True, slots=True)
class GroupSignal:
    """What one group teaches."""

    rewards: tuple[float, ...]
    truncated: int
    """Completions that the length limit cut off."""

    @property
    def has_signal(self) -> bool:
        """Whether the rewards differ."""
        return min(self.rewards) < max(self.rewards)


class LearningWatch:
    """The groups of the newest updates, and the troubles that stand."""

    def __init__(self) -> None:
        self._groups: deque[tuple[GroupSignal, int]] = deque(maxlen=WINDOW_GROUPS)
        """Groups, each with the scorer failures counted before its update."""
        self._failures = 0
        self._standing: frozenset[Trouble] = frozenset()

    @property
    def figures(self) -> dict[str, float | list[str]]:
        """Keys of the metrics log; empty before the first group."""
        groups = [group for group, _ in self._groups]
        if not groups:
            return {}
        return {
            "signal/groups_share": sum(group.has_signal for group in groups) / len(groups),
            "signal/truncated_share": sum(g.truncated for g in groups) / sum(len(g.rewards) for g in groups),
            "signal/warnings": sorted(self._standing),
        }

    def observe(self, batch: Sequence[GroupSignal], *, scorer_failures: int = 0) -> tuple[str, ...]:
        """Add the groups of an update; returns messages about troubles that began or ended with it.

        `scorer_failures` counts the answers that could not be scored since the learner started.
        """
        before, self._failures = self._failures, max(self._failures, scorer_failures)
        self._groups.extend((group, before) for group in batch)
        if len(self._groups) < WINDOW_GROUPS:
            return ()
        now = self._troubles()
        began = [f"{SUMMARY[each]}. {_REMEDY[each]}" for each in Trouble if each in now - self._standing]
        ended = [f"no longer so: {SUMMARY[each]}" for each in Trouble if each in self._standing - now]
        self._standing = now
        return (*began, *ended)

    def _troubles(self) -> frozenset[Trouble]:
        """The troubles of a full window. No reward at all says more than no signal, which follows from it."""
        groups = [group for group, _ in self._groups]
        found = set()
        if not any(reward for group in groups for reward in group.rewards):
            found.add(Trouble.NO_REWARD)
        elif not any(group.has_signal for group in groups):
            found.add(Trouble.NO_SIGNAL)
        completions = sum(len(group.rewards) for group in groups)
        if sum(group.truncated for group in groups) == completions:
            found.add(Trouble.ALL_TRUNCATED)
        if self._failures - self._groups[0][1] >= _FAILED_SHARE * completions:
            found.add(Trouble.SCORER_FAILS)
        return frozenset(found)
