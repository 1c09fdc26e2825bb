"""The learner's farewell, kept for those who come after it: a finished run has no learner left to say that it is over.

Pure: the owner notes every head and policy it has checked, and asks what to tell a neighbour that says hello.
"""

from __future__ import annotations

from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.swarm.gossip.gossip import AUDIENCE


class FinalHead:
    """Whether the run is over, as this node has heard, and which neighbours it has told."""

    def __init__(self) -> None:
        self._farewell = RunEnd()
        self._newest: Opened | None = None
        self._told: set[PeerId] = set()

    def note_head(self, opened: Opened, now: float) -> None:
        """A ledger head signed by the run's learner was accepted; other kinds change nothing."""
        head = opened.body
        if not isinstance(head, LedgerHead):
            return
        self._farewell.on_head(head, opened.sent_ms, now=now)
        if self._newest is None or _place(opened) > _place(self._newest):
            self._newest = opened

    def note_policy(self, step: int) -> None:
        """A policy manifest of this learner step was accepted."""
        self._farewell.on_policy(step)

    def for_neighbour(self, peer: PeerId, role: Role, now: float) -> bytes:
        """The farewell's envelope for a neighbour that said hello, once for each link; else nothing."""
        is_over = self._farewell.is_over(now) and self._newest is not None
        if not is_over or peer in self._told or role not in AUDIENCE[Kind.LEDGER_HEAD]:
            return b""
        self._told.add(peer)
        assert self._newest is not None
        return self._newest.raw

    def forget(self, peer: PeerId) -> None:
        """The link to a neighbour is gone."""
        self._told.discard(peer)


def _place(opened: Opened) -> tuple[int, int, int]:
    head = opened.body
    assert isinstance(head, LedgerHead)
    return head.height, head.step, opened.sent_ms
