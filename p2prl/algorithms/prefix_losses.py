"""Losses whose weight of a token depends on the tokens before it: CTPO, MinPRO, and μ-GRPO's veto.

A token's exact weight is the ratio of its whole prefix, e^{Σ_{j≤t} ℓ_j}, which explodes or vanishes within some hundred
tokens. CTPO clips it, the later the wider; the others take one number of the prefix instead. Shape legend: B groups, G
completions, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import LOG_RATIO_BOUND, Terms, bounded_exp, on_mask, running_sum, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class CtpoConfig:
    """Clips of the prefix's log-ratio at the first token; at token t they are wider by t^power."""

    log_clip_low: float = 0.025
    """Nats, > 0."""
    log_clip_high: float = 0.05
    """Nats, > 0: of successes."""
    log_clip_dual: float = 0.05
    """Nats, > 0: a failure that has become likelier than this weighs nothing."""
    power: float = 0.5
    """In [0, 1]. The variance of a sum of t independent terms grows as t, its deviation as t^½."""

    def __post_init__(self) -> None:
        for name in ("log_clip_low", "log_clip_high", "log_clip_dual"):
            require_positive(name, getattr(self, name))
        require_between("power", self.power, 0.0, 1.0)


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


def ctpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: CtpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """CTPO (arXiv 2605.07331): PPO's clipped minimum with the ratio of the prefix, e^{Σ_{j≤t} ℓ_j}.

    The clip is on its logarithm and widens as t^power. The gradient goes through the token's own log p alone. The form,
    a dual clip of failures included, and the constants are of the released code, horizon-llm/CTPO, loss
    `cum-token-cumprod-la`; ratios are bounded at e^20 here and at e^10 there. Their run scripts multiply by a truncated
    ratio of trainer to engine, which is 1 here. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    prefix_BGT = running_sum(terms.log_ratio_BGT.detach())
    width_BGT = running_sum(terms.mask_BGT.to(prefix_BGT.dtype)) ** cfg.power
    failures_BGT = terms.advantages_BGT < 0
    low_BGT = -cfg.log_clip_low * width_BGT
    high_BGT = torch.where(failures_BGT, cfg.log_clip_dual * width_BGT, cfg.log_clip_high * width_BGT)
    above_BGT, below_BGT = prefix_BGT > high_BGT, failures_BGT & (prefix_BGT < low_BGT)
    free_BGT = prefix_BGT + terms.policy_BGT - terms.policy_BGT.detach()
    ratio_BGT = bounded_exp(torch.where(above_BGT, high_BGT, torch.where(below_BGT, low_BGT, free_BGT)))
    clipped_BGT = above_BGT | below_BGT
    has_gradient_BGT = ~clipped_BGT & (prefix_BGT.abs() <= LOG_RATIO_BOUND)
    loss_BGT, effective_BGT = -ratio_BGT * terms.advantages_BGT, on_mask(ratio_BGT, has_gradient_BGT)
    return summarize(loss_BGT, effective_BGT, clipped_BGT, terms, batch, aggregation)


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


CTPO = LossSpec(name="ctpo", function=ctpo, config_type=CtpoConfig, advantage="mean_std", aggregation="token_mean")
MINPRO = LossSpec(
    name="minpro",
    function=minpro,
    config_type=MinproConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
MU_GRPO = LossSpec(name="mu_grpo", function=mu_grpo, config_type=MuGrpoConfig, advantage="mean_std")
