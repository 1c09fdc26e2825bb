"""Standing of the peers whose receipts this node has seen, in bounded memory. Pure.

`p2prl.protocol.standing` defines standing; this is the table of one node. Only the learner's receipts count, so nobody
can raise a key without verified work, and a key without any takes no place in the table.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import Standing

_PASSED = frozenset({ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING})

_NO_FAULT = frozenset(
    {
        RejectionReason.TOO_STALE,
        RejectionReason.UNKNOWN_POLICY,
        RejectionReason.DUPLICATE_SLOT,
        RejectionReason.ENGINE_MISMATCH,
        RejectionReason.WITHHELD_SLOTS,
    }
)
"""Reasons that honest machines meet: a slow link, a restart, another make of GPU."""


class Standings:
    """Standing by peer."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._of: dict[PeerId, Standing] = {}

    def __len__(self) -> int:
        return len(self._of)

    def note(self, receipts: Iterable[Receipt], now: float) -> None:
        """Count receipts that the learner has signed."""
        for receipt in receipts:
            peer, passed = peer_id_of(receipt.peer), receipt.state in _PASSED
            failed = receipt.state == ReceiptState.REJECTED and receipt.reason not in _NO_FAULT
            if not passed and not (failed and peer in self._of):
                continue  # a key that only fails would have no standing anyway
            self._of[peer] = self._of.get(peer, Standing()).after(now, passed=float(passed), failed=float(failed))
        # Once for all of them: each look at every peer takes milliseconds, and a batch names hundreds.
        excess = len(self._of) - self._capacity
        if excess > 0:
            for peer in heapq.nsmallest(excess, self._of, key=lambda other: self._of[other].after(now).lower_bound):
                del self._of[peer]

    def is_known(self, peer: PeerId, now: float) -> bool:
        """Whether a peer is no newcomer."""
        standing = self._of.get(peer)
        return standing is not None and standing.after(now).is_known
