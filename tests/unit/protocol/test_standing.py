"""Standing: earned by good groups, lost by bad ones and by time, and never by a clock that goes back."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.standing import HALF_LIFE_S, Standing

COUNTS = st.floats(0.0, 1e4)


def test_a_newcomer_is_known_after_eight_good_groups() -> None:
    assert not Standing().is_known
    assert not Standing(passed=7.0).is_known
    assert Standing(passed=8.0).is_known


def test_a_bad_group_costs_more_than_a_good_one_earns() -> None:
    assert not Standing(passed=9.0, failed=1.0).is_known
    assert Standing(passed=16.0, failed=1.0).is_known


@pytest.mark.parametrize(("passed", "failed"), [(8.0, 0.0), (50.0, 5.0), (3.0, 3.0), (200.0, 20.0)])
def test_the_bound_lies_below_nearly_all_of_the_distribution(passed: float, failed: float) -> None:
    shares = np.random.default_rng(0).beta(1.0 + passed, 1.0 + failed, size=200_000)
    below = float(np.mean(shares < Standing(passed, failed).lower_bound))
    assert 0.02 < below < 0.09


@given(passed=COUNTS, failed=COUNTS)
def test_standing_rises_with_good_groups_and_falls_with_bad_ones(passed: float, failed: float) -> None:
    standing = Standing(passed, failed).lower_bound
    assert 0.0 <= standing < 1.0
    assert Standing(passed + 1.0, failed).lower_bound >= standing
    assert Standing(passed, failed + 1.0).lower_bound <= standing


def test_counts_halve_in_a_week() -> None:
    week_s = timedelta(weeks=1).total_seconds()
    standing = Standing(passed=40.0, failed=8.0, at=1000.0).after(1000.0 + week_s, passed=1.0)
    assert standing.passed == pytest.approx(21.0)
    assert standing.failed == pytest.approx(4.0)


def test_a_clock_that_goes_back_decays_nothing_and_rewinds_nothing() -> None:
    standing = Standing(passed=4.0, at=1000.0)
    assert standing.after(500.0) == standing
    late = HALF_LIFE_S + 1000.0
    assert Standing(passed=4.0, at=late).after(1000.0, failed=1.0) == Standing(passed=4.0, failed=0.5, at=late)


@given(counts=st.permutations([(0.0, 1, 0), (HALF_LIFE_S, 0, 1), (9e5, 1, 0), (2e6, 2, 3)]))
def test_the_order_in_which_counts_arrive_does_not_matter(counts: list[tuple[float, int, int]]) -> None:
    standing = Standing()
    for at, passed, failed in counts:
        standing = standing.after(at, passed=passed, failed=failed)
    weights = [0.5 ** ((2e6 - at) / HALF_LIFE_S) for at in (0.0, HALF_LIFE_S, 9e5, 2e6)]
    assert standing.passed == pytest.approx(weights[0] + weights[2] + 2)
    assert standing.failed == pytest.approx(weights[1] + 3)
