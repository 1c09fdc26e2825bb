"""New ideas for long delays, high learning rates and long completions: the default loss with one change each.

Each is one term, for comparison only: none is in the registry, so a run cannot use one. The base is −sg(w) A log p with
w = 1, for A < 0 also ≤ e^{Σℓ}, divided by max(NLL, .01): `topr:sharpness=1`. What each is aimed at, and its figures:
docs/benchmarks/staleness_ideas.md.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, aggregate
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.config_checks import require_between, require_positive
from p2prl.algorithms.loss_spec import LossFunction, LossSpec
from p2prl.algorithms.ratios import Terms, effective_sample_size, on_mask, terms_of
from p2prl.algorithms.surrogates import weighted_logprob

CAP = 2.0
"""Largest weight of `per_decision` before the division; the others weigh at most 1."""

NLL_FLOOR = 0.01
"""Nats per token: smallest NLL to divide by."""

_VERSION = 2
"""Incremented when the base changes, so that no benchmark reuses results with another one."""


@dataclass(frozen=True, kw_only=True)
class WidthConfig:
    """How much of the batch's spread the taper allows for."""

    width: float = 1.0
    """k in [0, 100]: 0 is the taper by the whole sequence."""

    def __post_init__(self) -> None:
        require_between("width", self.width, 0.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class SurprisalConfig:
    """Trust region of a token, by how surprising it was to its sampler."""

    trust: float = 0.2
    """Nats, > 0: how far a certain token may move."""
    slope: float = 0.5
    """In [0, 10]: further nats for each nat of surprisal."""

    def __post_init__(self) -> None:
        require_positive("trust", self.trust)
        require_between("slope", self.slope, 0.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """KL budget of a batch."""

    budget: float = 0.1
    """Nats per token, > 0: mean distance of the completions that are kept."""

    def __post_init__(self) -> None:
        require_positive("budget", self.budget)


@dataclass(frozen=True, kw_only=True)
class AgeConfig:
    """Discount by age."""

    half_life: float = 256.0
    """Updates, > 0: at this age a completion weighs half."""

    def __post_init__(self) -> None:
        require_positive("half_life", self.half_life)


@dataclass(frozen=True, kw_only=True)
class HingeConfig:
    """Pull toward the sampler beyond a free distance."""

    free: float = 0.5
    """Nats, ≥ 0: |ℓ| that costs nothing."""
    pull: float = 0.05
    """c in [0, 10], reward units per nat²."""

    def __post_init__(self) -> None:
        require_between("free", self.free, 0.0, 100.0)
        require_between("pull", self.pull, 0.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class FarConfig:
    """When a group is too far for its negatives."""

    least_ess: float = 0.3
    """In [0, 1]: ESS/G of a group below which its negatives are dropped; 0 drops none."""

    def __post_init__(self) -> None:
        require_between("least_ess", self.least_ess, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class DecisiveConfig:
    """Share of the weight that goes by the uncertainty of each token."""

    focus: float = 1.0
    """φ in [0, 1]: 0 weighs all tokens of a completion alike."""

    def __post_init__(self) -> None:
        require_between("focus", self.focus, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class PlainConfig:
    """No options."""


def variance_taper(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: WidthConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Negatives ≤ e^{Σℓ/√(1 + k T v)}, v the batch's mean ℓ² a token: exact near the policy, no gate at 512 tokens.

    Σℓ of T tokens has a spread of √(T v) by chance alone; only what exceeds it says that a negative was abandoned.
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    moment = terms.log_ratio_BGT.detach().square().sum() / terms.lengths_BG.sum()
    softened_BG = terms.sequence_BG / (1 + cfg.width * terms.lengths_BG * moment).sqrt()
    return _finish(softened_BG.unsqueeze(-1), _sharpened(terms), terms, batch, aggregation)


def surprisal_trust(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: SurprisalConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Tokens that moved the way A pushes by more than trust + slope · (−log q) nats are dropped.

    −log q of the sampled token estimates the entropy it was drawn with: certain tokens get little room.
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    moved_BGT = terms.log_ratio_BGT.detach() * terms.advantages_BGT.sign()
    outside_BGT = moved_BGT > cfg.trust - cfg.slope * terms.behavior_BGT
    kept_BGT = torch.where(outside_BGT, 0.0, _sharpened(terms))
    return _finish(terms.sequence_BG.unsqueeze(-1), kept_BGT, terms, batch, aggregation)


def ess_sharpness(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: PlainConfig, aggregation: AggregationConfig
) -> LossOutput:
    """κ = 1 − ESS/n of the batch's e^{Σℓ}: divided by NLL^κ, not at all on policy and in full far from it."""
    del cfg
    terms = terms_of(policy_logprobs_BGT, batch)
    sequence_N = terms.sequence_BG.detach().flatten()
    sharpness = 1 - effective_sample_size(sequence_N) / sequence_N.numel()
    return _finish(terms.sequence_BG.unsqueeze(-1), _sharpened(terms) ** sharpness, terms, batch, aggregation)


def kl_budget(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: BudgetConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Completions of the largest |mean ℓ| are dropped until the mean over the others is within the budget."""
    terms = terms_of(policy_logprobs_BGT, batch)
    distance_N = terms.geometric_BG.detach().abs().flatten()
    ordered_N, order_N = distance_N.sort()
    counts_N = torch.arange(1, ordered_N.numel() + 1, device=ordered_N.device)
    within_N = ordered_N.cumsum(0) / counts_N <= cfg.budget
    kept_N = torch.zeros_like(distance_N).scatter(0, order_N, within_N.to(distance_N.dtype))
    weights_BG1 = _sharpened(terms) * kept_N.view_as(terms.geometric_BG).unsqueeze(-1)
    return _finish(terms.sequence_BG.unsqueeze(-1), weights_BG1, terms, batch, aggregation)


def aged(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: AgeConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Weight × 2^{−age/half_life}; a batch without ages is fresh. Within a batch of mixed ages the young count more."""
    terms = terms_of(policy_logprobs_BGT, batch)
    weights_BG1 = _sharpened(terms)
    if batch.staleness_BG is not None:
        ages_BG = batch.staleness_BG.to(terms.policy_BGT.dtype)
        weights_BG1 = weights_BG1 * (2 ** (-ages_BG / cfg.half_life)).unsqueeze(-1)
    return _finish(terms.sequence_BG.unsqueeze(-1), weights_BG1, terms, batch, aggregation)


def prefix_taper(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: PlainConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Token t of a negative ≤ e^{Σ_{u≤t} ℓ}: what comes later cannot silence an early mistake."""
    del cfg
    terms = terms_of(policy_logprobs_BGT, batch)
    return _finish(terms.log_ratio_BGT.cumsum(dim=-1), _sharpened(terms), terms, batch, aggregation)


def per_decision(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: PlainConfig, aggregation: AggregationConfig
) -> LossOutput:
    """w_t = min(e^{Σ_{u≤t} ℓ}, 2) for both signs, in place of w: per-decision importance sampling, truncated.

    Precup, Sutton and Singh (2000). The division by NLL stays.
    """
    del cfg
    terms = terms_of(policy_logprobs_BGT, batch)
    prefix_BGT = terms.log_ratio_BGT.detach().cumsum(dim=-1)
    weights_BGT = prefix_BGT.clamp(max=math.log(CAP)).exp() * _sharpened(terms)
    return weighted_logprob(weights_BGT, prefix_BGT > math.log(CAP), terms, batch, aggregation)


def decisive(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: DecisiveConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Token weights × (1 − φ) + φ (1 − q_t)/mean(1 − q) over the completion: tokens that were decided, not copied.

    The mean weight of a completion stays. The sampler's q is constant, so a policy cannot raise a weight by doubt.
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    open_BGT = on_mask(-torch.expm1(terms.behavior_BGT.clamp(max=-1e-6)), terms.mask_BGT)
    mean_BG1 = open_BGT.sum(dim=-1, keepdim=True) / terms.lengths_BG.unsqueeze(-1)
    shares_BGT = 1 - cfg.focus + cfg.focus * open_BGT / mean_BG1
    return _finish(terms.sequence_BG.unsqueeze(-1), _sharpened(terms) * shares_BGT, terms, batch, aggregation)


def hinged(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: HingeConfig, aggregation: AggregationConfig
) -> LossOutput:
    """The base + c/2 · max(0, |ℓ| − free)² a token: free to move so far, then pulled back to the sampler."""
    terms = terms_of(policy_logprobs_BGT, batch)
    output = _finish(terms.sequence_BG.unsqueeze(-1), _sharpened(terms), terms, batch, aggregation)
    beyond_BGT = on_mask((terms.log_ratio_BGT.abs() - cfg.free).clamp(min=0.0), terms.mask_BGT)
    penalty = aggregate(beyond_BGT.square() / 2, terms.mask_BGT, aggregation, update_lengths_N=batch.update_lengths_N)
    return replace(output, loss=output.loss + cfg.pull * penalty)


def far_positives(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: FarConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Groups whose ESS/G of e^{Σℓ} is below the least teach by their positives alone."""
    terms = terms_of(policy_logprobs_BGT, batch)
    sequence_BG = terms.sequence_BG.detach()
    far_B1 = (effective_sample_size(sequence_BG) / sequence_BG.shape[-1] < cfg.least_ess).unsqueeze(-1)
    dropped_BG1 = (far_B1 & (terms.advantages_BG < 0)).unsqueeze(-1)
    weights_BG1 = torch.where(dropped_BG1, 0.0, _sharpened(terms))
    return _finish(terms.sequence_BG.unsqueeze(-1), weights_BG1, terms, batch, aggregation)


def _sharpened(terms: Terms) -> Tensor:
    """1/max(NLL, .01), (B, G, 1)."""
    return 1 / (-terms.policy_mean_BG.detach()).clamp(min=NLL_FLOOR).unsqueeze(-1)


def _finish(
    log_bound: Tensor, factors: Tensor, terms: Terms, batch: RolloutBatch, aggregation: AggregationConfig
) -> LossOutput:
    """−sg(w · factor) A log p, w = 1, for A < 0 also ≤ e^{bound}; both broadcast to (B, G, T)."""
    tapered = (terms.advantages_BGT < 0) & (log_bound.detach() < 0)
    weights = torch.where(tapered, log_bound.detach(), 0.0).exp() * factors
    return weighted_logprob(weights, tapered | (factors == 0), terms, batch, aggregation)


def _idea(function: LossFunction, config_type: type[Any]) -> LossSpec:
    return LossSpec(name=function.__name__, function=function, config_type=config_type, result_version=_VERSION)


NEW_IDEAS: Mapping[str, LossSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            _idea(variance_taper, WidthConfig),
            _idea(surprisal_trust, SurprisalConfig),
            _idea(ess_sharpness, PlainConfig),
            _idea(kl_budget, BudgetConfig),
            _idea(aged, AgeConfig),
            _idea(prefix_taper, PlainConfig),
            _idea(per_decision, PlainConfig),
            _idea(decisive, DecisiveConfig),
            _idea(hinged, HingeConfig),
            _idea(far_positives, FarConfig),
        )
    }
)
"""Losses by the name used in a method."""
