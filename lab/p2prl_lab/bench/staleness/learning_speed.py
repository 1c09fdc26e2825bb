"""Measures of a whole curve, for policies that keep moving: area under greedy, time to a level, and the void rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from p2prl_lab.bench.staleness.measures import Evaluation

STALE_KL = 0.01
"""Nats a token. An evaluation before which learner and samplers were closer on the mean says nothing about staleness:
where the policy has stopped, old rollouts are as good as new ones."""

NEARLY = 0.98
"""Share of the on-policy end whose first update is reported."""

Curve = Sequence[tuple[int, float]]
"""(update, value), by update."""


def area(curve: Curve, start: int) -> float | None:
    """Mean height of a curve from update `start` on: trapezoids over evaluations, the first cut at `start`.

    None where the curve ends before, or has no length there.
    """
    total = length = 0.0
    for (left, low), (right, high) in itertools.pairwise(curve):
        begin = max(left, start)
        if begin < right:
            first = low + (high - low) * (begin - left) / (right - left)
            total += (first + high) / 2 * (right - begin)
            length += right - begin
    return total / length if length else None


def first_at(curve: Curve, level: float) -> int | None:
    """Updates before the first evaluation of at least `level`; None where there is none."""
    return next((update for update, value in curve if value >= level), None)


def stale_share(evaluations: Sequence[Evaluation], start: int) -> float:
    """Share of the evaluations after update `start` whose learner–sampler KL is at least `STALE_KL`; 0 for none."""
    counted = [evaluation.kl >= STALE_KL for evaluation in evaluations if evaluation.update > start]
    return sum(counted) / len(counted) if counted else 0.0
