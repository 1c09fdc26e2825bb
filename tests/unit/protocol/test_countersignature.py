"""Countersignatures: of a head with entries, that the run's learner signed, by somebody else."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead

RUN, NOW = Digest(bytes(32)), 1_800_000_000.0
LEARNER, ANN = Identity(b"l" * 16), Identity(b"a" * 16)


def countersigned(height: int, *, by: Identity = ANN, learner: Identity = LEARNER) -> Opened:
    head = seal(learner, LedgerHead(height, bytes(32), 1, False), run=RUN, now=NOW)
    return open_envelope(seal(by, Countersignature(head), run=RUN, now=NOW), now=None)


def test_a_head_of_one_entry_can_be_countersigned() -> None:
    head = countersigned_head(countersigned(1), run=RUN, learner=LEARNER.public_key)
    assert body_of(head, LedgerHead).height == 1


@pytest.mark.parametrize(
    "opened",
    [countersigned(0), countersigned(1, by=LEARNER), countersigned(1, learner=ANN)],
    ids=["empty", "own", "foreign"],
)
def test_other_heads_cannot(opened: Opened) -> None:
    with pytest.raises(RemoteProtocolError, match="countersignature"):
        countersigned_head(opened, run=RUN, learner=LEARNER.public_key)
