"""Shared allowances: what comes back is dealt in equal parts to those at work, and newcomers find some."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.swarm.shared_allowance import Allowance, SharedAllowance
from p2prl.swarm.token_buckets import Rate

RATE = Rate(per_s=8.0, burst=100.0)


def test_an_allowance_begins_full_fills_at_its_rate_and_may_be_overdrawn_once() -> None:
    allowance = Allowance(RATE)
    assert allowance.left(1000.0) == 100.0
    allowance.take(130.0)
    assert allowance.left(1000.0) == -30.0
    assert allowance.left(1005.0) == 10.0
    assert allowance.left(1001.0) == 10.0, "a clock that goes back fills nothing"
    assert allowance.left(1006.0) == 18.0, "and nothing twice"
    assert allowance.left(2000.0) == 100.0, "no more than full"


def drawn(places: int, *, each: float = 10.0) -> SharedAllowance:
    """An allowance of which places used all their first tokens at time 0."""
    allowance = SharedAllowance(RATE, place_burst=each)
    for number in range(places):
        allowance.use(f"place {number}", each, 0.0)
    return allowance


@pytest.mark.parametrize("places", [1, 4])
def test_seven_eighths_of_what_comes_back_are_dealt_in_equal_parts(places: int) -> None:
    allowance = drawn(places)
    assert not allowance.is_due("place 0", 0.0)
    part_s = 7.0 / places
    for seconds in (1.0, 5.0):
        dealt = min(10.0, part_s * seconds)
        assert not allowance.is_due("place 0", seconds, reserve=dealt / 10.0 + 1e-9)
        assert allowance.is_due("place 0", seconds, reserve=dealt / 10.0 - 1e-9)


def test_a_newcomer_has_all_of_its_first_tokens_and_nobody_more() -> None:
    allowance = drawn(3)
    assert allowance.is_due("newcomer", 0.0, reserve=0.999)
    assert not allowance.is_due("newcomer", 0.0, reserve=1.0)
    assert not allowance.is_due("place 0", 59.0, reserve=1.0), "however long it waits"


def test_what_a_place_leaves_for_a_minute_is_the_others() -> None:
    allowance = drawn(2)
    allowance.use("place 1", 10.0, 30.0)
    allowance.use("place 1", 70.0, 60.0)  # place 0 has used nothing for a minute, and what it used has come back
    assert not allowance.is_due("place 1", 60.0)
    # Alone now, it is dealt 7 a second: 70 used, less what it had, are back before twelve seconds are over.
    assert allowance.is_due("place 1", 72.0)
    shared = drawn(2)
    shared.use("place 1", 10.0, 30.0)
    shared.use("place 0", 1.0, 59.9)
    shared.use("place 1", 70.0, 60.0)
    assert not shared.is_due("place 1", 72.0), "with half of it, it takes longer"


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 3)), min_size=1, max_size=150))
def test_places_that_ask_all_the_time_use_no_more_than_their_first_tokens_and_what_is_dealt(
    asked: list[tuple[int, float]],
) -> None:
    allowance, now, used = SharedAllowance(RATE, place_burst=10.0), 0.0, 0.0
    for number, wait_s in asked:
        now += wait_s
        if allowance.is_due(f"place {number}", now):
            allowance.use(f"place {number}", 2.0, now)
            used += 2.0
    assert used <= 5 * (10.0 + 2.0) + 7.0 * now + 1e-6
    assert math.isclose(allowance.left(now), allowance.left(now))


def test_places_remembered_are_bounded() -> None:
    allowance = SharedAllowance(Rate(per_s=0.0, burst=1e9), place_burst=10.0)
    for number in range(5_000):
        allowance.use(f"place {number}", 10.0, 0.0)
    assert not allowance.is_due("place 4999", 1.0)
    assert not allowance.is_due(f"place {5_000 - 4_096}", 1.0)
    assert allowance.is_due(f"place {5_000 - 4_097}", 1.0), "forgotten, as one that was never there"
