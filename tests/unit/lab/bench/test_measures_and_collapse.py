"""Measures against independent computations, and the collapse rule on made-up curves."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import pytest

from p2prl.errors import LocalProtocolError
from p2prl_lab.bench.staleness.collapse import collapsed_at
from p2prl_lab.bench.staleness.measures import NOT_FINITE, Evaluation, calibration_error, pass_at_k, storable


@pytest.mark.parametrize(("right", "samples", "k"), [(0, 6, 3), (1, 6, 3), (2, 6, 3), (4, 6, 3), (6, 6, 3), (3, 5, 5)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(right: int, samples: int, k: int) -> None:
    outcomes = [True] * right + [False] * (samples - right)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(right, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.8])
def test_pass_at_k_is_unbiased(chance: float) -> None:
    share = Fraction(chance).limit_denominator(100)
    expected = sum(
        math.comb(16, c) * float(share) ** c * float(1 - share) ** (16 - c) * pass_at_k(c, 16, 8) for c in range(17)
    )
    assert expected == pytest.approx(1 - (1 - chance) ** 8)


@pytest.mark.parametrize(("right", "samples", "k"), [(-1, 4, 2), (5, 4, 2), (1, 4, 5), (1, 4, 0)])
def test_pass_at_k_of_nothing_is_refused(right: int, samples: int, k: int) -> None:
    with pytest.raises(LocalProtocolError):
        pass_at_k(right, samples, k)


def test_calibration_is_the_gap_between_forecast_and_outcome() -> None:
    assert calibration_error([], []) == 0.0
    assert calibration_error([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0.0)
    assert calibration_error([1.0] * 4, [1, 1, 1, 0]) == pytest.approx(0.25)
    assert calibration_error([0.05] * 4, [1, 1, 1, 0]) == pytest.approx(0.7)
    # Two bins, each off by .2 in its own direction: within a bin gaps cancel, between bins they do not.
    assert calibration_error([0.8, 0.8, 0.2, 0.2], [1, 1, 0, 0]) == pytest.approx(0.2)
    assert calibration_error([0.31, 0.39], [1, 0]) == pytest.approx(0.15)


def test_figures_that_json_cannot_hold_are_replaced() -> None:
    assert [storable(figure) for figure in (1.5, math.inf, -math.inf, math.nan)] == [1.5, *[NOT_FINITE] * 3]


def run(
    *, norm: list[float] | None = None, entropy: list[float] | None = None, length: list[float] | None = None,
    finished: list[float] | None = None, greedy: list[float] | None = None, pass_at_8: list[float] | None = None,
) -> list[Evaluation]:  # fmt: skip
    """Evaluations 20 updates apart; a figure that is not given stays at a healthy start."""
    size = max(len(curve) for curve in (norm, entropy, length, finished, greedy, pass_at_8) if curve)

    def at(curve: list[float] | None, index: int, healthy: float) -> float:
        return healthy if curve is None else curve[min(index, len(curve) - 1)]

    return [
        Evaluation(
            update=20 * index, sampled=0.4, pass_at_8=at(pass_at_8, index, 0.9), nll=0.5, calibration=0.1,
            greedy=at(greedy, index, 0.4), entropy=at(entropy, index, 0.6), length=at(length, index, 5.0),
            finished=at(finished, index, 1.0), grad_norm=0.0 if index == 0 else at(norm, index, 0.5),
        )
        for index in range(size)
    ]  # fmt: skip


LOUD = [0, 0.5, 0.5, 5.0, 5.0, 5.0]
NOISY = [0.6, 0.6, 0.6, 1.2, 1.2, 1.2]


def test_a_run_that_learns_has_not_collapsed() -> None:
    """Certain, right and without a gradient: the signs of silence, and of success."""
    solved = run(
        norm=[0, 0.5, 0.3, 0.1, 0, 0, 0], entropy=[0.6, 0.3, 0.1, 0.02, 0, 0, 0], greedy=[0.4, 0.7, 0.9, 1.0, 1.0, 1.0]
    )
    assert collapsed_at(solved) is None
    assert collapsed_at(solved[:1]) is None
    assert collapsed_at([]) is None


def test_silence_without_skill_is_a_collapse() -> None:
    lost = {"greedy": [0.4, 0.3, 0.1]}
    assert collapsed_at(run(norm=[0, 0.5, 0.3, 0, 0, 0, 0], entropy=[0.6, 0.3, 0.3, 0.01, 0.01, 0.01], **lost)) == 100
    # The bounds themselves: a thousandth of .5 and a twentieth of .6.
    assert collapsed_at(run(norm=[0, 0.5, 0.00049], entropy=[0.6, 0.0299, 0.0299, 0.0299, 0.0299], **lost)) == 80
    assert collapsed_at(run(norm=[0, 0.5, 0.00051], entropy=[0.6, 0.0299, 0.0299, 0.0299, 0.0299], **lost)) is None
    assert collapsed_at(run(norm=[0, 0.5, 0.00049], entropy=[0.6, 0.031, 0.031, 0.031, 0.031], **lost)) is None


def test_noise_with_an_exploded_gradient_is_a_collapse() -> None:
    assert collapsed_at(run(norm=LOUD, entropy=NOISY)) == 100
    assert collapsed_at(run(norm=[0, 0.5, 0.5, 4.9, 4.9, 4.9], entropy=NOISY)) is None
    assert collapsed_at(run(norm=LOUD, entropy=[0.6, 0.6, 0.6, 1.19, 1.19, 1.19])) is None


@pytest.mark.parametrize("only", [{"norm": LOUD}, {"entropy": NOISY}, {"length": [5.0, 2.0, 2.0, 2.0, 2.0]}])
def test_one_sign_is_no_collapse(only: dict[str, list[float]]) -> None:
    assert collapsed_at(run(**only)) is None


def test_short_or_endless_completions_are_a_sign() -> None:
    assert collapsed_at(run(entropy=NOISY, length=[5.0, 5.0, 5.0, 2.4, 2.4, 5.0])) is None  # twice only
    assert collapsed_at(run(entropy=NOISY, length=[5.0, 5.0, 5.0, 2.4, 2.4, 2.4])) == 100
    assert collapsed_at(run(entropy=NOISY, length=[5.0, 5.0, 5.0, 2.5, 2.5, 2.5])) is None
    assert collapsed_at(run(entropy=NOISY, finished=[1, 1, 1, 0.5, 0.5, 0.5])) == 100
    assert collapsed_at(run(entropy=NOISY, finished=[1, 1, 1, 0.51, 0.51, 0.51])) is None


def test_lost_skill_is_a_collapse() -> None:
    assert collapsed_at(run(greedy=[0.4, 0.2, 0.2, 0.2], pass_at_8=[0.9, 0.45, 0.45, 0.45])) == 60
    assert collapsed_at(run(greedy=[0.4, 0.2, 0.2, 0.2], pass_at_8=[0.9, 0.45, 0.45, 0.46])) is None
    assert collapsed_at(run(greedy=[0.4, 0.2, 0.2, 0.21], pass_at_8=[0.9, 0.4, 0.4, 0.4])) is None
    assert collapsed_at(run(greedy=[0.4, 0.1, 0.1, 0.4, 0.1, 0.1], pass_at_8=[0.9, 0.1])) is None
    assert collapsed_at(run(greedy=[0.0, 0.0, 0.0, 0.0], pass_at_8=[0.5, 0.1])) is None  # nothing to lose at the start
    assert collapsed_at(run(greedy=[0.4, 0.1], pass_at_8=[0.0, 0.0, 0.0, 0.0])) is None


def test_what_was_learned_and_lost_is_a_collapse_even_above_the_start() -> None:
    assert collapsed_at(run(greedy=[0.1, 1.0, 0.5, 0.5, 0.5], pass_at_8=[0.3, 1.0, 0.5, 0.5, 0.5])) == 80
    assert collapsed_at(run(greedy=[0.1, 1.0, 0.5, 0.5, 0.51], pass_at_8=[0.3, 1.0, 0.5, 0.5, 0.5])) is None
    assert collapsed_at(run(greedy=[0.1, 1.0, 0.5, 0.5, 0.5], pass_at_8=[0.3, 1.0, 0.5, 0.5, 0.51])) is None
    assert collapsed_at(run(greedy=[0.0, 1.0, 0.1, 0.1, 0.1], pass_at_8=[0.0, 1.0, 0.1, 0.1, 0.1])) == 80
    # The best of each, whenever it was.
    assert collapsed_at(run(greedy=[0.4, 1.0, 0.6, 0.5, 0.5, 0.5], pass_at_8=[0.9, 0.8, 0.45, 0.45, 0.45, 0.45])) == 100


def test_the_control_collapses() -> None:
    """REINFORCE without weights, chain4, const:16, learning rate 3e-3, as measured every 10 updates."""
    control = run(
        norm=[0, 0.580, 0.874, 0.607, 0.312, 0.355, 0.439, 0.108, 0.0],
        entropy=[0.576, 0.524, 0.815, 0.676, 0.547, 0.563, 0.510, 0.440, 0.484],
        length=[4.500, 6.336, 7.297, 5.961, 5.844, 4.484, 3.539, 5.812, 6.188],
        finished=[1.0, 0.781, 0.352, 0.992, 1.0, 1.0, 1.0, 0.977, 0.914],
        greedy=[0.375, 0.234, 0.172, 0.125, 0.148, 0.008, 0.0, 0.094, 0.109],
        pass_at_8=[0.875, 0.558, 0.281, 0.494, 0.123, 0.093, 0.0, 0.187, 0.315],
    )
    assert collapsed_at(control) == 120  # the sixth evaluation after the start, of made-up spacing


def test_a_spike_is_no_collapse_and_a_recovered_run_has_collapsed() -> None:
    assert collapsed_at(run(norm=[0, 0.5, 9, 9, 0.5, 9, 9], entropy=[0.6, 0.6, 2, 2, 0.6, 2, 2])) is None
    assert collapsed_at(run(norm=[*LOUD, 0.5, 0.5], entropy=[*NOISY, 0.6, 0.6])) == 100
    # Both signs last, but never at the same time.
    assert collapsed_at(run(norm=[0, 0.5, 9, 9, 9, 0.5, 0.5, 0.5], entropy=[0.6] * 5 + [2.0] * 3)) is None


def test_little_entropy_may_double() -> None:
    assert collapsed_at(run(norm=LOUD, entropy=[0.1, 0.1, 0.1, 0.49, 0.49, 0.49])) is None
    assert collapsed_at(run(norm=LOUD, entropy=[0.1, 0.1, 0.1, 0.51, 0.51, 0.51])) == 100


@pytest.mark.parametrize("name", ["grad_norm", "entropy", "length"])
def test_a_figure_that_is_not_finite_is_a_collapse_at_once(name: str) -> None:
    evaluations = run(norm=[0, 0.5, 0.5, 0.5])
    damaged: dict[str, Any] = {name: storable(math.nan)}
    evaluations[2] = dataclasses.replace(evaluations[2], **damaged)
    assert collapsed_at(evaluations) == 40


def test_a_start_without_a_gradient_can_not_explode() -> None:
    assert collapsed_at(run(norm=[0, 0, 0, 5, 5, 5], entropy=NOISY)) is None
