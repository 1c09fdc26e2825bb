"""Student's t against published tables and simulation, Holm's correction by its definition, and equivalence."""

from __future__ import annotations

import math
import random

import pytest

from p2prl.errors import LocalProtocolError
from p2prl_lab.bench.staleness.paired import holm, paired, t_probability, t_quantile

TABLE = {
    1: (6.313752, 12.706205), 2: (2.919986, 4.302653), 3: (2.353363, 3.182446), 4: (2.131847, 2.776445),
    9: (1.833113, 2.262157), 10: (1.812461, 2.228139), 30: (1.697261, 2.042272), 1000: (1.646379, 1.962339),
}  # fmt: skip
"""Degrees of freedom → quantiles at .95 and .975, from printed tables."""


@pytest.mark.parametrize("freedom", sorted(TABLE))
def test_t_is_that_of_the_tables(freedom: int) -> None:
    for probability, t in zip((0.95, 0.975), TABLE[freedom], strict=True):
        assert t_quantile(probability, freedom) == pytest.approx(t, abs=2e-6)
        assert t_probability(t, freedom) == pytest.approx(probability, abs=1e-6)
        assert t_probability(-t, freedom) == pytest.approx(1 - probability, abs=1e-6)
    assert t_probability(0.0, freedom) == 0.5
    for wrong in (0.4, 1.0):
        with pytest.raises(LocalProtocolError):
            t_quantile(wrong, freedom)


def test_pairs_remove_what_they_share() -> None:
    found = paired([11.0, 22.0, 33.5], [10.0, 20.0, 31.0])
    assert found.difference == pytest.approx(5.5 / 3)
    deviation = math.sqrt(sum((each - 5.5 / 3) ** 2 for each in (1.0, 2.0, 2.5)) / 2)
    assert found.error == pytest.approx(deviation / math.sqrt(3))
    assert found.error is not None
    assert found.p is not None
    # With two degrees of freedom, P(|T| > t) = 1 − t/√(2 + t²).
    t = found.difference / found.error
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.low == pytest.approx(found.difference - 2.919986 * found.error, abs=1e-5)
    assert found.high == pytest.approx(found.difference + 2.919986 * found.error, abs=1e-5)
    assert found.is_within(4.5)
    assert not found.is_within(3.0)
    assert paired([31.0, 20.0, 10.0], [33.5, 22.0, 11.0]).difference == -found.difference


def test_p_is_even_where_nothing_differs() -> None:
    rng = random.Random(5)
    draws = [paired([rng.gauss(0, 1) for _ in range(5)], [0.0] * 5).p or 0.0 for _ in range(4000)]
    for level in (0.05, 0.2, 0.5):
        share = sum(p < level for p in draws) / len(draws)
        assert share == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / len(draws)))


def test_one_pair_and_equal_pairs_say_what_they_can() -> None:
    alone = paired([1.0], [0.5])
    assert (alone.difference, alone.error, alone.p, alone.low) == (0.5, None, None, None)
    assert not alone.is_within(9.0)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert paired([2.0, 3.0], [1.0, 2.0]).p == 0.0
    for values in (list[float](), [1.0]):
        with pytest.raises(LocalProtocolError):
            paired(values, [])


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06], rel=1e-12)
    assert holm([0.25, None, 0.125]) == [0.25, None, 0.25]
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
