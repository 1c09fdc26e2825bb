"""Schedule of countersignatures of ledger heads: one a minute, and the final head at once. Pure."""

from __future__ import annotations

import math

from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import Countersignature
from p2prl.scoreboard.ledger.signed_head import SignedHead

PERIOD_S = 60.0
"""Between two countersignatures: one covers all entries before, and peers take one of an author in 20 s."""


class Countersigner:
    """Countersigns for one key."""

    def __init__(self, identity: Identity, run: bytes) -> None:
        self._identity = identity
        self._run = run
        self._signed = (0, False)
        self._next_at = -math.inf

    def sign(self, head: SignedHead, now: float) -> bytes:
        """The envelope of a countersignature if one is due, else nothing. The caller has verified the entries."""
        grown = (head.height, head.finished) > self._signed
        if head.height < 1 or not grown or (now < self._next_at and not head.finished):
            return b""
        self._signed, self._next_at = (head.height, head.finished), now + PERIOD_S
        return seal(self._identity, Countersignature(head.raw), run=self._run, now=now)
