"""Statistics of a replay: whether a group's margins and log-probs are those of an honest engine.

Let s be the deviation of one logit between the two engines (`noise`), in nats at the temperature, and
σ = s·√2 that of the difference between two logits. An honest token differs from the scorer's draw only where the two
best noisy logits are closer than that difference. With Gumbel noise the distance between them has the density
ρ = 1 − Σp² near 0, with p the policy's probabilities, because a logit's distance to the best of all others is logistic
around log(p / (1 − p)), with density p(1 − p) at 0. So, for a token of an honest group,

    P(margin > m) = ρ ∫ P(N(0, σ²) > x) dx over x > m  =  ρ σ h(m / σ),    h(k) = φ(k) − k Q(k)
    P(margin > 0) = ρ σ / √(2π)            E[margin] = ρ σ² / 4            E[margin²] = ρ σ³ · 2 / (3 √(2π))

Seen between vLLM and torch in bfloat16: .74 % of tokens differ, by 1.4e-4 on average: s = .013 and .017, nearly one.
ρ is bounded by 1 − q², with q the probability of the scorer's draw. Four rules follow; a group fails the first that it
breaks, and each rejects an honest group with a probability of at most `FALSE_REJECTS`, at every size of a group:

1. Every token: P(margin > m) of its own row, times the number of tokens. A cap that no share of good tokens offsets,
   and never above `CREDITED_LOGITS`: so no class of engines, however noisy, gets an invented token paid.
2. The number of tokens that differ: the Poisson tail at its mean, the sum of P(margin > 0).
3. The sum of the margins: Bernstein's bound at the mean and the variance above.
4. Log-probs, softly: nothing is trained on a claim, so only one far outside the noise is refused. A log-prob moves by
   at most s (1 − p) √2; the mean of the deviations may be twice what that gives, and `LOGPROB_FLOOR` more.

A group is credited if it passes at the scale of its pair of classes. If it fails there and passes at the widest scale
of all, rounding may have made it: it earns nothing here, and is nobody's fault (`ENGINE_MISMATCH`). A validator of its
own class may judge it again. Only what no class explains counts against its author.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from p2prl.models.replay_statistics.noise import Floats, NoiseScale
from p2prl.protocol.rejection_reasons import RejectionReason

FALSE_REJECTS = 1e-4
"""Probability that a rule rejects an honest group whose noise is the whole of the scale; the four rules together stay
under 1e-3. Usual noise is half of the scale or less, and then they reject none."""

IMPOSSIBLE = 1e-9
"""As `FALSE_REJECTS`, for a token that proves a forgery: a few of these exclude their author, so an honest machine of
the most noise must not show one in a lifetime of groups."""

CREDITED_LOGITS = 1.0
"""Logits that a credited token may lie below the best; in nats, that over the temperature. The widest noise, .1 logits,
reaches it in one of 1e13 tokens, at every temperature."""

MOST_MARGIN = 4.0
"""Nats a token may lie below the best, whatever the scale: rounding never makes a draw e⁴ = 55 times less likely."""

LOGPROB_FLOOR = 0.02
"""Deviation of the mean log-prob that is always allowed, nats: claims travel as float16."""

LEAST_DENSITY = 1e-3
"""Least ρ: near certainty, the noise of the probabilities themselves is larger than they are."""

FLOAT16_ROUNDOFF = 2.0**-11
"""Largest relative error of a claimed log-prob, which travels as float16, twice over."""

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
    """Result of the rules."""

    reason: str
    """Empty when the group passed."""
    mismatched: int
    """Tokens that are not the scorer's draw."""
    worst_margin: float
    logprob_excess: float
    """Mean deviation of the log-probs over what the scale allows; above 1 the group fails."""


def judge_group(tokens: TokenScores, scale: NoiseScale, widest: NoiseScale, temperature: float) -> Judgement:
    """Judge a group's tokens at the scale of its pair of classes, and if it fails there at the widest of all."""
    judged = judge_tokens(tokens, scale, temperature, most=CREDITED_LOGITS / temperature)
    if not judged.reason:
        return judged
    reason = judge_tokens(tokens, widest, temperature).reason or RejectionReason.ENGINE_MISMATCH
    return replace(judged, reason=reason)


def judge_tokens(tokens: TokenScores, scale: NoiseScale, temperature: float, *, most: float = MOST_MARGIN) -> Judgement:
    """Apply the four rules to a group's tokens at one scale; no margin may be above `most` nats."""
    mismatched = int(np.count_nonzero(~(tokens.margins <= 0.0)))
    worst = float(np.max(tokens.margins))
    scores = rule_scores(tokens, scale, temperature, most=most)
    reason: RejectionReason | str = ""
    if not (worst <= min(most, MOST_MARGIN) and scores.margins_are_honest):
        reason = RejectionReason.SEED_MISMATCH
    elif not scores.logprobs <= 1.0:
        reason = RejectionReason.LOGPROB_MISMATCH
    return Judgement(reason, mismatched, worst, scores.logprobs)


