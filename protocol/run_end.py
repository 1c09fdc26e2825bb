"""Detection of a run's end from the learner's signed ledger heads. Pure.

A ledger head with `finished` announces the end: it is the final ledger head. The learner signs it, but anybody can
repeat it for as long as the replay window lasts. An old final head of a learner that has continued since must not stop
anybody. It cannot be ignored either: a peer that joins after the end receives it only from other peers, long after the
learner signed it. So a final head that is stale, or that reaches a peer before any policy does, counts only after a
waiting time in which better informed peers could contradict it.
"""

from __future__ import annotations

from p2prl.protocol.ledger_messages import LedgerHead

_STALE_MS = 180_000
"""A final head this much older than another head of the learner is a replay, and one of this age is not fresh. Longer
than gossip may delay a head."""

_WAIT_S = 20.0
"""Waiting time before a doubtful final head counts: peers push newer policies at the first hello, and a ledger head
follows every update."""


class RunEnd:
    """Tracks one learner's verified ledger heads and policies, and decides whether the run has ended."""

    def __init__(self) -> None:
        self.is_announced = False
        """Whether the newest ledger head ends the run and nothing contradicts it, even if it does not count yet."""
        self._counts_from = 0.0
        self._newest = (0, 0, 0, False)
        self._newest_ms = 0
        self._policy_step = -1

    def on_head(self, head: LedgerHead, sent_ms: int, *, now: float) -> None:
        """Record a ledger head. The order does not matter: heads below the highest one change nothing."""
        self._newest_ms = max(self._newest_ms, sent_ms)
        # The time decides between two heads of one height and step: a learner may resume a run that it has ended.
        place = (head.height, head.step, sent_ms, head.finished)
        if place < self._newest or head.step < self._newest[1]:
            return
        self._newest = place
        is_stale = head.step < self._policy_step or sent_ms < self._newest_ms - _STALE_MS
        was_announced, self.is_announced = self.is_announced, head.finished and not is_stale
        if self.is_announced and not was_announced:
            is_certain = self._policy_step >= 0 and now * 1000 - sent_ms < _STALE_MS
            self._counts_from = now if is_certain else now + _WAIT_S

    def on_policy(self, step: int) -> None:
        """Record a policy of the learner at `step`: a head of an earlier step is not its final one."""
        self._policy_step = max(self._policy_step, step)
        self.is_announced = self.is_announced and step <= self._newest[1]

    def is_over(self, now: float) -> bool:
        """Whether the run has ended, as far as is known now. The learner may still resume it."""
        return self.is_announced and now >= self._counts_from
