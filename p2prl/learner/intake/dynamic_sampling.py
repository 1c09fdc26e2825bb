"""Dynamic sampling (DAPO, arXiv 2503.14476 §3.2): an update takes others in place of groups that teach nothing. Pure.

A group whose completions all earned the same has no gradient. It is credited like every other, because its author
cannot know which prompt a slot has. Which groups are left out follows from rewards that the learner computed itself
(docs/decisions/0027-dynamic-sampling.md).
"""

from __future__ import annotations

import numpy as np

from p2prl.algorithms.advantages import ZERO_VARIANCE_RANGE
from p2prl.learner.intake.verified_group import VerifiedGroup


def teaches(group: VerifiedGroup, *, masks_truncated: bool = False) -> bool:
    """Whether rewards, of completions or of their steps, differ within a group.

    With `masks_truncated` one of its completions must have ended as well: the others carry no gradient.
    """
    if masks_truncated and not any(completion.finished for completion in group.group.completions):
        return False
    rewards = np.frombuffer(group.rewards, dtype="<f4")
    if rewards.max() - rewards.min() > ZERO_VARIANCE_RANGE:
        return True
    if not group.step_rewards:
        return False
    ends = np.cumsum([len(completion.tokens) // 4 for completion in group.group.completions])
    rows = np.split(np.frombuffer(group.step_rewards, dtype="<f4"), ends[:-1])
    first, *others = (row[~np.isnan(row)] for row in rows)
    return not all(np.array_equal(first, other) for other in others)


class DynamicSampling:
    """Decides which verified groups are not trained on, and counts them."""

    def __init__(self, most: int = 0, *, masks_truncated: bool = False) -> None:
        """An update waits for others in place of at most `most` groups; 0 leaves out none."""
        self._most = most
        self._masks_truncated = masks_truncated
        self._waited_for = 0
        self._left_out = 0

    @property
    def figures(self) -> dict[str, float]:
        """Groups left out since the start, as a key of the metrics log; empty where none are."""
        return {"signal/left_out": self._left_out} if self._most else {}

    def leave_out(self, group: VerifiedGroup, *, surplus: bool = False) -> bool:
        """Whether to train on others instead. No update waits for a `surplus`, so that has no limit."""
        if not self._most or teaches(group, masks_truncated=self._masks_truncated):
            return False
        if not surplus:
            if self._waited_for >= self._most:
                return False
            self._waited_for += 1
        self._left_out += 1
        return True

    def batch_taken(self) -> None:
        """Begin to count for the next update."""
        self._waited_for = 0
