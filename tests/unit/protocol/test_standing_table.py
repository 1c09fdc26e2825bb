"""The table of standings: which receipts count, who is known, and what it may grow to."""

from __future__ import annotations

import itertools
import time

import pytest
from msgspec.structs import replace

from p2prl.protocol.identity import Identity, PeerId, peer_id_of
from p2prl.protocol.ledger_messages import CheckOutcome, Receipt, ReceiptState, VerdictCheck
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.standing import HALF_LIFE_S, Rank, Standing, StandingTable, check_counts, receipt_counts
from p2prl.sim.machines import identity_of

NOW = 1_800_000_000.0
A = identity_of("A")


def table_of(capacity: int = 10) -> StandingTable[PeerId]:
    return StandingTable(capacity, peer_id_of)


def receipt(who: Identity = A, state: ReceiptState = ReceiptState.VERIFIED, reason: str = "") -> Receipt:
    return Receipt(bytes(32), who.public_key, 0, 0, int(state), reason, 1, 1, 0.0)


def forged(who: Identity = A) -> Receipt:
    return receipt(who, ReceiptState.REJECTED, RejectionReason.SEED_MISMATCH)


def test_eight_verified_groups_make_a_peer_known_for_a_while() -> None:
    table = table_of()
    table.note_receipts([receipt()] * 7, NOW)
    assert not table.is_known(A.peer_id, NOW)
    table.note_receipts([receipt()], NOW)
    assert table.is_known(A.peer_id, NOW)
    assert not table.is_known(A.peer_id, NOW + HALF_LIFE_S)


@pytest.mark.parametrize("state", list(ReceiptState))
@pytest.mark.parametrize("reason", ["", *RejectionReason])
def test_only_bad_work_fails_and_only_credited_work_passes(state: ReceiptState, reason: str) -> None:
    bad = {"unknown_task", "wrong_prompt", "wrong_size", "bad_tokens", "seed_mismatch", "logprob_mismatch"}
    passed = state.name in ("VERIFIED", "CREDITED_BY_SAMPLING")
    failed = state.name == "REJECTED" and reason in bad
    assert receipt_counts(receipt(state=state, reason=reason)) == (passed, failed)


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (CheckOutcome.AGREED, (1, 0)),
        (CheckOutcome.FAILED, (0, 1)),
        (CheckOutcome.CONTRADICTED, (0, 0)),
        (CheckOutcome.UNCLEAR, (0, 0)),
    ],
)
def test_an_undecided_check_of_a_verdict_counts_as_neither(outcome: CheckOutcome, counts: tuple[int, int]) -> None:
    check = VerdictCheck(A.public_key, bytes(32), int(outcome), 8)
    assert check_counts(check) == counts
    table = table_of()
    table.note_checks([check] * 8, NOW)
    assert table.is_known(A.peer_id, NOW) is (outcome is CheckOutcome.AGREED)
    assert len(table) == int(outcome in (CheckOutcome.AGREED, CheckOutcome.FAILED))


def test_failures_before_the_first_good_group_are_not_forgotten() -> None:
    table = table_of()
    table.note_receipts([forged()] * 20, NOW)
    table.note_receipts([receipt()] * 12, NOW)
    assert table.of(A.peer_id) == Standing(passed=12.0, failed=20.0, at=NOW)
    assert table.of(A.peer_id).rank is Rank.DISTRUSTED


def test_a_full_table_forgets_the_distrusted_then_newcomers_and_never_the_known_for_them() -> None:
    table = table_of()
    table.note_receipts([receipt()] * 20, NOW)
    newcomers = [identity_of(f"new{index}") for index in range(9)]
    table.note_receipts([receipt(who) for who in newcomers], NOW)
    bad = [identity_of(f"bad{index}") for index in range(50)]
    table.note_receipts([forged(who) for who in bad], NOW)
    assert len(table) == 10
    assert all(table.of(who.peer_id) == Standing(passed=1.0, at=NOW) for who in newcomers)
    table.note_receipts([receipt(who) for who in bad], NOW)
    assert len(table) == 10
    assert table.is_known(A.peer_id, NOW), "the one with most to lose stays"
    assert table.of(newcomers[0].peer_id) == table.of(bad[40].peer_id) == Standing()
    assert table.of(bad[41].peer_id).passed == 1.0


def test_peers_that_left_long_ago_make_room_first() -> None:
    table = table_of(2)
    first, second, third = (identity_of(name) for name in "BCD")
    table.note_receipts([receipt(first)] * 9 + [receipt(second)] * 9 + [receipt(first)] * 9, NOW)
    for later, passed in ((NOW, [18.0, 9.0, 0.0]), (NOW + HALF_LIFE_S, [18.0, 0.0, 1.0])):
        table.note_receipts([receipt(third)], later)
        assert [table.of(who.peer_id).passed for who in (first, second, third)] == passed


def test_a_batch_for_a_full_table_costs_little_more_than_one_receipt() -> None:
    table = table_of(4_096)
    strangers = (replace(receipt(), peer=number.to_bytes(32, "big")) for number in itertools.count())
    table.note_receipts(itertools.islice(strangers, 4_096), NOW)

    def seconds_of(count: int) -> float:
        began = time.process_time()
        table.note_receipts(itertools.islice(strangers, count), NOW)
        return time.process_time() - began

    assert seconds_of(512) < 0.25, "no look at every peer, which takes milliseconds"
    assert len(table) == 4_096
