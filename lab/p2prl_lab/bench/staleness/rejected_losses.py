"""Losses that were compared with GEPO-T and rejected, kept so that their figures can be reproduced.

All are GEPO-T (`p2prl/algorithms/gepo_tapered.py`) with one change; `docs/benchmarks/staleness_200.md` has figures.
They are not in the registry, so a run cannot use them.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, aggregate
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.config_checks import require_between
from p2prl.algorithms.gepo_tapered import GepoTConfig
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.negative_taper import taper_negatives
from p2prl.algorithms.ratios import Terms, effective_sample_size, log_expectation_of, on_mask, terms_of
from p2prl.algorithms.surrogates import weighted_logprob


@dataclass(frozen=True, kw_only=True)
class PoweredConfig(GepoTConfig):
    """Dependence of a completion's weight on its probability."""

    power: float = 0.5
    """τ in [−1, 1]. 1: GEPO-T. 0: only the taper remains. Below 0: rare completions weigh more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("power", self.power, -1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class AnchoredConfig(GepoTConfig):
    """Strength of the pull toward the sampler's policy."""

    pull: float = 0.02
    """c in [0, 10], reward units per nat."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("pull", self.pull, 0.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class DiscountedConfig(GepoTConfig):
    """Distance from the sampler's policy at which weights decay."""

    reach: float = 1.0
    """Nats per token, in (0, 100]: at this distance a completion's weight is divided by e."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("reach", self.reach, 0.0, 100.0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class ShrunkConfig(GepoTConfig):
    """Weight of the batch mean in each group's baseline."""

    borrowed: float = 2.0
    """k in [0, 100]: completions' worth of the batch mean in each group's mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("borrowed", self.borrowed, 0.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class SteepConfig(GepoTConfig):
    """Steepness of the taper of negatives."""

    steepness: float = 2.0
    """s in [1, 10]: a negative weighs at most e^{s Σℓ}; 1 is GEPO-T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("steepness", self.steepness, 1.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class FocusedConfig(GepoTConfig):
    """Strength of the focus on completions that the policy considers unlikely."""

    focus: float = 1.0
    """γ in [0, 10]: a positive's weight is multiplied by (1 − P)^γ, P its geometric mean probability."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("focus", self.focus, 0.0, 10.0)


def powered(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: PoweredConfig, aggregation: AggregationConfig
) -> LossOutput:
    """log w = τ (LP − log Ê) in place of LP − log Ê. Tests whether likely completions should count more at all."""
    terms = terms_of(policy_logprobs_BGT, batch)
    return _tapered(cfg.power * _gepo(terms, batch), terms, batch, cfg, aggregation)


def anchored(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: AnchoredConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GEPO-T + c · k3 of each token toward the sampler's policy, ℓ clamped to ±10; a brake inside the loss."""
    terms = terms_of(policy_logprobs_BGT, batch)
    output = _tapered(_gepo(terms, batch), terms, batch, cfg, aggregation)
    clamped_BGT = terms.log_ratio_BGT.clamp(-10.0, 10.0)
    k3_BGT = on_mask(clamped_BGT.exp() - clamped_BGT - 1, terms.mask_BGT)
    penalty = aggregate(k3_BGT, terms.mask_BGT, aggregation, update_lengths_N=batch.update_lengths_N)
    return replace(output, loss=output.loss + cfg.pull * penalty)


def discounted(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: DiscountedConfig, aggregation: AggregationConfig
) -> LossOutput:
    """w · e^{−|mean_t ℓ|/reach}, positives and negatives alike: a soft trust region that needs no staleness label."""
    terms = terms_of(policy_logprobs_BGT, batch)
    distance_BG = terms.geometric_BG.detach().abs()
    return _tapered(_gepo(terms, batch) - distance_BG / cfg.reach, terms, batch, cfg, aggregation)


def group_ess(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoTConfig, aggregation: AggregationConfig
) -> LossOutput:
    """w · √(ESS/G) of the group's e^{Σℓ}: VCPO's factor, per group instead of on the learning rate."""
    terms = terms_of(policy_logprobs_BGT, batch)
    sequence_BG = terms.sequence_BG.detach()
    share_B1 = (effective_sample_size(sequence_BG) / sequence_BG.shape[-1]).unsqueeze(-1)
    return _tapered(_gepo(terms, batch) + share_B1.log() / 2, terms, batch, cfg, aggregation)


def shrunk(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: ShrunkConfig, aggregation: AggregationConfig
) -> LossOutput:
    """A = R − (G mean_g + k mean_batch)/(G + k), where the batch's advantages are rewards.

    Groups with equal rewards then contribute too: all right pushes up, all wrong pushes down.
    """
    rewards_BG = batch.advantages_BG
    size = rewards_BG.shape[-1]
    own_B1 = rewards_BG.mean(dim=-1, keepdim=True)
    baseline_B1 = (size * own_B1 + cfg.borrowed * rewards_BG.mean()) / (size + cfg.borrowed)
    terms = terms_of(policy_logprobs_BGT, replace(batch, advantages_BG=rewards_BG - baseline_B1))
    return _tapered(_gepo(terms, batch), terms, batch, cfg, aggregation)


def focused(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: FocusedConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Positives' w · (1 − P)^γ: completions that are already likely are not pushed further, which preserves entropy."""
    terms = terms_of(policy_logprobs_BGT, batch)
    unsure_BG = torch.log1p(-terms.policy_mean_BG.detach().exp().clamp(max=1 - 1e-6))
    steered_BG = torch.where(terms.advantages_BG > 0, cfg.focus * unsure_BG, torch.zeros_like(unsure_BG))
    return _tapered(_gepo(terms, batch) + steered_BG, terms, batch, cfg, aggregation)


def steep(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: SteepConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Negatives' w ← min(w, 1, e^{sΣℓ}): the taper falls faster than the completion's own probability."""
    terms = terms_of(policy_logprobs_BGT, batch)
    steeper = replace(
        terms,
        sequence_BG=cfg.steepness * terms.sequence_BG,
        geometric_BG=cfg.steepness * terms.geometric_BG,
        log_ratio_BGT=cfg.steepness * terms.log_ratio_BGT,
    )
    return _tapered(_gepo(terms, batch), terms, batch, cfg, aggregation, tapering=steeper)


def recentred(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoTConfig, aggregation: AggregationConfig
) -> LossOutput:
    """A ← A − Σ v A/Σ v over the group, v = min(e^{Σℓ}, 2): the baseline is the policy's mean reward."""
    terms = terms_of(policy_logprobs_BGT, batch)
    shares_BG = terms.sequence_BG.detach().clamp(max=math.log(2)).exp()
    own_B1 = (shares_BG * terms.advantages_BG).sum(-1, keepdim=True) / shares_BG.sum(-1, keepdim=True)
    terms = terms_of(policy_logprobs_BGT, replace(batch, advantages_BG=terms.advantages_BG - own_B1))
    return _tapered(_gepo(terms, batch), terms, batch, cfg, aggregation)


def two_tapers(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoTConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Positives' w · min(1, e^{−Σℓ}) in addition to the taper of negatives: likely completions are pushed less."""
    terms = terms_of(policy_logprobs_BGT, batch)
    likelier_BG = torch.where(terms.advantages_BG > 0, terms.sequence_BG.detach().clamp(min=0.0), 0.0)
    # The cap comes before the taper, as for negatives.
    capped_BG = _gepo(terms, batch).clamp(max=math.log(cfg.cap))
    return _tapered(capped_BG - likelier_BG, terms, batch, cfg, aggregation)


def _gepo(terms: Terms, batch: RolloutBatch) -> Tensor:
    """LP − log Ê, (B, G), no gradient."""
    return terms.policy_mean_BG.detach() - log_expectation_of(terms, batch)


def _tapered(
    log_weight_BG: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    cfg: GepoTConfig,
    aggregation: AggregationConfig,
    *,
    tapering: Terms | None = None,
) -> LossOutput:
    """−sg(w) A log p with w capped, tapered by the ratios of `tapering` and the negatives scaled, as in GEPO-T."""
    log_weights, tapered = taper_negatives(log_weight_BG.clamp(max=math.log(cfg.cap)), tapering or terms, cfg.taper)
    weights = torch.where(terms.advantages_BGT < 0, cfg.negatives * log_weights.exp(), log_weights.exp())
    return weighted_logprob(weights, tapered, terms, batch, aggregation)


REJECTED_LOSSES: Mapping[str, LossSpec] = MappingProxyType(
    {
        "powered": LossSpec(name="powered", function=powered, config_type=PoweredConfig),
        "anchored": LossSpec(name="anchored", function=anchored, config_type=AnchoredConfig),
        "discounted": LossSpec(name="discounted", function=discounted, config_type=DiscountedConfig),
        "group_ess": LossSpec(name="group_ess", function=group_ess, config_type=GepoTConfig),
        "shrunk": LossSpec(name="shrunk", function=shrunk, config_type=ShrunkConfig, advantage="none"),
        "steep": LossSpec(name="steep", function=steep, config_type=SteepConfig),
        "recentred": LossSpec(name="recentred", function=recentred, config_type=GepoTConfig),
        "two_tapers": LossSpec(name="two_tapers", function=two_tapers, config_type=GepoTConfig),
        "focused": LossSpec(name="focused", function=focused, config_type=FocusedConfig),
    }
)
"""Losses by the name used in a method."""
