"""Paired comparisons over seeds: Student's t with its degrees of freedom, Holm's correction, and equivalence (TOST)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from p2prl.errors import LocalProtocolError

LEVEL = 0.05
"""Error rate of each family of tests, and of each of an equivalence's two one-sided tests."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Mean difference of pairs, and how far it can be trusted. Without two pairs that differ nothing can be said."""

    difference: float
    error: float | None
    """Standard error; None for one pair."""
    p: float | None
    """Two-sided p of no difference, Student's t with one degree of freedom less than pairs; None without an error."""
    low: float | None
    """Lower end of the interval of confidence 90 %: inside ± a margin, both one-sided tests reject a larger difference,
    which is equivalence at level .05 (TOST)."""
    high: float | None
    """Upper end."""

    def is_within(self, margin: float) -> bool:
        """Whether the two are equivalent to `margin`."""
        return self.low is not None and self.high is not None and -margin < self.low and self.high < margin


def paired(own: Sequence[float], other: Sequence[float]) -> Paired:
    """Own minus other, pair by pair. LocalProtocolError for none, or lists of different lengths."""
    if not own or len(own) != len(other):
        raise LocalProtocolError(f"{len(own)} and {len(other)} values are no pairs")
    differences = [left - right for left, right in zip(own, other, strict=True)]
    mean = fmean(differences)
    if len(differences) < 2:
        return Paired(difference=mean, error=None, p=None, low=None, high=None)
    error, freedom = stdev(differences) / math.sqrt(len(differences)), len(differences) - 1
    if error == 0:
        return Paired(difference=mean, error=0.0, p=1.0 if mean == 0 else 0.0, low=mean, high=mean)
    half = error * t_quantile(1 - LEVEL, freedom)
    p = 2 * (1 - t_probability(abs(mean / error), freedom))
    return Paired(difference=mean, error=error, p=p, low=mean - half, high=mean + half)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p of each: reject those of at most the level, and the family errs no more often than that.

    None stays, and counts as no test.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def t_probability(t: float, freedom: int) -> float:
    """P(T ≤ t) of Student's t with a whole number of degrees of freedom, by its finite series (Abramowitz and Stegun,
    26.7.3 and 26.7.4). LocalProtocolError below one degree."""
    if freedom < 1:
        raise LocalProtocolError(f"Student's t with {freedom} degrees of freedom")
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2


def t_quantile(probability: float, freedom: int) -> float:
    """The t of `t_probability`, for a probability of at least .5 and below 1."""
    if not 0.5 <= probability < 1:
        raise LocalProtocolError(f"the quantile of probability {probability} is not offered")
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high
