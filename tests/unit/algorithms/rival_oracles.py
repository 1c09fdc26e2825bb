"""Oracles of the newer losses, registered beside those of `loss_oracles`: float64 loops over the direct formulas."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tests.unit.algorithms.loss_oracles import (
    ORACLES,
    Array,
    Case,
    Oracle,
    per_sequence,
    per_token,
    ppo_min,
    weighted,
)

COUPLED = {"m2po", "m2po_clip", "clip_cov", "kl_cov", "normalized_tis"}
"""Losses whose masks, clips or weights depend on all tokens of a batch, so the parts of an update do not add up."""

PULLS = {"asymre", "gepo_paper", "gepo_plus", "dppo", "ipo", "kl_cov", "oapl"}
"""Losses that move a policy on groups of equal rewards, by their formulas."""

__all__ = ["COUPLED", "ORACLES", "PULLS", "Oracle"]


@per_sequence("oapl")
def _oapl(ps: Array, qs: Array, a: float, *_: object) -> tuple[float, Array]:
    beta = 1e-3
    drift = float(np.sum(ps - qs))
    return (beta * drift - a) ** 2 / (2 * beta), np.full(len(ps), beta * drift - a)


@per_sequence("luspo")
def _luspo(ps: Array, qs: Array, a: float, *_: object) -> tuple[float, Array]:
    value, slope = ppo_min(math.exp(np.mean(ps - qs)), a, 0.2, 0.2)
    return value, np.full(len(ps), slope / len(ps))


@per_sequence("gmpo")
def _gmpo(ps: Array, qs: Array, a: float, *_: object) -> tuple[float, Array]:
    product, free = 1.0, []
    for p, q in zip(ps, qs, strict=True):
        r = math.exp(p - q)
        stopped = (a > 0 and r > math.exp(0.4)) or (a < 0 and r < math.exp(-0.4))
        product *= min(max(r, math.exp(-0.4)), math.exp(0.4)) if stopped else r
        free.append(0.0 if stopped else 1.0)
    w = product ** (1 / len(ps))
    return -w * a, -w * a * np.array(free) / len(ps)


@per_token("sapo")
def _sapo(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    tau, r = (1.0 if a > 0 else 1.05), math.exp(p - q)
    gate = 1 / (1 + math.exp(-tau * (r - 1)))
    return -4 / tau * gate * a, -4 * gate * (1 - gate) * r * a


@per_token("ipo")
def _ipo(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    r = math.exp(p - q) if abs(math.exp(p) - math.exp(q)) <= 0.3 else 0.0
    return -r * a + 1e-3 * (p - q) ** 2, -r * a + 2e-3 * (p - q)


@weighted("vespo")
def _vespo(ps: Array, qs: Array, a: float, *_: object) -> float:
    w = math.exp(np.sum(ps - qs))
    return w**3 * math.exp(2 * (1 - w)) if a < 0 else w**2 * math.exp(3 * (1 - w))


@weighted("icepop")
def _icepop(ps: Array, qs: Array, *_: object) -> Array:
    r = np.exp(ps - qs)
    return np.where((r >= 0.5) & (r <= 5), r, 0.0)


@weighted("normalized_tis")
def _normalized_tis(ps: Array, qs: Array, _a: float, case: Case, _b: int, _i: int) -> float:
    ratios = np.exp(np.where(case.mask, case.p - case.q, 0.0).sum(-1))
    return float(min(2.0, math.exp(np.sum(ps - qs))) / np.minimum(2.0, ratios).mean())


def m2po_widths(case: Case, budget: float) -> tuple[float, float]:
    """(ε_low, ε_high) by trying the |ℓ| of every token that a clip could stop, the largest first."""
    outward = [abs(x) for x, a in _tokens(case) if a * x > 0]
    clip = 0.0
    if not outward or sum(x * x for x in outward) / len(outward) <= budget:
        clip = 20.0
    for height in sorted(outward, reverse=True):
        if clip == 0.0 and sum(min(x, height) ** 2 for x in outward) / len(outward) < budget:
            clip = height
    return max(1 - math.exp(-clip), 0.3), max(math.exp(clip) - 1, 0.5)


def _tokens(case: Case) -> list[tuple[float, float]]:
    """(ℓ, A) of every token on the mask."""
    return [((case.p - case.q)[b, i, t], case.advantages[b, i]) for b, i, t in np.argwhere(case.mask)]


@per_token("m2po_clip")
def _m2po_clip(p: float, q: float, a: float, case: Case, *_: object) -> tuple[float, float]:
    low, high = m2po_widths(case, 0.04)
    return ppo_min(math.exp(p - q), a, low, high)


def covariances(case: Case) -> Array:
    """Covariance of each token; −inf off the mask."""
    spread = np.broadcast_to(case.advantages[..., None], case.p.shape)
    found = (spread - spread[case.mask].mean()) * (case.p - case.p[case.mask].mean())
    return np.where(case.mask, found, -np.inf)


def clip_cov_dropped(case: Case, share: float, low: float, high: float) -> NDArray[np.bool_]:
    """Evenly spaced among the candidates, in order."""
    cov, dropped = covariances(case), np.zeros(case.p.shape, dtype=bool)
    candidates = []
    for b, i, t in np.argwhere(case.mask):
        r, a = math.exp(case.p[b, i, t] - case.q[b, i, t]), case.advantages[b, i]
        stopped = (a > 0 and r > 1.2) or (a < 0 and r < 0.8)
        if low < cov[b, i, t] < high and not stopped:
            candidates.append((b, i, t))
    count = min(max(1, int(share * case.mask.sum())), len(candidates))
    for step in range(count):
        dropped[candidates[step * len(candidates) // count]] = True
    return dropped


@per_token("clip_cov")
def _clip_cov(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    if clip_cov_dropped(case, 2e-4, 1.0, 5.0)[b, i, t]:
        return 0.0, 0.0
    return ppo_min(math.exp(p - q), a, 0.2, 0.2)


@per_token("kl_cov")
def _kl_cov(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    # 2e-4 of the tokens of these cases is one token: the first of those with the largest covariance.
    pulled = int(np.argmax(covariances(case))) == np.ravel_multi_index((b, i, t), case.p.shape)
    value = -math.exp(p - q) * a
    return value + pulled * abs(p - q), value + pulled * float(np.sign(p - q))


def least_before(case: Case, b: int, i: int, t: int) -> float:
    """The least ratio of the tokens before t on the mask; 1 for none."""
    return min([math.exp(case.p[b, i, j] - case.q[b, i, j]) for j in range(t) if case.mask[b, i, j]], default=1.0)


@per_token("minpro")
def _minpro(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    w = min(math.exp(p - q) * least_before(case, b, i, t), 5.0)
    return -w * a * p, -w * a


@per_token("mu_grpo")
def _mu_grpo(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    if a < 0 and least_before(case, b, i, t) < 0.1:
        return 0.0, 0.0
    return ppo_min(math.exp(p - q), a, 0.8, 4.0)


@per_token("ctpo")
def _ctpo(_p: float, _q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    """max of the plain and the clipped term, and of failures no more than the dual one."""
    before = [math.exp(case.p[b, i, j] - case.q[b, i, j]) for j in range(t + 1) if case.mask[b, i, j]]
    r, width = math.prod(before), math.sqrt(len(before))
    kept = -a * min(max(r, math.exp(-0.025 * width)), math.exp(0.05 * width))
    value = max(-a * r, kept)
    if a < 0:
        value = min(value, -a * math.exp(0.05 * width))
    return value, value if value == -a * r else 0.0
