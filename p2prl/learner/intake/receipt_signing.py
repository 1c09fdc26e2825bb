"""Build and sign receipts: storage receipts for groups that were stored, receipts for groups that were checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from p2prl.learner.intake.verification import Outcome
from p2prl.learner.signing_sender import SigningSender
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt


def sign_storage_receipts(sender: SigningSender, stored: Sequence[Digest]) -> Iterator[bytes]:
    """Envelopes that acknowledge stored groups, each with as many groups as a message holds."""
    for start in range(0, len(stored), limits.MAX_DIGESTS_PER_MESSAGE):
        yield sender.sign(StorageReceipt(tuple(stored[start : start + limits.MAX_DIGESTS_PER_MESSAGE])))


def sign_receipts(sender: SigningSender, step: int, outcomes: Sequence[Outcome]) -> bytes:
    """The envelope with one receipt per checked group: an entry of the ledger."""
    return sender.sign(Receipts(step, tuple(receipt_of(outcome) for outcome in outcomes)))


def receipt_of(outcome: Outcome) -> Receipt:
    """The receipt of a checked group. Only verified groups carry tokens and rewards: nothing else earns credit."""
    verified = outcome.state is ReceiptState.VERIFIED
    rewards = outcome.rewards if verified else ()
    return Receipt(
        group=outcome.stored.digest,
        peer=outcome.stored.peer,
        version=outcome.stored.version,
        slot=outcome.stored.slot,
        state=int(outcome.state),
        reason=outcome.reason,
        tokens=outcome.replay.tokens if outcome.replay is not None and verified else 0,
        completions=len(rewards),
        reward=float(np.mean(rewards)) if rewards else 0.0,
    )
