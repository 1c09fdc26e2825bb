"""Whether a run is over, by the learner's signed ledger heads. Pure.

A head is the learner's own word, but anybody may repeat it for as long as the replay window: an old farewell of a
learner that has gone on since must send nobody home.
"""

from __future__ import annotations

from p2prl.protocol.messages import LedgerHead

_LATE_MS = 180_000
"""A farewell this much older than another head of the learner is a repetition. Above what gossip may delay one."""


class Farewell:
    """Follows one learner's heads and policies, all checked to be its own, and says whether it has ended the run."""

    def __init__(self) -> None:
        self.finished = False
        """Whether the newest head ends the run."""
        self._newest = (0, 0, 0, False)
        self._newest_ms = 0
        self._policy_step = 0

    def on_head(self, head: LedgerHead, sent_ms: int) -> bool:
        """Take a head in, in any order; returns `finished`. Heads below the highest heard change nothing."""
        self._newest_ms = max(self._newest_ms, sent_ms)
        # The time decides between two heads of one height and step: a learner that ended its run may take it up again.
        place = (head.height, head.step, sent_ms, head.finished)
        if place >= self._newest and head.step >= self._newest[1]:
            self._newest = place
            late = head.step < self._policy_step or sent_ms < self._newest_ms - _LATE_MS
            self.finished = head.finished and not late
        return self.finished

    def on_policy(self, step: int) -> bool:
        """A policy of the learner's at `step` is known: no earlier head is its last. Returns `finished`."""
        self._policy_step = max(self._policy_step, step)
        self.finished = self.finished and step <= self._newest[1]
        return self.finished
