"""Statistics of a replay: whether a group's margins and log-probs are those of an honest engine.

Let s be the deviation of one logit between the two engines (`replay_noise`), in nats at the temperature, and
σ = s·√2 that of the difference between two logits. An honest token differs from the scorer's draw only where the two
best noisy logits are closer than that difference. With Gumbel noise the distance between them has the density
ρ = 1 − Σp² near 0, with p the policy's probabilities, because a logit's distance to the best of all others is logistic
around log(p / (1 − p)), with density p(1 − p) at 0. So, for a token of an honest group,

    P(margin > m) = ρ ∫ P(N(0, σ²) > x) dx over x > m  =  ρ σ h(m / σ),    h(k) = φ(k) − k Q(k)
    P(margin > 0) = ρ σ / √(2π)            E[margin] = ρ σ² / 4            E[margin²] = ρ σ³ · 2 / (3 √(2π))

Seen between vLLM and torch in bfloat16: .74 % of tokens differ, by 1.4e-4 on average: s = .013 and .017, nearly one.
ρ is bounded by 1 − q², with q the probability of the scorer's draw. Four rules follow; a group fails the first that it
breaks, and each rejects an honest group with a probability of at most `FALSE_REJECTS`, at every size of a group:

1. Every token: P(margin > m) of its own row, times the number of tokens. A cap that no share of good tokens offsets.
2. The number of tokens that differ: the Poisson tail at its mean, the sum of P(margin > 0).
3. The sum of the margins: Bernstein's bound at the mean and the variance above.
4. Log-probs, softly: nothing is trained on a claim, so only one far outside the noise is refused. A log-prob moves by
   at most s (1 − p) √2; the mean of the deviations may be twice what that gives, and `LOGPROB_FLOOR` more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from p2prl.models.replay_noise import Floats, NoiseScale
from p2prl.protocol.rejection_reasons import RejectionReason

FALSE_REJECTS = 1e-6
"""Probability that a rule rejects an honest group whose noise is the scale's."""

MOST_MARGIN = 4.0
"""Nats a token may lie below the best, whatever the scale: rounding never makes a draw e⁴ = 55 times less likely."""

LOGPROB_FLOOR = 0.02
"""Deviation of the mean log-prob that is always allowed, nats: claims travel as float16."""

_LEAST_DENSITY = 1e-3
"""Least ρ: near certainty, the noise of the probabilities themselves is larger than they are."""

_FLOAT16_ROUNDOFF = 2.0**-11
_SQRT_2PI = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A group's tokens as replayed: one value per token, completions concatenated."""

    margins: Floats
    """Distance of the token's noisy logit below the best one, nats."""
    logprobs: Floats
    """The scorer's log-prob of the token."""
    best_logprobs: Floats
    """The scorer's log-prob of its own draw."""
    sizes: Floats
    """Root mean square of the row's logits, at the sampling temperature."""
    claimed: Floats
    """The volunteer's log-prob of the token."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of the four rules."""

    reason: str
    """Empty when the group passed."""
    mismatched: int
    """Tokens that are not the scorer's draw."""
    worst_margin: float
    logprob_excess: float
    """Mean deviation of the log-probs over what the scale allows; above 1 the group fails."""


def judge_tokens(tokens: TokenScores, scale: NoiseScale, temperature: float) -> Judgement:
    """Apply the four rules to a group's tokens."""
    noise = scale.of_rows(tokens.sizes, temperature)
    density = np.maximum(_LEAST_DENSITY, 1.0 - np.exp(2.0 * tokens.best_logprobs))
    mismatched = int(np.count_nonzero(~(tokens.margins <= 0.0)))
    excess = _logprob_excess(tokens, noise)
    reason: RejectionReason | str = ""
    if not _margins_are_honest(tokens.margins, math.sqrt(2.0) * noise, density):
        reason = RejectionReason.SEED_MISMATCH
    elif not excess <= 1.0:
        reason = RejectionReason.LOGPROB_MISMATCH
    return Judgement(reason, mismatched, float(np.max(tokens.margins)), excess)


