"""Oracles of the losses: float64 numpy loops, written from the formulas in their direct (not log-domain) form.

An oracle returns the token losses V[b,i,t] and the gradient with respect to the policy's log-probs, given the
aggregation coefficients c[b,i] of loss = Σ c[b,i] Σ_t V[b,i,t].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_registry import build_loss

Array = NDArray[np.float64]
MAX_TOKENS = 9


@dataclass(frozen=True)
class Case:
    """One random ragged batch."""

    p: Array
    q: Array
    mask: NDArray[np.bool_]
    advantages: Array
    staleness: NDArray[np.int64]
    proximal: Array
    reference: Array
    token_advantages: Array

    def batch(self, *, per_token: bool = False) -> RolloutBatch:
        return RolloutBatch(
            behavior_logprobs_BGT=torch.tensor(self.q),
            mask_BGT=torch.tensor(self.mask),
            advantages_BG=torch.tensor(self.advantages),
            staleness_BG=torch.tensor(self.staleness),
            proximal_logprobs_BGT=torch.tensor(self.proximal),
            reference_logprobs_BGT=torch.tensor(self.reference),
            token_advantages_BGT=torch.tensor(self.token_advantages) if per_token else None,
        )


def make_case(seed: int, spread: float, shape: tuple[int, int, int] = (3, 4, 6)) -> Case:
    """Ragged masks with holes; `spread` nats is the deviation of each token's log-ratio."""
    rng = np.random.default_rng(seed)
    q = -rng.uniform(0.02, 2.5, shape)

    def near(scale: float) -> Array:
        return np.minimum(q + scale * rng.normal(size=shape), -1e-3) if scale else q.copy()

    mask = rng.random(shape) < 0.7
    mask[..., 0] |= ~mask.any(-1)
    rewards = (rng.random(shape[:2]) < 0.5) + 0.3 * rng.normal(size=shape[:2])
    return Case(
        p=near(spread),
        q=q,
        mask=mask,
        advantages=rewards - rewards.mean(-1, keepdims=True),
        staleness=rng.integers(0, 70, shape[:2]),
        proximal=near(spread / 2),
        reference=near(0.7),
        token_advantages=rng.normal(size=shape),
    )


def coefficients(mask: NDArray[np.bool_], kind: str) -> Array:
    c = np.zeros(mask.shape[:2])
    count = mask.shape[0] * mask.shape[1]
    total = sum(int(row.sum()) for group in mask for row in group)
    power = sum(int(row.sum()) ** -0.75 for group in mask for row in group)
    for b, group in enumerate(mask):
        for i, row in enumerate(group):
            n = int(row.sum())
            c[b, i] = {
                "seq_mean": 1 / (count * n),
                "token_mean": 1 / total,
                "fixed_length": 1 / (count * MAX_TOKENS),
                "delta_l": n**-0.75 / (MAX_TOKENS * power),
            }[kind]
    return c


Oracle = Callable[[Case, Array], tuple[Array, Array]]
ORACLES: dict[str, Oracle] = {}


def ppo_min(w: float, a: float, low: float, high: float) -> tuple[float, float]:
    """(−min(w a, clip(w) a), its derivative by log w)."""
    clipped = min(max(w, 1 - low), 1 + high)
    if w * a <= clipped * a:
        return -w * a, -w * a
    return -clipped * a, 0.0


def per_token(name: str) -> Callable[[Callable[..., tuple[float, float]]], Callable[..., tuple[float, float]]]:
    """Register rule(p, q, A, case, b, i, t) -> (value, derivative by p)."""

    def register(rule: Callable[..., tuple[float, float]]) -> Callable[..., tuple[float, float]]:
        def oracle(case: Case, c: Array) -> tuple[Array, Array]:
            values, gradient = np.zeros_like(case.p), np.zeros_like(case.p)
            for b, i, t in np.argwhere(case.mask):
                args = (case.p[b, i, t], case.q[b, i, t], case.advantages[b, i], case, b, i, t)
                values[b, i, t], slope = rule(*args)
                gradient[b, i, t] = c[b, i] * slope
            return values, gradient

        ORACLES[name] = oracle
        return rule

    return register


def per_sequence(name: str) -> Callable[[Callable[..., tuple[float, Array]]], Callable[..., tuple[float, Array]]]:
    """Register rule(ps, qs, A, case, b, i) -> (value of the completion, derivative by each of its tokens)."""

    def register(rule: Callable[..., tuple[float, Array]]) -> Callable[..., tuple[float, Array]]:
        def oracle(case: Case, c: Array) -> tuple[Array, Array]:
            values, gradient = np.zeros_like(case.p), np.zeros_like(case.p)
            for b in range(case.p.shape[0]):
                for i in range(case.p.shape[1]):
                    on = case.mask[b, i]
                    value, slopes = rule(case.p[b, i][on], case.q[b, i][on], case.advantages[b, i], case, b, i)
                    values[b, i][on] = value
                    gradient[b, i][on] = c[b, i] * on.sum() * slopes
            return values, gradient

        ORACLES[name] = oracle
        return rule

    return register


