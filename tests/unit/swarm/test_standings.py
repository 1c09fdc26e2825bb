"""The table of standings: who is known, and what it may grow to."""

from __future__ import annotations

import itertools
import time

import pytest
from msgspec.structs import replace

from p2prl.protocol.identity import Identity, peer_id_of
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import HALF_LIFE_S
from p2prl.sim.hosts import identity_of
from p2prl.swarm.peers.standings import Standings

NOW = 1_800_000_000.0
A = identity_of("A")


def receipt(who: Identity = A, state: ReceiptState = ReceiptState.VERIFIED, reason: str = "") -> Receipt:
    return Receipt(bytes(32), who.public_key, 0, 0, int(state), reason, 1, 1, 0.0)


def test_eight_verified_groups_make_a_peer_known_for_a_while() -> None:
    table = Standings(10)
    table.note([receipt()] * 7, NOW)
    assert not table.is_known(A.peer_id, NOW)
    table.note([receipt()], NOW)
    assert table.is_known(A.peer_id, NOW)
    assert not table.is_known(A.peer_id, NOW + HALF_LIFE_S)


@pytest.mark.parametrize(
    ("state", "reason", "known"),
    [
        (ReceiptState.REJECTED, RejectionReason.SEED_MISMATCH, False),
        (ReceiptState.REJECTED, RejectionReason.TOO_STALE, True),
        (ReceiptState.REJECTED, RejectionReason.ENGINE_MISMATCH, True),
        (ReceiptState.EXPIRED, RejectionReason.TOO_STALE, True),
        (ReceiptState.CREDITED_BY_SAMPLING, "", True),
    ],
)
def test_only_faults_lower_a_standing(state: ReceiptState, reason: str, known: bool) -> None:
    table = Standings(10)
    table.note([receipt()] * 9, NOW)
    table.note([receipt(state=state, reason=reason)] * 4, NOW)
    assert table.is_known(A.peer_id, NOW) is known


def test_the_table_is_bounded_and_failures_take_no_place() -> None:
    table = Standings(10)
    table.note([receipt()] * 20, NOW)
    bad = [identity_of(f"bad{index}") for index in range(50)]
    table.note([receipt(who, ReceiptState.REJECTED, RejectionReason.SEED_MISMATCH) for who in bad], NOW)
    assert len(table) == 1
    table.note([receipt(who) for who in bad], NOW)
    assert len(table) == 10
    assert table.is_known(peer_id_of(A.public_key), NOW), "the one with most to lose stays"


def test_a_batch_for_a_full_table_costs_little_more_than_one_receipt() -> None:
    table = Standings(4_096)
    strangers = (replace(receipt(), peer=number.to_bytes(32, "big")) for number in itertools.count())
    table.note(itertools.islice(strangers, 4_096), NOW)

    def seconds_of(count: int) -> float:
        began = time.process_time()
        table.note(itertools.islice(strangers, count), NOW)
        return time.process_time() - began

    one = min(seconds_of(1) for _ in range(5))
    assert seconds_of(512) < 50 * one
    assert len(table) == 4_096
