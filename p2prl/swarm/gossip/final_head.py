"""The final ledger head of a finished run, pushed to peers that join later: no learner is left to tell them.

Pure: the owner reports every head and policy it has accepted, and asks what to push to a peer that says hello.
"""

from __future__ import annotations

from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.swarm.gossip.validation import AUDIENCE


class FinalHead:
    """Knows whether the run has ended, and which peers were sent the final head."""

    def __init__(self) -> None:
        self._run_end = RunEnd()
        self._newest: Opened | None = None
        self._sent_to: set[PeerId] = set()

    def note_head(self, opened: Opened, now: float) -> None:
        """Note an accepted ledger head of the run's learner; other kinds are ignored."""
        head = opened.body
        if not isinstance(head, LedgerHead):
            return
        self._run_end.on_head(head, opened.sent_ms, now=now)
        if self._newest is None or _order(opened) > _order(self._newest):
            self._newest = opened

    def note_policy(self, step: int) -> None:
        """Note an accepted policy manifest of this learner step."""
        self._run_end.on_policy(step)

    def for_peer(self, peer: PeerId, role: Role, now: float) -> bytes:
        """The final head's envelope for a peer that said hello, once per link; else empty."""
        is_over = self._run_end.is_over(now) and self._newest is not None
        if not is_over or peer in self._sent_to or role not in AUDIENCE[Kind.LEDGER_HEAD]:
            return b""
        self._sent_to.add(peer)
        assert self._newest is not None
        return self._newest.raw

    def remove_peer(self, peer: PeerId) -> None:
        """Forget a peer whose link is gone."""
        self._sent_to.discard(peer)


def _order(opened: Opened) -> tuple[int, int, int]:
    head = opened.body
    assert isinstance(head, LedgerHead)
    return head.height, head.step, opened.sent_ms
