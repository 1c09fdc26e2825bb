"""Areas under curves, the first update at a level, and the void rule."""

from __future__ import annotations

import pytest

from p2prl_lab.bench.staleness.learning_speed import STALE_KL, area, first_at, stale_share
from p2prl_lab.bench.staleness.measures import Evaluation

CURVE = ((0, 0.0), (10, 1.0), (30, 0.0))


def test_an_area_is_the_mean_height_from_its_start_on() -> None:
    assert area(CURVE, 0) == pytest.approx(0.5)
    assert area(CURVE, 10) == pytest.approx(0.5)
    assert area(CURVE, 5) == pytest.approx((0.75 * 5 + 0.5 * 20) / 25)
    assert area(CURVE, 20) == pytest.approx(0.25)
    assert area(CURVE, 30) is None
    assert area(CURVE, 99) is None
    assert area(((0, 1.0),), 0) is None


def test_the_first_update_at_a_level() -> None:
    assert first_at(CURVE, 0.5) == 10
    assert first_at(CURVE, 1.0) == 10
    assert first_at(CURVE, 0.0) == 0
    assert first_at(CURVE, 1.1) is None


def evaluation(update: int, kl: float) -> Evaluation:
    return Evaluation(
        update=update, sampled=0.5, greedy=0.5, pass_at_8=0.5, entropy=0.1, nll=0.1, length=5.0, finished=1.0,
        calibration=0.0, kl=kl,
    )  # fmt: skip


def test_evaluations_count_as_stale_from_a_hundredth_of_a_nat_on() -> None:
    curve = [evaluation(0, 0.0), evaluation(8, 9.0), evaluation(16, STALE_KL), evaluation(24, STALE_KL - 1e-6)]
    assert stale_share(curve, 8) == 0.5  # those after update 8
    assert stale_share(curve, 0) == pytest.approx(2 / 3)
    assert stale_share(curve, 24) == 0.0
