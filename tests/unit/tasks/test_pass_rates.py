"""Pass rates against brute force: pass@k by listing every choice of k, intervals by inverting the score test."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.tasks.evaluation_report import pass_at_k, rate_of, reported_ks, standard_error


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_choices_with_a_pass(samples: int) -> None:
    for passed in range(samples + 1):
        completions = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            choices = list(itertools.combinations(completions, k))
            expected = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(samples, passed, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over every outcome of n coins of rate p is 1 − (1 − p)^k."""
    n, p = 6, 0.3
    for k in range(1, n + 1):
        expected = sum(
            math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
        )  # fmt: skip
        assert expected == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


def test_many_samples_stay_exact() -> None:
    assert pass_at_k(1024, 1, 512) == pytest.approx(0.5, abs=1e-12)
    assert 0.0 < pass_at_k(1024, 1, 1) < pass_at_k(1024, 2, 1) < 1.0
    assert pass_at_k(1024, 0, 1024) == 0.0
    assert pass_at_k(1024, 1, 1024) == 1.0


@given(st.lists(st.booleans(), min_size=1, max_size=400))
def test_an_interval_holds_the_rates_that_the_score_test_keeps(values: list[bool]) -> None:
    found, count = rate_of(map(float, values)), len(values)
    assert found.rate == pytest.approx(sum(values) / count)
    assert 0.0 <= found.low <= found.rate <= found.high <= 1.0

    def kept(rate: float) -> bool:
        return (found.rate - rate) ** 2 <= 1.959963984540054**2 * rate * (1 - rate) / count

    for end, inward in ((found.low, 1), (found.high, -1)):
        if 1e-9 < end < 1 - 1e-9:
            assert kept(end + inward * 1e-7)
            assert not kept(end - inward * 1e-7)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=50))
def test_values_between_get_the_interval_of_a_coin(values: list[float]) -> None:
    """The widest that values within 0..1 of this mean can need: their variance is at most that of a coin."""
    found, count = rate_of(values), len(values)
    spread = standard_error(values) * math.sqrt(count - 1)
    assert spread <= math.sqrt(found.rate * (1 - found.rate)) + 1e-9
    assert found == rate_of([found.rate] * count) or found.rate == pytest.approx(rate_of([found.rate] * count).rate)
    assert found.low <= found.rate <= found.high
    assert standard_error(values) == pytest.approx(statistics.stdev(values) / math.sqrt(count), abs=1e-12)


def test_nothing_measured_is_nothing_known() -> None:
    found = rate_of([])
    assert (found.low, found.high) == (0.0, 1.0)
    assert standard_error([]) == standard_error([0.5]) == 0.0


@pytest.mark.parametrize(("samples", "ks"), [(0, ()), (1, (1,)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_reported_ks(samples: int, ks: tuple[int, ...]) -> None:
    assert reported_ks(samples) == ks
