"""Groups of any size drawn from random policies by an engine with noise, without computing a vocabulary for each token.

A Gumbel race is a race of exponential clocks: the winner is drawn with the policy's probabilities, the next among the
others, and so on, and the times between them are exponential with the rate of those still running. So the three best
tokens of a position are drawn exactly, whatever the vocabulary; noise decides between more than three once in some
thousand mismatches. The log-prob an engine claims moves by its token's noise less the mean noise under the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2prl.models.replay_statistics.judge import TokenScores
from p2prl.models.replay_statistics.noise import Floats

Ints = npt.NDArray[np.int64]
Generator = np.random.Generator

_ROWS = 256
"""Different positions of a policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Positions of one kind, at one sampling temperature."""

    temperature: float
    vocabulary: int
    ends: Floats
    """Cumulative probabilities of each row, plus the row's number: one increasing sequence; (rows · vocabulary,)."""
    probabilities: Floats
    """(rows · vocabulary,)"""
    squares: Floats
    """Sum of squared probabilities of each row; (rows,)."""
    sizes: Floats
    """Root mean square of each row's logits, at the temperature; (rows,)."""


def policy(*, spread: float, vocabulary: int, temperature: float, mean: float = 0.0, seed: int = 0) -> Policy:
    """A policy whose logits are normal with the standard deviation `spread` around `mean`, before the temperature."""
    rng = np.random.default_rng(seed)
    logits = (mean + rng.normal(0.0, spread, (_ROWS, vocabulary))) / temperature
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    ends = np.cumsum(p, axis=1)
    ends[:, -1] = 1.0
    return Policy(
        temperature=temperature,
        vocabulary=vocabulary,
        ends=(ends + np.arange(_ROWS)[:, None]).ravel(),
        probabilities=p.ravel(),
        squares=(p**2).sum(axis=1),
        sizes=np.sqrt((logits**2).mean(axis=1)),
    )


@dataclass(frozen=True, slots=True)
class Race:
    """Tokens of a group before any engine has drawn them: the three best of each, as the scorer sees them."""

    policy: Policy
    rows: Ints
    probabilities: Floats
    """(3, tokens)"""
    noisy: Floats
    """Noisy logits at the temperature, up to a constant of the row; (3, tokens), best first."""

    def part(self, start: int, tokens: int) -> Race:
        """Some of the positions."""
        cut = slice(start, start + tokens)
        return Race(self.policy, self.rows[cut], self.probabilities[:, cut], self.noisy[:, cut])


def race(policy: Policy, tokens: int, rng: Generator) -> Race:
    """The three best tokens of `tokens` positions."""
    rows = rng.integers(_ROWS, size=tokens)
    first = _drawn(policy, rows, rng.random(tokens), ())
    second = _drawn(policy, rows, rng.random(tokens), (first,))
    third = _drawn(policy, rows, rng.random(tokens), (first, second))
    p = np.stack([policy.probabilities[each] for each in (first, second, third)])
    left = np.maximum(1e-12, 1.0 - np.cumsum(p, axis=0)[:2])
    arrivals = rng.exponential(size=(3, tokens)) / np.vstack([np.ones(tokens), left])
    return Race(policy, rows, p, -np.log(np.cumsum(arrivals, axis=0)))


def drawn_tokens(run: Race, noise: float, rng: Generator) -> TokenScores:
    """The tokens that an engine draws whose every logit differs from the scorer's by `noise` logits."""
    policy, p, tokens = run.policy, run.probabilities, len(run.rows)
    deviation = noise / policy.temperature
    errors = rng.normal(0.0, 1.0, (3, tokens)) * deviation
    chosen = (run.noisy + errors).argmax(axis=0)
    here = np.arange(tokens)
    logp = np.log(np.maximum(p, 1e-300))
    others = np.maximum(0.0, policy.squares[run.rows] - (p**2).sum(axis=0))
    moved = errors[chosen, here] - (p * errors).sum(axis=0) - rng.normal(size=tokens) * deviation * np.sqrt(others)
    logprobs = logp[chosen, here]
    return TokenScores(
        margins=run.noisy[0] - run.noisy[chosen, here],
        logprobs=logprobs,
        best_logprobs=logp[0],
        sizes=policy.sizes[run.rows],
        claimed=(logprobs + moved).astype("<f2").astype(np.float64),
    )