@dataclass(frozen=True, slots=True)
class RuleScores:
    """What each rule found; nothing but NaN where a number of the replay is not one."""

    token: float
    """Rule 1: least probability of a margin, times the number of tokens."""
    number: float
    """Rule 2: probability of as many tokens that differ."""
    total: float
    """Rule 3: sum of the margins over its bound."""
    logprobs: float
    """Rule 4: mean deviation of the claimed log-probs over its bound."""

    @property
    def margins_are_honest(self) -> bool:
        """Whether rules 1 to 3 hold."""
        return self.token >= FALSE_REJECTS and self.number >= FALSE_REJECTS and self.total <= 1.0


def rule_scores(tokens: TokenScores, scale: NoiseScale, temperature: float, *, most: float = MOST_MARGIN) -> RuleScores:
    """The scores of a group's tokens at one scale; `most` bounds the margin that rule 3 reckons with."""
    noise = scale.of_rows(tokens.sizes, temperature)
    density = np.maximum(LEAST_DENSITY, 1.0 - np.exp(2.0 * tokens.best_logprobs))
    logprobs = _logprob_excess(tokens, noise)
    deviations = math.sqrt(2.0) * noise
    if not (np.all(np.isfinite(tokens.margins)) and np.all(np.isfinite(density * deviations))):
        return RuleScores(math.nan, math.nan, math.nan, logprobs)
    off = np.flatnonzero(tokens.margins > 0.0)
    if not off.size:
        return RuleScores(1.0, 1.0, 0.0, logprobs)
    chances = [density[i] * deviations[i] * _tail_mean(tokens.margins[i] / deviations[i]) for i in off]
    expected = float(np.sum(density * deviations)) / _SQRT_2PI
    mean = float(np.sum(density * deviations**2)) / 4.0
    variance = float(np.sum(density * deviations**3)) * 2.0 / (3.0 * _SQRT_2PI)
    nats = -math.log(FALSE_REJECTS)
    largest = largest_margin(
        tokens.margins.size, float(np.max(deviations)) / math.sqrt(2.0), most=min(most, MOST_MARGIN)
    )
    allowed = mean + math.sqrt(2.0 * variance * nats) + largest * nats / 3.0
    return RuleScores(
        token=tokens.margins.size * float(min(chances)),
        number=_poisson_tail(off.size, expected),
        total=float(np.sum(tokens.margins)) / allowed,
        logprobs=logprobs,
    )


def impossible_tokens(tokens: TokenScores, scale: NoiseScale, temperature: float, *, group_tokens: int) -> list[int]:
    """Indices of the tokens that break rule 1 in a group of `group_tokens` tokens, of which these are some, by so much
    that no honest engine samples them: a probability of `IMPOSSIBLE` instead of `FALSE_REJECTS`."""
    deviations = math.sqrt(2.0) * scale.of_rows(tokens.sizes, temperature)
    density = np.maximum(LEAST_DENSITY, 1.0 - np.exp(2.0 * tokens.best_logprobs))
    return [
        int(index)
        for index in np.flatnonzero((tokens.margins > 0.0) & np.isfinite(tokens.margins))  # no number proves nothing
        if tokens.margins[index] > MOST_MARGIN
        or group_tokens * density[index] * deviations[index] * _tail_mean(tokens.margins[index] / deviations[index])
        < IMPOSSIBLE
    ]


def largest_margin(tokens: int, scale: float, density: float = 1.0, *, most: float = MOST_MARGIN) -> float:
    """Largest margin that rule 1 allows in a group of `tokens` tokens, where one logit deviates by `scale` nats."""
    deviation = math.sqrt(2.0) * scale
    below, above = 0.0, most
    for _ in range(60):
        middle = (below + above) / 2.0
        if tokens * density * deviation * _tail_mean(middle / deviation) >= FALSE_REJECTS:
            below = middle
        else:
            above = middle
    return below


def _logprob_excess(tokens: TokenScores, noise: Floats) -> float:
    """Mean deviation of the claimed log-probs over the largest that rule 4 allows."""
    spread = math.sqrt(2.0) * noise * -np.expm1(tokens.logprobs)
    spread = spread + FLOAT16_ROUNDOFF * np.abs(tokens.logprobs)
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
