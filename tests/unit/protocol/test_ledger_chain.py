"""Ledger chain: followed to its head, and every alteration refused."""

from __future__ import annotations

import pytest

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_chain import GENESIS, append, entry_digest, follow
from p2prl.protocol.ledger_messages import LedgerHead, Receipt, Receipts, ReceiptState, Verdict

LEARNER, OTHER = Identity(b"l" * 16), Identity(b"o" * 16)
RUN = bytes(range(32))


def receipts(step: int, identity: Identity = LEARNER, run: bytes = RUN) -> bytes:
    receipt = Receipt(bytes(32), OTHER.public_key, 0, step, int(ReceiptState.VERIFIED), "", 8, 1, 0.5)
    return seal(identity, Receipts(step, (receipt,)), run=run, now=1e9)


def chain(envelopes: list[bytes]) -> tuple[list[bytes], Digest]:
    entries, head = [], GENESIS
    for height, envelope in enumerate(envelopes):
        raw, head = append(height, head, envelope)
        entries.append(raw)
    return entries, head


def followed(entries: list[bytes]) -> Digest:
    head = GENESIS
    for height, raw in enumerate(entries):
        _, head = follow(raw, height=height, head=head, run=RUN, learner=LEARNER.public_key)
    return head


def test_chain_is_followed_to_its_head() -> None:
    verdict = seal(OTHER, Verdict(bytes(32), bytes(32), 0, True, "", 8, 0, 0.0), run=RUN, now=1e9)
    entries, head = chain([receipts(0), verdict, receipts(1)])
    assert followed(entries) == head == entry_digest(entries[-1])


def test_altered_chains_are_refused() -> None:
    entries, head = chain([receipts(step) for step in range(4)])
    for broken in (entries[1:], [entries[0], *entries[2:]], [entries[1], entries[0], *entries[2:]], [entries[0]] * 2):
        with pytest.raises(IntegrityError):
            followed(broken)
    for index in range(len(entries)):
        other, _ = append(index, GENESIS if not index else entry_digest(entries[index - 1]), receipts(99))
        changed = [*entries[:index], other, *entries[index + 1 :]]
        if index < len(entries) - 1:
            with pytest.raises(IntegrityError):
                followed(changed)
        else:
            assert followed(changed) != head, "only the signed head shows a replaced last entry"


def test_foreign_envelopes_are_refused() -> None:
    head = seal(LEARNER, LedgerHead(0, bytes(32), 0, False), run=RUN, now=1e9)
    for envelope in (receipts(0, identity=OTHER), receipts(0, run=bytes(32)), head, b"junk"):
        entries, _ = chain([envelope])
        with pytest.raises(RemoteProtocolError):
            followed(entries)
    with pytest.raises(RemoteProtocolError):
        followed([b"\xc1"])
    with pytest.raises(RemoteProtocolError, match="limit"):
        followed([bytes(limits.MAX_ENVELOPE_BYTES + 257)])