def weighted(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register rule(ps, qs, A, case, b, i) -> weight (or one per token) of −sg(w) A log p."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        def oracle(case: Case, c: Array) -> tuple[Array, Array]:
            values, gradient = np.zeros_like(case.p), np.zeros_like(case.p)
            for b in range(case.p.shape[0]):
                for i in range(case.p.shape[1]):
                    on, a = case.mask[b, i], case.advantages[b, i]
                    w = rule(case.p[b, i][on], case.q[b, i][on], a, case, b, i)
                    values[b, i][on] = -w * a * case.p[b, i][on]
                    gradient[b, i][on] = -w * a * c[b, i]
            return values, gradient

        ORACLES[name] = oracle
        return rule

    return register


def geometric(case: Case, b: int, which: str) -> list[float]:
    """Geometric mean probability of each completion of group b."""
    source = case.p if which == "p" else case.q
    return [math.exp(source[b, i][case.mask[b, i]].mean()) for i in range(case.p.shape[1])]


def expectation(case: Case, b: int) -> float:
    q = geometric(case, b, "q")
    return sum(x * x for x in q) / sum(q)


@per_token("grpo")
@per_token("dr_grpo")
@per_token("bnpo")
@per_token("ppo")
def _grpo(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    return ppo_min(math.exp(p - q), a, 0.2, 0.2)


@per_token("dapo")
def _dapo(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    return ppo_min(math.exp(p - q), a, 0.2, 0.28)


@per_token("two_sided")
def _two_sided(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    r = math.exp(p - q)
    if r > 4:
        return max(-4 * a, -1.2 * a), 0.0
    return ppo_min(r, a, 0.2, 0.2)


@per_token("decoupled_ppo")
def _decoupled(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    behind = math.exp(case.proximal[b, i, t] - q)
    value, slope = ppo_min(math.exp(p - case.proximal[b, i, t]), a, 0.2, 0.2)
    return (behind * value, behind * slope) if behind <= 5 else (0.0, 0.0)


@per_token("a3po")
def _a3po(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    s = int(case.staleness[b, i])
    proximal = p if s == 0 else q / s + (1 - 1 / s) * p
    behind = math.exp(proximal - q)
    value, slope = ppo_min(math.exp(p - proximal), a, 0.2, 0.2)
    return (behind * value, behind * slope) if behind <= 5 else (0.0, 0.0)


@per_token("opsm")
def _opsm(p: float, q: float, a: float, case: Case, b: int, i: int, t: int) -> tuple[float, float]:
    on = case.mask[b, i]
    if a < 0 and np.mean(case.q[b, i][on] - case.p[b, i][on]) > 0.5:
        return 0.0, 0.0
    return ppo_min(math.exp(p - q), a, 0.2, 0.2)


@per_token("dppo")
def _dppo(p: float, q: float, a: float, *_: object) -> tuple[float, float]:
    change, ratio = math.exp(p) - math.exp(q), math.exp(p - q)
    keep = not ((a > 0 and change > 0.2) or (a < 0 and change < -0.2))
    return -keep * ratio * a + 1e-3 * (p - q) ** 2, -keep * ratio * a + 2e-3 * (p - q)


@per_token("m2po")
def _m2po(p: float, q: float, a: float, case: Case, *_: object) -> tuple[float, float]:
    squares = sorted(((case.p - case.q)[case.mask] ** 2).tolist())
    kept = squares
    while kept and sum(kept) / len(kept) > 0.04:
        kept = kept[:-1]
    if not kept or (p - q) ** 2 > kept[-1]:
        return 0.0, 0.0
    return -math.exp(p - q) * a, -math.exp(p - q) * a


@per_token("asymre")
def _asymre(p: float, _q: float, a: float, *_: object) -> tuple[float, float]:
    return -(a + 0.1) * p, -(a + 0.1)


@per_sequence("gspo")
def _gspo(ps: Array, qs: Array, a: float, *_: object) -> tuple[float, Array]:
    value, slope = ppo_min(math.exp(np.mean(ps - qs)), a, 0.2, 0.2)
    return value, np.full(len(ps), slope / len(ps))


@per_sequence("gepo")
def _gepo(ps: Array, _qs: Array, a: float, case: Case, b: int, _i: int) -> tuple[float, Array]:
    w = math.exp(ps.mean()) / expectation(case, b)
    return -w * a, np.full(len(ps), -w * a / len(ps))


def released(w: float, ps: Array, qs: Array, a: float) -> tuple[float, Array]:
    value, slope = ppo_min(w, a, 0.2, 0.2)
    x = qs - ps
    k3 = float(np.mean(np.exp(x) - x - 1))
    return value + 0.005 * k3, (slope + 0.005 * (1 - np.exp(x))) / len(ps)


@per_sequence("gepo_paper")
def _gepo_paper(ps: Array, qs: Array, a: float, case: Case, b: int, _i: int) -> tuple[float, Array]:
    return released(math.exp(ps.mean()) / expectation(case, b), ps, qs, a)


@per_sequence("gepo_plus")
def _gepo_plus(ps: Array, qs: Array, a: float, case: Case, b: int, _i: int) -> tuple[float, Array]:
    x = qs - ps
    near = float(np.mean(np.exp(x) - x - 1)) < 0.002
    return released(math.exp(ps.mean()) / (math.exp(qs.mean()) if near else expectation(case, b)), ps, qs, a)


def _eqp(case: Case, c: Array) -> tuple[Array, Array]:
    values, gradient = np.zeros_like(case.p), np.zeros_like(case.p)
    groups, size, _ = case.p.shape
    for b in range(groups):
        p, q = geometric(case, b, "p"), geometric(case, b, "q")
        share = [x / sum(q) for x in q]
        mean = sum(s * x for s, x in zip(share, p, strict=True))
        for i in range(size):
            n = int(case.mask[b, i].sum())
            w = p[i] / mean
            values[b, i][case.mask[b, i]] = -w * case.advantages[b, i]
            for j in range(size):  # d log w_i / d LP_j = [i = j] − share_j p_j / mean
                slope = (1.0 if i == j else 0.0) - share[j] * p[j] / mean
                on = case.mask[b, j]
                gradient[b, j][on] += c[b, i] * n * -w * case.advantages[b, i] * slope / on.sum()
    return values, gradient


ORACLES["eqp"] = _eqp


def taper(w: float, ps: Array, qs: Array, a: float) -> float:
    w = min(w, 2.0)
    return min(w, 1.0, math.exp(np.sum(ps - qs))) if a < 0 else w


@weighted("gepo_t")
def gepo_t(ps: Array, qs: Array, a: float, case: Case, b: int, _i: int) -> float:
    return taper(math.exp(ps.mean()) / expectation(case, b), ps, qs, a)


@weighted("gex")
def gex(ps: Array, qs: Array, a: float, case: Case, b: int, _i: int) -> float:
    size = case.p.shape[1]
    ratios = [math.exp(np.sum((case.p - case.q)[b, j][case.mask[b, j]])) for j in range(size)]
    ess = sum(ratios) ** 2 / sum(r * r for r in ratios)
    mix = (ess - 1) / (size - 1) if size > 1 else 0.0
    plain = math.exp(ps.mean()) / expectation(case, b)
    return taper(math.exp(np.sum(ps - qs)) ** mix * plain ** (1 - mix), ps, qs, a)


@weighted("reinforce")
def _reinforce(*_: object) -> float:
    return 1.0


@weighted("tis")
def _tis(ps: Array, qs: Array, *_: object) -> float:
    return min(2.0, math.exp(np.sum(ps - qs)))


@weighted("cispo")
def _cispo(ps: Array, qs: Array, *_: object) -> Array:
    return np.exp(ps - qs).clip(max=5.0)


@weighted("topr")
def _topr(ps: Array, qs: Array, a: float, *_: object) -> float:
    return min(1.0, math.exp(np.sum(ps - qs))) if a < 0 else 1.0


@weighted("seq_mis")
def _seq_mis(ps: Array, qs: Array, *_: object) -> float:
    w = math.exp(np.sum(ps - qs))
    return w if 0.5 <= w <= 2 else 0.0


@weighted("asympo")
def _asympo(ps: Array, *_: object) -> float:
    return 1 / max(-float(ps.mean()), 0.01)


def dpo_oracle(case: Case) -> tuple[float, Array]:
    loss, gradient = 0.0, np.zeros_like(case.p)
    groups = case.p.shape[0]
    for b in range(groups):
        a = case.advantages[b]
        best = [i for i in range(len(a)) if a[i] == a.max()]
        worst = [i for i in range(len(a)) if a[i] == a.min()]
        gain = [np.sum((case.p - case.reference)[b, i][case.mask[b, i]]) for i in range(len(a))]
        for i in best:
            for j in worst:
                margin = 0.1 * (gain[i] - gain[j])
                share = 1 / (len(best) * len(worst) * groups)
                loss += share * math.log1p(math.exp(-margin))
                push = share * 0.1 / (1 + math.exp(margin))
                gradient[b, i][case.mask[b, i]] -= push
                gradient[b, j][case.mask[b, j]] += push
    return loss, gradient


def run(name: str, case: Case, kind: str, *, per_token: bool = False) -> tuple[LossOutput, Array]:
    """p2prl's output for a case, and its gradient with respect to the policy's log-probs."""
    aggregation = AggregationConfig(kind=kind, max_completion_tokens=MAX_TOKENS)  # type: ignore[arg-type]
    policy = torch.tensor(case.p, requires_grad=True)
    output = build_loss(name, aggregation=aggregation).loss(policy, case.batch(per_token=per_token))
    (gradient,) = torch.autograd.grad(output.loss, policy)
    return output, gradient.numpy()
