"""The start of a peer's account of slots: a newcomer loses nothing, whichever of its groups comes first."""

from __future__ import annotations

import pytest

from p2prl.learner.intake.slot_accounts import FREE_AT_START, MISSING_S
from p2prl.learner.intake.slot_gaps import LATER_SLOTS
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON
from tests.unit.learner.test_slot_accounts import Learner


def test_slots_in_flight_below_the_first_that_arrived_are_free() -> None:
    learner = Learner()
    learner.deliver(1_000_002)
    learner.deliver(1_000_000)
    learner.deliver(1_000_002 - LATER_SLOTS)
    learner.deliver_all(range(1_000_003, 1_000_100))
    learner.now += MISSING_S
    learner.deliver(1_000_100)
    assert (learner.unawaited, learner.turned_away) == ([], [])
    assert (learner.state.lost, learner.state.gaps) == (0, ())


@pytest.mark.parametrize("first", [2_500, 1_700])
def test_a_newcomer_that_worked_without_the_learner_loses_nothing_whichever_group_comes_first(first: int) -> None:
    """It sends its newest group at once, and the oldest in order; a seeder may offer any of them first."""
    learner = Learner()
    learner.deliver(first, version=3)
    for slot in range(817, 2_500):
        if slot != first:
            learner.deliver(slot, version=slot // 1_000)
            if slot % 100 == 0:
                learner.deliver(2_501 + slot // 100, version=3)
    assert (learner.unawaited, learner.turned_away) == ([], [])
    assert (learner.state.lost, learner.state.debt) == (0, 0)
    assert all(gap.first > 2_499 or gap.last < 817 for gap in learner.state.gaps)


def test_who_begins_lower_again_and_again_gains_nothing() -> None:
    """Only what is in flight below the lowest slot is free: what lies above a new start is charged as any gap."""
    learner = Learner()
    slot, delivered = 1_000_000, 0
    for _ in range(100):
        before = len(learner.turned_away)
        learner.deliver(slot)
        delivered += len(learner.turned_away) == before
        slot -= LATER_SLOTS + 1
    upward = Learner()
    for number in range(100):
        upward.deliver((LATER_SLOTS + 1) * number)
    assert learner.unawaited == []
    assert delivered == 100 - len(upward.turned_away), "as many as who leaves slots out upward"
    assert learner.state.charged <= FREE_AT_START


def test_a_start_is_not_lowered_by_slots_of_a_later_beacon_for_nothing() -> None:
    learner = Learner()
    learner.deliver(1_000_000, version=0)
    learner.deliver(900_000, version=2 * VERSIONS_PER_BEACON)
    assert learner.state.lost == 1, "sampled after the slot above, when its prompt was known"