def honest_tokens(policy: Policy, tokens: int, noise: float, rng: Generator) -> TokenScores:
    """A race, and what an engine with `noise` draws in it."""
    return drawn_tokens(race(policy, tokens, rng), noise, rng)


def _drawn(policy: Policy, rows: Ints, uniform: Floats, taken: tuple[Ints, ...]) -> Ints:
    """A token of each row by its probabilities, none of those `taken`; indices into the flat arrays."""
    mass = np.ones(len(rows))
    for each in taken:
        mass -= policy.probabilities[each]
    point = uniform * np.maximum(mass, 0.0)
    # Taken tokens are stepped over from the left: the point moves past each that begins at or before it.
    for each in _by_place(taken):
        begin = policy.ends[each] - policy.probabilities[each] - rows
        point = np.where(point >= begin, point + policy.probabilities[each], point)
    found = np.searchsorted(policy.ends, rows + np.minimum(point, 1.0 - 1e-9), side="right")
    tokens: Ints = np.minimum(found, (rows + 1) * policy.vocabulary - 1)
    return tokens


def _by_place(taken: tuple[Ints, ...]) -> tuple[Ints, ...]:
    """Rearranged so that the first array has the smaller index of each row."""
    if len(taken) < 2:
        return taken
    low, high = np.minimum(taken[0], taken[1]), np.maximum(taken[0], taken[1])
    return low, high


def with_invented(tokens: TokenScores, margin: float, rng: Generator) -> TokenScores:
    """The group with one of its tokens replaced by another that lies `margin` nats below the best, and says so."""
    place = int(rng.integers(tokens.margins.size))
    margins, logprobs, claimed = tokens.margins.copy(), tokens.logprobs.copy(), tokens.claimed.copy()
    margins[place] = margin
    # As probable as the best one of its row, or it would be found by its log-prob too.
    logprobs[place] = claimed[place] = tokens.best_logprobs[place]
    return TokenScores(margins, logprobs, tokens.best_logprobs, tokens.sizes, claimed)


Cheat = Callable[[Policy, int, Generator], TokenScores]


def other_temperature(policy: Policy, tokens: int, rng: Generator) -> TokenScores:
    """Sampled a tenth hotter: each logit is off by a tenth of its distance from the mean."""
    spread = float(np.mean(policy.sizes)) * policy.temperature
    return honest_tokens(policy, tokens, 0.1 * spread, rng)


def rounded_weights(policy: Policy, tokens: int, rng: Generator) -> TokenScores:
    """Weights of four bits: noise of about a tenth of the logits' size, thirty times that of bfloat16."""
    return honest_tokens(policy, tokens, 0.12 * float(np.mean(policy.sizes)) * policy.temperature, rng)


def invented_token(policy: Policy, tokens: int, rng: Generator) -> TokenScores:
    """One token a nat below the best, in an honest group of usual noise."""
    return with_invented(honest_tokens(policy, tokens, 0.02, rng), 1.0, rng)


def near_ties(policy: Policy, tokens: int, rng: Generator) -> TokenScores:
    """The second best wherever it lies within .3 nats: a choice of text that no single token betrays."""
    return honest_tokens(policy, tokens, 0.3 * policy.temperature / math.sqrt(2.0), rng)


def made_up_logprobs(policy: Policy, tokens: int, rng: Generator) -> TokenScores:
    """The right tokens, with one log-prob claimed for all of them."""
    honest = honest_tokens(policy, tokens, 0.02, rng)
    claimed = np.full(tokens, float(np.mean(honest.logprobs)))
    return TokenScores(honest.margins, honest.logprobs, honest.best_logprobs, honest.sizes, claimed)


CHEATS: dict[str, Cheat] = {
    "invented token": invented_token,
    "near ties": near_ties,
    "temperature x 1.1": other_temperature,
    "int4 weights": rounded_weights,
    "made-up log-probs": made_up_logprobs,
}
"""Ways of cheating that a replay alone can find."""
