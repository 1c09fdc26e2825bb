"""Exclusions: a few confirmed forgeries exclude, time forgives, honest work outweighs, and memory is bounded."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.intake.exclusions import (
    CONFIRMED_FORGERIES,
    FIRST_EXCLUSION_S,
    FORGERY_MEMORY_S,
    LONGEST_EXCLUSION_S,
    RECEIPTS_WHILE_EXCLUDED,
    Exclusions,
    counts_against,
)
from p2prl.protocol.standing import Standing

NOW = 1_800_000_000.0


def test_the_third_forgery_of_a_day_excludes_for_an_hour() -> None:
    exclusions = Exclusions()
    for number in range(CONFIRMED_FORGERIES):
        assert not exclusions.is_excluded(b"a", NOW + number)
        exclusions.confirm(b"a", NOW + number)
    last = NOW + CONFIRMED_FORGERIES - 1
    assert exclusions.is_excluded(b"a", last)
    assert exclusions.is_excluded(b"a", last + FIRST_EXCLUSION_S - 1)
    assert not exclusions.is_excluded(b"a", last + FIRST_EXCLUSION_S)
    assert not exclusions.is_excluded(b"b", last)


def test_forgeries_further_apart_than_the_memory_exclude_nobody() -> None:
    exclusions = Exclusions((b"a", NOW + number * FORGERY_MEMORY_S / 2) for number in range(50))
    assert not exclusions.is_excluded(b"a", NOW + 49 * FORGERY_MEMORY_S / 2)


def test_each_exclusion_is_twice_as_long_as_the_one_before_up_to_a_week() -> None:
    exclusions, now, lengths = Exclusions(), NOW, []
    for _ in range(10):
        for _ in range(CONFIRMED_FORGERIES):
            exclusions.confirm(b"a", now)
        lengths.append(exclusions.excluded_until(b"a", now) - now)
        now += lengths[-1]
    assert (timedelta(seconds=lengths[0]), timedelta(seconds=lengths[-1])) == (timedelta(hours=1), timedelta(weeks=1))
    assert all(after == min(2 * before, LONGEST_EXCLUSION_S) for before, after in pairwise(lengths))


def test_an_exclusion_lengthens_the_next_for_four_weeks() -> None:
    four_weeks_s = timedelta(weeks=4).total_seconds()
    for pause_s, hours in ((four_weeks_s - 1, 2), (four_weeks_s, 1)):
        exclusions = Exclusions([(b"a", NOW)] * CONFIRMED_FORGERIES)
        later = NOW + FIRST_EXCLUSION_S + pause_s
        for _ in range(CONFIRMED_FORGERIES):
            exclusions.confirm(b"a", later)
        assert exclusions.excluded_until(b"a", later) == later + timedelta(hours=hours).total_seconds()


def test_a_forgery_is_known_for_a_day_whether_or_not_it_excluded() -> None:
    day_s = timedelta(days=1).total_seconds()
    for forgeries in (1, CONFIRMED_FORGERIES):
        exclusions = Exclusions([(b"a", NOW)] * forgeries)
        assert [exclusions.has_forged(b"a", NOW + after_s) for after_s in (0, day_s - 1, day_s)] == [True, True, False]
        assert not exclusions.has_forged(b"b", NOW)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 1e5)), max_size=40))
def test_the_same_forgeries_give_the_same_exclusions_after_a_restart(steps: list[tuple[int, float]]) -> None:
    exclusions, now, held = Exclusions(), NOW, []
    for peer, wait_s in steps:
        now += wait_s
        exclusions.confirm(bytes([peer]), now)
        held.append((bytes([peer]), now))
    restored = Exclusions(held)
    for peer in range(4):
        assert restored.excluded_until(bytes([peer]), now) == exclusions.excluded_until(bytes([peer]), now)


def test_an_excluded_key_is_told_a_few_times_in_each_exclusion() -> None:
    exclusions = Exclusions([(b"a", NOW)] * CONFIRMED_FORGERIES)
    assert [exclusions.tells(b"a") for _ in range(RECEIPTS_WHILE_EXCLUDED + 2)] == [True] * 4 + [False] * 2
    assert not exclusions.tells(b"b")
    later = NOW + FIRST_EXCLUSION_S
    for _ in range(CONFIRMED_FORGERIES):
        exclusions.confirm(b"a", later)
    assert exclusions.tells(b"a")


def test_much_honest_work_outweighs_a_forgery() -> None:
    assert counts_against(Standing(0, 1))
    assert counts_against(Standing(15, 1))
    assert not counts_against(Standing(16, 1))
    assert counts_against(Standing(31, 2))


def test_identities_remembered_are_bounded() -> None:
    exclusions = Exclusions(((bytes([number]), NOW) for number in range(200)), most=10)
    assert len(exclusions) == 10


def test_an_exclusion_of_a_wrong_clock_lasts_as_long_as_it_was_to() -> None:
    exclusions = Exclusions([(b"a", NOW + 30 * 86_400)] * CONFIRMED_FORGERIES)
    assert exclusions.excluded_until(b"a", NOW) == NOW + FIRST_EXCLUSION_S
    assert exclusions.is_excluded(b"a", NOW + FIRST_EXCLUSION_S - 1)
    assert not exclusions.is_excluded(b"a", NOW + FIRST_EXCLUSION_S)
