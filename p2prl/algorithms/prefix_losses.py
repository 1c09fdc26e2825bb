"""Losses whose weight of a token depends on the tokens before it: MinPRO, and μ-GRPO's veto.

A token's exact weight is the ratio of its whole prefix, e^{Σ_{j≤t} ℓ_j}, which explodes or vanishes within some hundred
tokens. Both take one number of the prefix instead. Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.config_checks import require_between, require_positive
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import Terms, bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize, weighted_logprob


@dataclass(frozen=True, kw_only=True)
class MinproConfig:
    """Truncation of the weight."""

    cap: float = 5.0
    """Largest weight, > 0; as of `cispo`."""

    def __post_init__(self) -> None:
        require_positive("cap", self.cap)


@dataclass(frozen=True, kw_only=True)
class MuGrpoConfig:
    """A relaxed clip, and the ratio that vetoes what follows it."""

    clip_low: float = 0.8
    """ε_low in [0, 1]."""
    clip_high: float = 4.0
    """ε_high > 0."""
    veto: float = 0.1
    """In [0, 1): of a negative completion, what follows the first token of a ratio below this is dropped."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)
        require_between("veto", self.veto, 0.0, 1.0, open_high=True)


def minpro(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: MinproConfig, aggregation: AggregationConfig
) -> LossOutput:
    """MinPRO (arXiv 2601.22718): −sg(min(r_t · min_{j<t} r_j, cap)) A log p, r = e^ℓ; the first token's weight is r_1.

    The least ratio of the tokens before stands for their product, so that a prefix which the policy has left mutes all
    that follows, and length alone does nothing. Written from the paper's abstract; whether the authors detach the
    weight, and their cap, are unchecked. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_weight_BGT = terms.log_ratio_BGT.detach() + _least_before(terms)
    log_cap = math.log(cfg.cap)
    weights_BGT = on_mask(bounded_exp(log_weight_BGT.clamp(max=log_cap)), terms.mask_BGT)
    return weighted_logprob(weights_BGT, log_weight_BGT > log_cap, terms, batch, aggregation)


def mu_grpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: MuGrpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """μ-GRPO (arXiv 2605.17570): GRPO with a relaxed clip, without the suffixes of failures that the policy has left.

    Where A < 0, the tokens after the first with r < veto are dropped; that token stays. The normalizers still count
    them. Written from the paper's abstract: its clip and what triggers its veto are unchecked, the clip here is the one
    that long delays want (docs/benchmarks/staleness.md). Its four stages are the benchmark's law `stage:K`. Shapes
    (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    if cfg.veto == 0:
        return summarize(loss_BGT, weights_BGT, clipped_BGT, terms, batch, aggregation)
    keep_BGT = (terms.advantages_BGT >= 0) | (_least_before(terms) >= math.log(cfg.veto))
    return summarize(
        on_mask(loss_BGT, keep_BGT), on_mask(weights_BGT, keep_BGT), clipped_BGT | ~keep_BGT, terms, batch, aggregation
    )


def _least_before(terms: Terms) -> Tensor:
    """min ℓ over the earlier tokens of a completion, no gradient, nats; 0 where there are none."""
    infinite = torch.full_like(terms.log_ratio_BGT, torch.inf)
    ratios_BGT = torch.where(terms.mask_BGT, terms.log_ratio_BGT.detach(), infinite)
    least_BGT = torch.cat([infinite[..., :1], ratios_BGT[..., :-1]], dim=-1).cummin(dim=-1).values
    return torch.where(torch.isinf(least_BGT), torch.zeros_like(least_BGT), least_BGT)


MINPRO = LossSpec(
    name="minpro",
    function=minpro,
    config_type=MinproConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
MU_GRPO = LossSpec(name="mu_grpo", function=mu_grpo, config_type=MuGrpoConfig, advantage="mean_std")
