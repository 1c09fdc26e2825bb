"""Comparison of rewards: whichever half comes first, and in bounded room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.models.rewards.scoring import MACHINE_FAILURES, GroupRewards
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.tasks.sandbox.batch import ENDED, MEMORY, TIMEOUT
from p2prl.validator import reward_checks
from p2prl.validator.reward_checks import RewardChecks


def receipt(group: bytes, reward: float, state: ReceiptState = ReceiptState.VERIFIED) -> Receipt:
    return Receipt(group, bytes(32), 0, 0, int(state), "", tokens=1, completions=2, reward=reward)


def rewards(*values: float) -> GroupRewards:
    """Rewards of answers that cannot fail."""
    return GroupRewards(values, values)


@given(st.floats(-100, 100), st.floats(-100, 100), st.booleans())
def test_equal_rewards_agree_in_either_order(ours: float, theirs: float, ours_first: bool) -> None:
    checks = RewardChecks()
    if ours_first:
        assert checks.scored(b"g", rewards(ours))
        agreed = checks.receipt(receipt(b"g", theirs))
    else:
        assert checks.receipt(receipt(b"g", theirs))
        agreed = checks.scored(b"g", rewards(ours))
    close = abs(ours - theirs) <= 1e-6 * max(1.0, abs(ours), abs(theirs))
    assert agreed is close
    assert (checks.agreed, checks.disputed) == (int(close), int(not close))
    assert checks.scored(b"g", rewards(9.0)), "each half is compared once"


def test_only_verified_groups_are_paid() -> None:
    checks = RewardChecks()
    checks.scored(b"g", rewards(1.0))
    assert checks.receipt(receipt(b"g", 0.0, ReceiptState.EXPIRED))
    assert (checks.agreed, checks.disputed) == (0, 0)


def test_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_checks, "_WAITING", 3)
    checks = RewardChecks()
    for number in range(5):
        checks.scored(bytes([number]), rewards(1.0))
        checks.receipt(receipt(bytes([100 + number]), 1.0))
    for number in range(5):
        checks.receipt(receipt(bytes([number]), 1.0))
    assert checks.agreed < 4
    assert len(checks._scored) <= 3
    assert len(checks._paid) <= 3


SCORE = st.integers(-8, 8).map(lambda eighths: eighths / 8)


@given(st.lists(st.tuples(SCORE, st.booleans()), min_size=1, max_size=8), st.floats(-1, 0), st.booleans())
def test_failures_at_the_learner_are_never_disputed(
    answers: list[tuple[float, bool]], penalty: float, ours_first: bool
) -> None:
    """Whichever answers fail there: the receipt is that of the same rewards with those scores 0."""
    checks, count = RewardChecks(), len(answers)
    ours = GroupRewards(tuple(score + penalty for score, _ in answers), (penalty,) * count)
    paid = receipt(b"g", sum((0.0 if failed else score) + penalty for score, failed in answers) / count)
    if ours_first:
        assert checks.scored(b"g", ours)
        assert checks.receipt(paid)
    else:
        assert checks.receipt(paid)
        assert checks.scored(b"g", ours)
    assert checks.disputed == 0
    assert checks.agreed + checks.unclear == 1


@pytest.mark.parametrize(
    ("theirs", "counts"),
    [
        (0.5, (1, 0, 0)),
        (0.25, (0, 0, 1)),
        (0.0, (0, 0, 1)),
        (0.75, (0, 1, 0)),
        (0.5001, (0, 1, 0)),
        (-0.0001, (0, 1, 0)),
    ],
)
def test_no_failed_answer_raises_a_reward_of_0_or_more(theirs: float, counts: tuple[int, int, int]) -> None:
    checks = RewardChecks()
    checks.scored(b"g", GroupRewards((1.0, 1.0, 0.0, 0.0), (0.0,) * 4))
    assert checks.receipt(receipt(b"g", theirs)) is not bool(counts[1])
    assert (checks.agreed, checks.disputed, checks.unclear) == counts


def test_a_failed_answer_loses_its_penalty_too() -> None:
    checks = RewardChecks()
    checks.scored(b"g", GroupRewards((1.0, -1.0), (0.0, 0.0)))
    assert checks.receipt(receipt(b"g", 0.5))
    assert (checks.disputed, checks.unclear) == (0, 1)


@pytest.mark.parametrize("failure", sorted(MACHINE_FAILURES))
@pytest.mark.parametrize("receipt_first", [True, False])
def test_answers_that_failed_on_this_machine_prove_nothing(failure: str, receipt_first: bool) -> None:
    checks = RewardChecks()
    failed = GroupRewards((0.0,), (0.0,), (failure,))
    if receipt_first:
        assert checks.receipt(receipt(b"g", 1.0))
        assert checks.scored(b"g", failed)
    else:
        assert checks.scored(b"g", failed)
        assert checks.receipt(receipt(b"g", 1.0))
    assert (checks.agreed, checks.disputed, checks.unclear) == (0, 0, 1)


@pytest.mark.parametrize("failure", ["error: ValueError: timeout", "value: str", "row", "too long"])
def test_failures_that_every_machine_has_are_compared(failure: str) -> None:
    checks = RewardChecks()
    checks.scored(b"g", GroupRewards((0.0,), (0.0,), (failure,)))
    assert not checks.receipt(receipt(b"g", 1.0))


def test_machine_failures_are_those_of_the_sandbox() -> None:
    assert {TIMEOUT, MEMORY, ENDED} == MACHINE_FAILURES