def impossible_tokens(tokens: TokenScores, scale: NoiseScale, temperature: float, *, group_tokens: int) -> list[int]:
    """Indices of the tokens that break rule 1 in a group of `group_tokens` tokens, of which these are some."""
    deviations = math.sqrt(2.0) * scale.of_rows(tokens.sizes, temperature)
    density = np.maximum(_LEAST_DENSITY, 1.0 - np.exp(2.0 * tokens.best_logprobs))
    return [
        int(index)
        for index in np.flatnonzero((tokens.margins > 0.0) & np.isfinite(tokens.margins))  # no number proves nothing
        if tokens.margins[index] > MOST_MARGIN
        or group_tokens * density[index] * deviations[index] * _tail_mean(tokens.margins[index] / deviations[index])
        < FALSE_REJECTS
    ]


def largest_margin(tokens: int, scale: float, density: float = 1.0) -> float:
    """Largest margin that rule 1 allows in a group of `tokens` tokens, where one logit deviates by `scale` nats."""
    deviation = math.sqrt(2.0) * scale
    below, above = 0.0, MOST_MARGIN
    for _ in range(60):
        middle = (below + above) / 2.0
        if tokens * density * deviation * _tail_mean(middle / deviation) >= FALSE_REJECTS:
            below = middle
        else:
            above = middle
    return below


def _margins_are_honest(margins: Floats, deviations: Floats, density: Floats) -> bool:
    """Rules 1 to 3. A margin, scale or density that is not a number is not honest."""
    if not (np.all(margins <= MOST_MARGIN) and np.all(np.isfinite(density * deviations))):
        return False
    off = np.flatnonzero(margins > 0.0)
    if not off.size:
        return True
    for index in off:
        chance = density[index] * deviations[index] * _tail_mean(margins[index] / deviations[index])
        if margins.size * chance < FALSE_REJECTS:
            return False
    expected = float(np.sum(density * deviations)) / _SQRT_2PI
    if _poisson_tail(off.size, expected) < FALSE_REJECTS:
        return False
    mean = float(np.sum(density * deviations**2)) / 4.0
    variance = float(np.sum(density * deviations**3)) * 2.0 / (3.0 * _SQRT_2PI)
    nats = -math.log(FALSE_REJECTS)
    largest = largest_margin(margins.size, float(np.max(deviations)) / math.sqrt(2.0))
    return float(np.sum(margins)) <= mean + math.sqrt(2.0 * variance * nats) + largest * nats / 3.0


def _logprob_excess(tokens: TokenScores, noise: Floats) -> float:
    """Mean deviation of the claimed log-probs over the largest that rule 4 allows."""
    spread = math.sqrt(2.0) * noise * -np.expm1(tokens.logprobs)
    spread = spread + _FLOAT16_ROUNDOFF * np.abs(tokens.logprobs)
    half_normal = math.sqrt(2.0 / math.pi)
    mean = half_normal * float(np.mean(spread))
    error = math.sqrt((1.0 - half_normal**2) * float(np.mean(spread**2)) / spread.size)
    allowed = LOGPROB_FLOOR + 2.0 * (mean + 6.0 * error)
    return float(np.mean(np.abs(tokens.claimed - tokens.logprobs))) / allowed


def _tail_mean(k: float) -> float:
    """h(k): mean excess of a standard normal variable over k."""
    return max(0.0, math.exp(-k * k / 2.0) / _SQRT_2PI - k * math.erfc(k / math.sqrt(2.0)) / 2.0)


def _poisson_tail(count: int, mean: float) -> float:
    """P(X ≥ count) of a Poisson variable: Chernoff's bound, which is exact enough far out and never too small."""
    if count <= mean:
        return 1.0
    return math.exp(count - mean + count * math.log(mean / count)) if mean > 0.0 else 0.0
