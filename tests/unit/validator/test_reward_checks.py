"""Comparison of rewards: whichever half comes first, and in bounded room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.validator import reward_checks
from p2prl.validator.reward_checks import RewardChecks


def receipt(group: bytes, reward: float, state: ReceiptState = ReceiptState.VERIFIED) -> Receipt:
    return Receipt(group, bytes(32), 0, 0, int(state), "", tokens=1, completions=2, reward=reward)


@given(st.floats(-100, 100), st.floats(-100, 100), st.booleans())
def test_equal_rewards_agree_in_either_order(ours: float, theirs: float, ours_first: bool) -> None:
    checks = RewardChecks()
    if ours_first:
        assert checks.scored(b"g", ours)
        agreed = checks.receipt(receipt(b"g", theirs))
    else:
        assert checks.receipt(receipt(b"g", theirs))
        agreed = checks.scored(b"g", ours)
    close = abs(ours - theirs) <= 1e-6 * max(1.0, abs(ours), abs(theirs))
    assert agreed is close
    assert (checks.agreed, checks.disputed) == (int(close), int(not close))
    assert checks.scored(b"g", 9.0), "each half is compared once"


def test_only_verified_groups_are_paid() -> None:
    checks = RewardChecks()
    checks.scored(b"g", 1.0)
    assert checks.receipt(receipt(b"g", 0.0, ReceiptState.EXPIRED))
    assert (checks.agreed, checks.disputed) == (0, 0)


def test_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_checks, "_WAITING", 3)
    checks = RewardChecks()
    for number in range(5):
        checks.scored(bytes([number]), 1.0)
        checks.receipt(receipt(bytes([100 + number]), 1.0))
    for number in range(5):
        checks.receipt(receipt(bytes([number]), 1.0))
    assert checks.agreed < 4
    assert len(checks._scored) <= 3
    assert len(checks._paid) <= 3
