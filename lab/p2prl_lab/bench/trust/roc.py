"""Curves of detection against false rejects, for each class of engines, size of a group, and way to cheat.

A group's suspicion is the largest of the four rules' (`p2prl/models/replay_statistics/judge.py`), each in units of the
threshold at which the product rejects: at 1 a group fails. The band is that of the class: what its golden groups would
have measured. Claimed log-probs are the scorer's own, as of a cheat that launders them, so that the tokens decide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from p2prl.models.replay_statistics.baselines import SAFETY
from p2prl.models.replay_statistics.judge import CREDITED_LOGITS, FALSE_REJECTS, TokenScores, rule_scores
from p2prl.models.replay_statistics.noise import Floats, noise_scale
from p2prl_lab.bench.trust.replay_power import LAYERS, made
from p2prl_lab.bench.trust.synthetic_groups import CHEATS, Generator, Policy, honest_tokens, with_invented

CLASSES = {
    "float32, two machines": ("float32", 1e-3),
    "bfloat16, one engine": ("bfloat16", 0.02),
    "bfloat16, two engines": ("bfloat16", 0.1),
}
"""Name → number type, and noise of its engines in logits."""

SIZES = (8, 40, 512)

LAUNDERED = ("invented token", "near ties", "temperature x 1.1", "int4 weights")
"""Cheats whose tokens are wrong: those that only lie about log-probs pass with the scorer's own."""

_POINTS = 40
"""Points of a curve, at most."""


@dataclass(frozen=True, kw_only=True)
class RocPoint:
    """Share of a cheat's groups found where this share of honest groups is rejected."""

    engines: str
    """A name of `CLASSES`."""
    cheat: str
    tokens: int
    threshold: float
    """Suspicion from which a group is rejected; the product's is 1."""
    false_rejects: float
    found: float


def roc_points(
    groups: int, seed: int = 0, *, dtypes: Sequence[str] = ("float32", "bfloat16"), sizes: Sequence[int] = SIZES
) -> Iterator[RocPoint]:
    """All curves of some number types, from `groups` honest groups and as many of each cheat."""
    policy = made("usual", 1.0)
    for (engines, (dtype, noise)), tokens in itertools.product(CLASSES.items(), sizes):
        if dtype not in dtypes:
            continue
        rng = np.random.default_rng(seed)
        honest = np.sort([_suspicion(honest_tokens(policy, tokens, noise, rng), dtype, noise) for _ in range(groups)])
        for cheat in LAUNDERED:
            forged = np.sort(
                [_suspicion(_forged(cheat, policy, tokens, noise, rng), dtype, noise) for _ in range(groups)]
            )
            for threshold in _thresholds(honest, forged):
                yield RocPoint(
                    engines=engines, cheat=cheat, tokens=tokens, threshold=threshold,
                    false_rejects=float(np.mean(honest > threshold)), found=float(np.mean(forged > threshold)),
                )  # fmt: skip


def _forged(cheat: str, policy: Policy, tokens: int, noise: float, rng: Generator) -> TokenScores:
    """A cheat's group. Deviations of wrong weights or temperatures are larger than those of any class."""
    if cheat == "invented token":
        return with_invented(honest_tokens(policy, tokens, noise, rng), CREDITED_LOGITS, rng)
    return CHEATS[cheat](policy, tokens, rng)


def _suspicion(tokens: TokenScores, dtype: str, noise: float) -> float:
    """The largest of the rules' scores, each 1 where the product rejects."""
    laundered = replace(tokens, claimed=tokens.logprobs)
    scale = noise_scale(
        claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=LAYERS, measured=SAFETY * noise
    )
    scores = rule_scores(laundered, scale, 1.0, most=CREDITED_LOGITS)
    nats = -math.log(FALSE_REJECTS)
    unlikely = -math.log(max(1e-300, min(scores.token, scores.number)))
    return max(unlikely / nats, scores.total, scores.logprobs, float(tokens.margins.max()) / CREDITED_LOGITS)


def _thresholds(honest: Floats, forged: Floats) -> list[float]:
    """Thresholds at which something changes, the product's among them, from the strictest on."""
    values = np.unique(np.concatenate([honest, forged, [0.0, 1.0]]))
    chosen = values[np.linspace(0, len(values) - 1, min(_POINTS, len(values))).astype(int)]
    return sorted({*chosen.tolist(), 1.0}, reverse=True)
