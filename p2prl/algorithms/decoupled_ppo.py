"""Decoupled PPO: a trust region around a recent policy, and a weight that corrects for an older sampler.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import Terms, bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class DecoupledPpoConfig:
    """Trust region and cap."""

    clip_low: float = 0.2
    """ε_low in [0, 1], around the proximal policy."""
    clip_high: float = 0.2
    """ε_high > 0, around the proximal policy."""
    behavior_cap: float = 5.0
    """Tokens whose π_prox/π_behavior exceeds this (> 0) are dropped."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)
        require_positive("behavior_cap", self.behavior_cap)


@dataclass(frozen=True, kw_only=True)
class A3poConfig(DecoupledPpoConfig):
    """Trust region and cap of A-3PO; fields as in decoupled PPO."""


def decoupled_ppo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: DecoupledPpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Decoupled PPO: −sg(π_prox/π_behavior) · min(r A, clip(r, 1−ε_low, 1+ε_high) A) with r = π/π_prox.

    Hilton et al. (arXiv 2110.00641 §3); AReaL (2505.24298 §5.2). Tokens with π_prox/π_behavior above the cap are
    dropped, as in AReaL's code. Without proximal log-probs in the batch, π_prox is the policy itself: with one step
    per batch that is exact, r = 1 and this is masked token-level importance sampling. Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    proximal_BGT = terms.policy_BGT.detach()
    if batch.proximal_logprobs_BGT is not None:
        proximal_BGT = on_mask(batch.proximal_logprobs_BGT.detach().to(proximal_BGT.dtype), terms.mask_BGT)
    return _decoupled(proximal_BGT, terms, batch, cfg, aggregation)


def a3po(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: A3poConfig, aggregation: AggregationConfig
) -> LossOutput:
    """A-3PO (arXiv 2512.06547): decoupled PPO with log π_prox = log π_behavior + α ℓ, no gradient through it.

    α = (v_prox − v_behavior)/(v − v_behavior) with v_prox = v − 1, so α = (s−1)/s at staleness s ≥ 1;
    s = 0, where the formula is 0/0, takes α = 1. Saves decoupled PPO's extra forward pass. Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`), also where the batch has no staleness.
    """
    if batch.staleness_BG is None:
        raise LocalProtocolError("a3po needs staleness_BG")
    terms = terms_of(policy_logprobs_BGT, batch)
    staleness_BG1 = batch.staleness_BG.to(terms.policy_BGT.dtype).unsqueeze(-1)
    alpha_BG1 = torch.where(staleness_BG1 >= 1, 1 - 1 / staleness_BG1.clamp(min=1), torch.ones_like(staleness_BG1))
    proximal_BGT = terms.behavior_BGT + alpha_BG1 * terms.log_ratio_BGT.detach()
    return _decoupled(proximal_BGT, terms, batch, cfg, aggregation)


def _decoupled(
    proximal_BGT: Tensor, terms: Terms, batch: RolloutBatch, cfg: DecoupledPpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    log_behind_BGT = proximal_BGT - terms.behavior_BGT
    dropped_BGT = log_behind_BGT > math.log(cfg.behavior_cap)
    behind_BGT = torch.where(dropped_BGT, torch.zeros_like(log_behind_BGT), bounded_exp(log_behind_BGT))
    loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.policy_BGT - proximal_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    return summarize(
        behind_BGT * loss_BGT, behind_BGT * weights_BGT, clipped_BGT | dropped_BGT, terms, batch, aggregation
    )


DECOUPLED_PPO = LossSpec(
    name="decoupled_ppo",
    function=decoupled_ppo,
    config_type=DecoupledPpoConfig,
    advantage="mean_std",
    token_advantages=True,
)
A3PO = LossSpec(name="a3po", function=a3po, config_type=A3poConfig, advantage="mean_std", token_advantages=True)
