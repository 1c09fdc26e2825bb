"""Measures of a policy on graded completions: unbiased pass@k, calibration, and the record of one evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.errors import LocalProtocolError

MEASURES_VERSION = 2
"""Incremented when a measure changes its meaning or a new one is kept: results without it are not reused."""

PASS_K = 8
"""Tries of pass@k: the training group's size, so that 1 − pass@8 is the share of prompts that a group cannot learn."""

PASS_SAMPLES = 16
"""Completions of each prompt that estimate pass@8: twice as many as tries, so that one prompt gives many subsets."""

PASS_SHARE = 8
"""One in this many evaluation prompts is completed `PASS_SAMPLES` times, which doubles the cost of an evaluation."""

TAPERED = 0.05
"""A failure counts as tapered away below this share of the weight that it would have on policy."""

_BINS = 10
"""Bins of the calibration error, of equal width."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One seed's policy on fresh prompts; because every measure is a curve, all are fields of one record."""

    update: int
    """Learner updates before it."""
    sampled: float
    """Mean reward of one completion a prompt, sampled at temperature 1, the temperature of training."""
    greedy: float
    """Mean reward of the greedy completion of the same prompts (greedy pass@1)."""
    pass_at_8: float
    """Unbiased estimate of the chance that at least one of eight sampled completions has reward 1."""
    entropy: float
    """Mean entropy of the next-token distribution over the sampled completions' tokens, nats."""
    nll: float
    """Mean of −log p a token, nats: of each sampled completion, then over completions."""
    length: float
    """Mean tokens of a sampled completion, the end token included."""
    finished: float
    """Share of sampled completions with an end token within the limit."""
    calibration: float
    """Expected calibration error of the greedy completion's probability as a forecast that it is right."""
    greedy_seen: float = 0.0
    """Mean reward of the greedy completions of prompts that the seed was trained on; `greedy` less than this is memory,
    where a task has a training split, and else noise."""
    kl: float = 0.0
    """Mean of log q − log p over the batches since the last evaluation, nats a token: distance to the samplers."""
    grad_norm: float = 0.0
    """Median gradient norm before the clip since the last evaluation; 0 at update 0."""
    failures_below_05: float | None = None
    """Share of completions of negative advantage, since the last evaluation, whose weight is below .05 of what the
    same loss would give it on policy; None where there was none, and in older results."""


MEASURES = (
    *("sampled", "greedy", "greedy_seen", "pass_at_8", "entropy", "nll", "length", "finished", "calibration", "kl"),
    "grad_norm",
)
"""The fields of `Evaluation` that have a curve."""


NOT_FINITE = 1e300
"""Stands for a figure that is infinite or not a number, which JSON cannot hold."""


def storable(figure: float) -> float:
    """The figure, or `NOT_FINITE`."""
    return figure if math.isfinite(figure) else NOT_FINITE


def pass_at_k(right: int, samples: int, k: int) -> float:
    """Unbiased pass@k of one prompt: 1 − C(n − c, k) / C(n, k) (Chen et al., arXiv 2107.03374).

    `right` of `samples` independent completions are right. LocalProtocolError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    if not (0 <= right <= samples and 1 <= k <= samples):
        raise LocalProtocolError(f"pass@{k} of {right} right completions among {samples} is undefined")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def calibration_error(chances: Sequence[float], outcomes: Sequence[float]) -> float:
    """Expected calibration error: Σ_bins (share of forecasts) · |mean forecast − mean outcome|, ten equal bins.

    `chances` are forecasts within 0..1, `outcomes` what came of each, within 0..1. 0 for no forecast.
    """
    bins: dict[int, list[tuple[float, float]]] = {}
    for chance, outcome in zip(chances, outcomes, strict=True):
        bins.setdefault(min(int(chance * _BINS), _BINS - 1), []).append((chance, outcome))
    gaps = (abs(sum(chance - outcome for chance, outcome in rows)) for rows in bins.values())
    return sum(gaps) / len(chances) if chances else 0.0
