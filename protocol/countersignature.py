"""Countersignatures of ledger heads: the head inside, checked."""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead


def countersigned_head(opened: Opened, *, run: bytes, learner: bytes) -> Opened:
    """The opened ledger head in a countersignature.

    Raises `RemoteProtocolError` unless the run's learner signed it, somebody else countersigned it, and it has entries.
    """
    raw = body_of(opened, Countersignature).head
    if len(raw) > limits.MAX_LEDGER_HEAD_BYTES:
        raise RemoteProtocolError("countersignature: more than a ledger head")
    head = open_envelope(raw, now=None)
    body = body_of(head, LedgerHead)
    if opened.run != run or head.run != run or head.author != learner:
        raise RemoteProtocolError("countersignature: not of a head that this run's learner signed")
    if opened.author == learner or body.height < 1:
        raise RemoteProtocolError("countersignature: by the learner itself, or of no entries")
    return head
