"""Refused work, counted and replayed: when a volunteer doubts, whom it blames, and when it stops."""

from __future__ import annotations

import random

import pytest

from p2prl.client.refusal_judgement import DOUBTED_AT, STOPPED_AT, VOIDED_AT, WINDOW, Fault, Refusals, Replayed
from p2prl.protocol.ledger_messages import Receipt, ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason

RIGHT, WRONG, UNDECIDED, IMPOSSIBLE = Replayed.RIGHT, Replayed.WRONG, Replayed.UNDECIDED, Replayed.IMPOSSIBLE


def judge(seen: Refusals, number: int, reason: str = "") -> None:
    state = ReceiptState.REJECTED if reason else ReceiptState.VERIFIED
    seen.on_judged(Receipt(number.to_bytes(32, "big"), b"a" * 32, 0, number, int(state), reason, 9, 2, 0.5), b"raw")


def after(refused: int, credited: int = 0, reason: str = "seed_mismatch") -> Refusals:
    seen = Refusals()
    for number in range(credited):
        judge(seen, number)
    for number in range(credited, credited + refused):
        judge(seen, number, reason)
    return seen


def replay(seen: Refusals, *found: Replayed) -> list[int]:
    """Slots that were replayed."""
    slots = []
    for each in found:
        if (refused := seen.to_replay()) is None:
            break
        slots.append(int.from_bytes(refused.group, "big"))
        seen.on_replay(refused.group, each)
    return slots


def test_seven_of_64_are_no_doubt_and_eight_are_wherever_they_lie() -> None:
    assert not after(DOUBTED_AT - 1).is_doubtful
    assert after(DOUBTED_AT).is_doubtful
    spread = Refusals()
    for number in range(WINDOW):
        judge(spread, number, "logprob_mismatch" if number % 8 == 0 else "")
    assert spread.is_doubtful
    for number in range(WINDOW):
        judge(spread, WINDOW + number)
    assert not spread.is_doubtful, "they are no longer among the newest"


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_honest_machines_under_an_honest_learner_are_left_alone(rate: float) -> None:
    for seed in range(20):
        chance, seen = random.Random(seed), Refusals()
        for number in range(5_000):
            judge(seen, number, "seed_mismatch" if chance.random() < rate else "")
            assert not seen.is_doubtful
            assert seen.fault() is None
            assert seen.to_replay() is None


def test_the_newest_refused_groups_are_replayed_and_three_at_most() -> None:
    assert replay(after(DOUBTED_AT - 1), RIGHT) == []
    assert replay(after(DOUBTED_AT), *[IMPOSSIBLE] * 9) == [7, 6, 5]


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ((), None),
        ((RIGHT,), None),
        ((RIGHT, RIGHT), Fault.LEARNER),
        ((RIGHT, IMPOSSIBLE, RIGHT), Fault.LEARNER),
        ((WRONG, WRONG), Fault.MACHINE),
        ((WRONG, UNDECIDED, WRONG), Fault.MACHINE),
        ((RIGHT, WRONG, RIGHT), None),
        ((WRONG, RIGHT, WRONG), None),
        ((UNDECIDED, UNDECIDED, UNDECIDED), None),
        ((IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE), None),
    ],
)
def test_replays_that_agree_with_each_other_settle_it(found: tuple[Replayed, ...], fault: Fault | None) -> None:
    seen = after(DOUBTED_AT)
    replay(seen, *found)
    assert seen.fault() is fault


def test_without_an_answer_it_stops_when_nothing_was_credited_in_between() -> None:
    seen = after(STOPPED_AT - 1)
    replay(seen, *[IMPOSSIBLE] * 3)
    assert seen.fault() is None
    judge(seen, STOPPED_AT - 1, "seed_mismatch")
    assert seen.fault() is Fault.UNKNOWN

    mixed = after(STOPPED_AT - 1)
    replay(mixed, *[IMPOSSIBLE] * 3)
    judge(mixed, 90)
    judge(mixed, 91, "seed_mismatch")
    assert mixed.fault() is None, "the learner takes some of its work"


def test_it_waits_for_replays_before_it_stops_without_an_answer() -> None:
    seen = after(STOPPED_AT)
    assert seen.fault() is None
    replay(seen, RIGHT, RIGHT)
    assert seen.fault() is Fault.LEARNER


@pytest.mark.parametrize("reason", ["duplicate_slot", "excluded", "withheld_slots"])
def test_what_does_not_say_that_work_is_wrong_is_no_refusal(reason: str) -> None:
    seen = after(VOIDED_AT - 1, reason=reason)
    assert not seen.is_doubtful
    assert (seen.judged, seen.refused, seen.fault()) == (0, 0, None)


def test_groups_voided_without_end_are_no_price_any_more() -> None:
    seen = after(VOIDED_AT - 1, reason="withheld_slots")
    judge(seen, 1_000)
    for number in range(VOIDED_AT):
        assert seen.fault() is None
        judge(seen, 2_000 + number, "withheld_slots")
    assert seen.fault() is Fault.UNKNOWN


def test_work_that_came_too_late_counts_for_nobody() -> None:
    seen = Refusals()
    for number in range(100):
        receipt = Receipt(bytes([number]) * 32, b"a" * 32, 0, number, int(ReceiptState.EXPIRED), "too_stale", 0, 0, 0.0)
        seen.on_judged(receipt, b"raw")
    assert (seen.judged, seen.is_doubtful) == (0, False)


def test_reasons_are_named_most_frequent_first_and_unknown_ones_are_not_repeated() -> None:
    seen = after(3, reason=RejectionReason.BAD_TOKENS)
    for number in range(5):
        judge(seen, 100 + number, RejectionReason.SEED_MISMATCH)
    judge(seen, 200, "\x1b[31mstranger's text")
    assert seen.reasons() == "seed_mismatch, bad_tokens, an unknown reason"


def test_a_doubt_that_has_passed_is_forgotten_with_its_replays() -> None:
    seen = after(DOUBTED_AT)
    replay(seen, *[IMPOSSIBLE] * 3)
    for number in range(WINDOW):
        judge(seen, 100 + number)
    for number in range(DOUBTED_AT):
        judge(seen, 300 + number, "seed_mismatch")
    assert replay(seen, RIGHT, RIGHT) == [307, 306]
    assert seen.fault() is Fault.LEARNER
