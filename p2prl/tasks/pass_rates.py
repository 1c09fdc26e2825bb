"""Pass rates of a policy: pass@k from several samples a prompt, and the 95 % interval of a mean over prompts. Pure.

A completion passes above a threshold. A procedural task's score ends at 1. A data task's is a weighted sum: with
`number` at 1 and `format` at .1, a right answer in the wrong form passes and a wrong answer in the right form does not.
Half of the sum of the positive weights decides that for any weights; penalties are left out, since no answer gains by
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

_HALF = 0.5


def pass_threshold(scoring: str | None) -> float:
    """The threshold of a data task's scoring (`p2prl/tasks/scorers/spec.py`); of a procedural task for None."""
    if scoring is None:
        return _HALF
    rewards = json.loads(scoring)["rewards"]
    return _HALF * sum(max(0.0, float(reward.get("weight", 1.0))) for reward in rewards)


_Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over prompts of values within 0..1, and its 95 % interval."""

    rate: float
    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Probability that at least one of `k` completions passes, from `samples` ≥ k of which `passed` passed.

    1 − C(n − c, k) / C(n, k): the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, section 2.1), in exact
    integers. `1 − (1 − c/n)^k` would be biased upwards for k > 1 and small n.
    """
    assert 0 <= passed <= samples
    assert 1 <= k <= samples
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def rate_of(values: Iterable[float]) -> Rate:
    """The mean of one value within 0..1 per prompt, and its score interval (Wilson 1927); (0, 1) without values.

    Exact in form where each prompt gives 0 or 1: greedy decoding, and pass@k of exactly k samples. In between, a value
    within 0..1 varies at most as much as a coin of the same mean, so the interval is wider than it need be, never
    narrower. Completions of one prompt are not independent: the unit is the prompt.
    """
    listed = list(values)
    count = len(listed)
    if not count:
        return Rate(0.0, 0.0, 1.0)
    mean = min(1.0, max(0.0, math.fsum(listed) / count))
    spread = _Z_95 * _Z_95 / count
    center = (mean + spread / 2) / (1 + spread)
    half = _Z_95 * math.sqrt(mean * (1 - mean) / count + spread / (4 * count)) / (1 + spread)
    return Rate(mean, max(0.0, min(mean, center - half)), min(1.0, max(mean, center + half)))


def standard_error(values: Iterable[float]) -> float:
    """Standard error of the mean of one value per prompt; 0 with fewer than two."""
    listed = list(values)
    count = len(listed)
    if count < 2:
        return 0.0
    mean = math.fsum(listed) / count
    return math.sqrt(math.fsum((value - mean) ** 2 for value in listed) / (count - 1) / count)


def reported_ks(samples: int) -> tuple[int, ...]:
    """The k of pass@k that a report shows: 1, 2, 4, … and the number of samples; none without samples."""
    powers = [1 << bit for bit in range(samples.bit_length()) if 1 << bit < samples]
    return (*powers, samples) if samples else ()
