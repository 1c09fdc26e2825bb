"""The learner's signed head of a ledger: opened, compared with a chain of entries, and countersigned. Pure.

An entry proves who signed it, not that it belongs to the learner's history: a stranger's verdict fits any chain, and a
chain that was cut short is a chain. Only a head says how long the history is, and what it ends with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead
from p2prl.scoreboard.ledger.known_run import KnownRun


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A ledger head with the signature of the ledger's key."""

    height: int
    head: bytes
    raw: bytes
    sent_ms: int
    finished: bool
    signer: str = "the learner"
    """Who signed it, in sentences."""

    def contradiction(self, height: int, head: bytes) -> str:
        """What is wrong with a chain of `height` entries whose newest has the digest `head`; empty while nothing is."""
        if height == self.height and head != self.head:
            return f"entry {height - 1} differs from the one {self.signer} signed"
        return ""

    def missing(self, height: int) -> str:
        """What is wrong with a chain that ends at `height`; empty if nothing is."""
        if height < self.height:
            return f"the ledger ends at entry {height}, but {self.signer} signed {self.height}"
        return ""


@dataclass(frozen=True, slots=True)
class Witness:
    """A countersignature: another key has followed the ledger up to a signed head."""

    author: bytes
    """Public key of the peer that countersigned."""
    head: SignedHead
    raw: bytes
    sent_ms: int


def open_witness(run: KnownRun, raw: bytes) -> Witness:
    """Open a countersignature's envelope. Raises `RemoteProtocolError` unless this run's learner signed its head."""
    opened = open_envelope(raw, now=None)
    head = countersigned_head(opened, run=run.run, learner=run.manifest.learner)
    return Witness(opened.author, signed_head_of(run, head), raw, opened.sent_ms)


def open_signed_head(run: KnownRun, raw: bytes) -> SignedHead:
    """Open a head's envelope. Raises `RemoteProtocolError` unless the ledger's key signed it."""
    return signed_head_of(run, open_envelope(raw, now=None))


def signed_head_of(run: KnownRun, opened: Opened) -> SignedHead:
    """As `open_signed_head`, of an envelope that was opened before."""
    body = body_of(opened, LedgerHead)
    if opened.author != run.ledger_key or opened.run != run.run:
        who = "the validator that was named" if run.validator else "this run's learner"
        raise RemoteProtocolError(f"ledger head: not signed by {who}")
    return SignedHead(body.height, body.head, opened.raw, opened.sent_ms, body.finished, run.signer)


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
