"""Check of the learner's rewards: the mean reward of a replayed group against the one in its receipt. Pure.

Whether an answer fails by time or memory depends on the machine, and a receipt does not say which answers failed at the
learner. A mean that failed answers can explain is therefore unclear, and disputes nothing; a mean that no failure
explains, such as a higher one where scores are 0 or more, is disputed. A receipt may arrive before or after the
validator has scored the group. What waits for the other half is bounded: a group whose other half never comes is
forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from p2prl.models.rewards.scoring import GroupRewards
from p2prl.protocol.ledger_messages import Receipt, ReceiptState

_WAITING = 4_096
"""Groups and receipts that wait for each other: an hour of a busy run."""

_TOLERANCE = 1e-6
"""Means of the same rewards differ by rounding alone."""


@dataclass(frozen=True, slots=True)
class _Means:
    """Mean rewards of a group: the validator's own, and the least and greatest that failed answers would make of it."""

    own: float
    lowest: float
    highest: float


def _means(rewards: GroupRewards) -> _Means:
    pairs, count = list(zip(rewards.values, rewards.if_failed, strict=True)), len(rewards.values)
    return _Means(
        own=sum(rewards.values) / count,
        lowest=sum(min(pair) for pair in pairs) / count,
        highest=sum(max(pair) for pair in pairs) / count,
    )


class RewardChecks:
    """Counts of the groups on whose rewards learner and validator agree."""

    def __init__(self) -> None:
        self._scored: OrderedDict[bytes, _Means] = OrderedDict()
        self._paid: OrderedDict[bytes, float] = OrderedDict()
        self.agreed = 0
        self.disputed = 0
        self.unclear = 0

    def scored(self, group: bytes, rewards: GroupRewards) -> bool:
        """The validator's own rewards of a group. False when no failed answer explains the learner's receipt."""
        if rewards.depends_on_machine:
            self._paid.pop(group, None)
            self.unclear += 1
            return True
        means = _means(rewards)
        if group in self._paid:
            return self._compare(means, self._paid.pop(group))
        return _keep(self._scored, group, means)

    def receipt(self, receipt: Receipt) -> bool:
        """The learner's receipt of a group. False when it differs, and no failed answer explains it."""
        if receipt.state != ReceiptState.VERIFIED:
            return True
        if receipt.group in self._scored:
            return self._compare(self._scored.pop(receipt.group), receipt.reward)
        return _keep(self._paid, receipt.group, receipt.reward)

    def _compare(self, ours: _Means, theirs: float) -> bool:
        if _close(ours.own, theirs):
            self.agreed += 1
        elif ours.lowest < theirs < ours.highest or _close(ours.lowest, theirs) or _close(ours.highest, theirs):
            self.unclear += 1
        else:
            self.disputed += 1
            return False
        return True


def _close(ours: float, theirs: float) -> bool:
    return math.isclose(ours, theirs, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


_Half = TypeVar("_Half")


def _keep(waiting: OrderedDict[bytes, _Half], group: bytes, half: _Half) -> bool:
    """Remember a half; the oldest makes way."""
    waiting[group] = half
    if len(waiting) > _WAITING:
        waiting.popitem(last=False)
    return True
