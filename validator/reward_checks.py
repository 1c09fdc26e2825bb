"""Check of the learner's rewards: the mean reward of a replayed group against the one in its receipt. Pure.

A receipt may arrive before or after the validator has scored the group. What waits for the other half is bounded: a
group whose other half never comes is forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from p2prl.protocol.ledger_messages import Receipt, ReceiptState

_WAITING = 4_096
"""Groups and receipts that wait for each other: an hour of a busy run."""

_TOLERANCE = 1e-6
"""Means of the same rewards differ by rounding alone."""


class RewardChecks:
    """Counts of the groups on whose rewards learner and validator agree."""

    def __init__(self) -> None:
        self._scored: OrderedDict[bytes, float] = OrderedDict()
        self._paid: OrderedDict[bytes, float] = OrderedDict()
        self.agreed = 0
        self.disputed = 0

    def scored(self, group: bytes, reward: float) -> bool:
        """The validator's own mean reward of a group. False when the learner's receipt gave another."""
        if group in self._paid:
            return self._compare(reward, self._paid.pop(group))
        return _keep(self._scored, group, reward)

    def receipt(self, receipt: Receipt) -> bool:
        """The learner's receipt of a group. False when the validator's own mean reward is another."""
        if receipt.state != ReceiptState.VERIFIED:
            return True
        if receipt.group in self._scored:
            return self._compare(self._scored.pop(receipt.group), receipt.reward)
        return _keep(self._paid, receipt.group, receipt.reward)

    def _compare(self, ours: float, theirs: float) -> bool:
        agreed = math.isclose(ours, theirs, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        self.agreed += agreed
        self.disputed += not agreed
        return agreed


def _keep(waiting: OrderedDict[bytes, float], group: bytes, reward: float) -> bool:
    """Remember a half; the oldest makes way."""
    waiting[group] = reward
    if len(waiting) > _WAITING:
        waiting.popitem(last=False)
    return True
