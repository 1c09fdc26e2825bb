"""Whether a run is over, by the learner's signed ledger heads. Pure.

A head is the learner's own word, but anybody may repeat it for as long as the replay window: an old farewell of a
learner that has gone on since must send nobody home. Nor can it be passed over: whoever comes after the run has ended
hears of it from those who were there, long after it was said. So a farewell that is not fresh, or that reaches a peer
which knows nothing of the run yet, is doubted until whoever knows better had the time to say so.
"""

from __future__ import annotations

from p2prl.protocol.messages import LedgerHead

_LATE_MS = 180_000
"""A farewell this much older than another head of the learner is a repetition, and one this old is not fresh. Above
what gossip may delay one."""

_DOUBT_S = 20.0
"""How long a farewell is doubted: peers push newer policies at the first hello, and heads follow every update."""


class RunEnd:
    """Follows one learner's heads and policies, all checked to be its own, and says whether it has ended the run."""

    def __init__(self) -> None:
        self.is_said = False
        """Whether the newest head ends the run and nothing known contradicts it, doubted or not."""
        self._believed_at = 0.0
        self._newest = (0, 0, 0, False)
        self._newest_ms = 0
        self._policy_step = -1

    def on_head(self, head: LedgerHead, sent_ms: int, *, now: float) -> None:
        """Take a head in, in any order. Heads below the highest heard change nothing."""
        self._newest_ms = max(self._newest_ms, sent_ms)
        # The time decides between two heads of one height and step: a learner that ended its run may take it up again.
        place = (head.height, head.step, sent_ms, head.finished)
        if place < self._newest or head.step < self._newest[1]:
            return
        self._newest = place
        late = head.step < self._policy_step or sent_ms < self._newest_ms - _LATE_MS
        was_said, self.is_said = self.is_said, head.finished and not late
        if self.is_said and not was_said:
            is_certain = self._policy_step >= 0 and now * 1000 - sent_ms < _LATE_MS
            self._believed_at = now if is_certain else now + _DOUBT_S

    def on_policy(self, step: int) -> None:
        """A policy of the learner's at `step` is known: no earlier head is its last."""
        self._policy_step = max(self._policy_step, step)
        self.is_said = self.is_said and step <= self._newest[1]

    def is_over(self, now: float) -> bool:
        """Whether, by the newest the learner has said, the run has ended. It may be taken up again."""
        return self.is_said and now >= self._believed_at
