"""GEPO and its published variants: one group expectation instead of each completion's own sampler probability.

P = exp(mean_t log p), Q = exp(mean_t log q) are geometric means per token, log Ê = logsumexp(2 LQ) − logsumexp(LQ).
Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import Terms, log_expectation_of, mean_k3, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class GepoConfig:
    """Bounds of the weight P/Ê."""

    clip: float | None = None
    """ε in (0, 1] of a PPO clip around 1; None as in the paper's equation. The weight is Q/Ê, not 1, on policy, so a
    clip mutes likely positives and unlikely negatives. Of those tried where the policy keeps moving, .025 was best
    (docs/benchmarks/staleness_moving.md)."""
    log_weight_bound: float = 5.0
    """Nats: |log w| is clamped here; no gradient outside."""

    def __post_init__(self) -> None:
        require_positive("log_weight_bound", self.log_weight_bound)
        if self.clip is not None:
            require_between("clip", self.clip, 0.0, 1.0, open_low=True)


@dataclass(frozen=True, kw_only=True)
class GepoPaperConfig:
    """The released form's constants."""

    clip_low: float = 0.2
    """ε_low in [0, 1]."""
    clip_high: float = 0.2
    """ε_high > 0."""
    kl_beta: float = 0.005
    """β ≥ 0 of the k3 penalty toward the sampler's policy ("cppo" in the authors' code)."""
    log_ratio_bound: float = 10.0
    """Nats: |log q − log p| of a token is clamped here inside k3, which the authors leave open."""
    log_weight_bound: float = 5.0
    """Nats: |log w| is clamped here; no gradient outside."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)
        require_between("kl_beta", self.kl_beta, 0.0, float("inf"), open_high=True)
        require_between("log_ratio_bound", self.log_ratio_bound, 0.0, 20.0, open_low=True)
        require_positive("log_weight_bound", self.log_weight_bound)


@dataclass(frozen=True, kw_only=True)
class GepoPlusConfig(GepoPaperConfig):
    """GEPO-paper's constants and the switch between Q and Ê."""

    kl_switch: float = 0.002
    """Nats per token: a completion whose k3 is below uses its own Q (GSPO's weight), else Ê."""

    def __post_init__(self) -> None:
        GepoPaperConfig.__post_init__(self)
        require_between("kl_switch", self.kl_switch, 0.0, float("inf"), open_high=True)


@dataclass(frozen=True, kw_only=True)
class EqpConfig(GepoConfig):
    """Bounds of the self-normalized weight; fields as in GEPO."""


def gepo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GEPO (arXiv 2508.17850 §3): −w A with log w = clamp(LP − log Ê, ±c), no gradient through Ê; PPO clip optional.

    Differs from the authors' code: no PPO clip by default (their equation 1 has none, their code has ε = .2), log w
    clamped, no k3 term, and a group is one prompt. G = 1 or equal LQ give GSPO's weight. In a group of alike members
    one that deflates its own log-probs hardly moves any weight. But Ê is weighted by Q: a member that is, or claims to
    be, far likelier than the others dominates it, and a false claim moves every weight of its group. Deflating a whole
    group by k nats scales them by e^k, which `guards.group_deflation_keep` detects. Shapes
    (B, G, T); nats. Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_weight_BG1 = terms.policy_mean_BG.unsqueeze(-1) - log_expectation_of(terms, batch).unsqueeze(-1)
    return _bounded_surrogate(log_weight_BG1, terms, batch, aggregation, clip=cfg.clip, bound=cfg.log_weight_bound)


def gepo_paper(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoPaperConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GEPO as released: −min(w A, clip(w, 1±ε) A) + β mean_t[e^x − x − 1], x = log q − log p.

    The form in HanlardResearch/HeteroRL_GEPO. Differs from that code: x and log w are clamped, and a group is one
    prompt (theirs is the device's shuffled micro-batch). Metric kl_penalty: mean k3 in nats per token. Shapes
    (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_weight_BG1 = terms.policy_mean_BG.unsqueeze(-1) - log_expectation_of(terms, batch).unsqueeze(-1)
    return _released_surrogate(log_weight_BG1, terms, batch, cfg, aggregation)


def gepo_plus(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GepoPlusConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GEPO+ (released code): gepo_paper with w = P/((1−u) Ê + u Q), u = 1 where k3 is below the switch.

    The switch is a constant to the gradient. Differs from the authors' code as `gepo_paper` does. Metric
    gspo_fraction: share of completions with u = 1. Shapes (B, G, T). Raises LocalProtocolError.
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    k3_sampler_BG = mean_k3(-terms.log_ratio_BGT.detach(), terms.mask_BGT, bound=cfg.log_ratio_bound)
    near_BG = k3_sampler_BG < cfg.kl_switch
    log_denominator_BG = torch.where(near_BG, terms.behavior_mean_BG, log_expectation_of(terms, batch))
    log_weight_BG1 = (terms.policy_mean_BG - log_denominator_BG).unsqueeze(-1)
    metrics = {"gspo_fraction": near_BG.to(terms.policy_BGT.dtype).mean()}
    return _released_surrogate(log_weight_BG1, terms, batch, cfg, aggregation, extra_metrics=metrics)


def eqp(policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: EqpConfig, aggregation: AggregationConfig) -> LossOutput:
    """EqP (released code of GEPO): −w A with w = P / Σ_j q̂_j P_j, q̂ = Q/ΣQ; the gradient flows through the denominator.

    In the log domain log w = LP − [logsumexp(LQ + LP) − logsumexp(LQ)]. `weights_BGT` holds w alone; the coupling of
    the group through the denominator is in the gradient only, and a guarded completion keeps its share in it. Differs
    from the authors' code as `gepo` does. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`), also where a
    batch splits groups.
    """
    require_whole_groups(batch, "eqp")
    terms = terms_of(policy_logprobs_BGT, batch)
    joint_B1 = torch.logsumexp(terms.behavior_mean_BG + terms.policy_mean_BG, dim=-1, keepdim=True)
    log_mean_B1 = joint_B1 - torch.logsumexp(terms.behavior_mean_BG, dim=-1, keepdim=True)
    log_weight_BG1 = (terms.policy_mean_BG - log_mean_B1).unsqueeze(-1)
    return _bounded_surrogate(log_weight_BG1, terms, batch, aggregation, clip=cfg.clip, bound=cfg.log_weight_bound)


def require_whole_groups(batch: RolloutBatch, name: str) -> None:
    """Raise LocalProtocolError where the batch splits groups, for a loss that couples a group's completions."""
    if not batch.whole_groups:
        raise LocalProtocolError(f"{name} couples the completions of a group: whole_groups is False in this batch")


def _bounded_surrogate(
    log_weight_BG1: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    aggregation: AggregationConfig,
    *,
    clip: float | None,
    bound: float,
) -> LossOutput:
    outside_BG1 = log_weight_BG1.detach().abs() > bound
    log_weight_BG1 = log_weight_BG1.clamp(-bound, bound)
    if clip is None:
        weight = log_weight_BG1.exp()
        loss_BGT, clipped = -weight * terms.advantages_BGT, outside_BG1
    else:
        loss_BGT, weight, clipped = clipped_minimum(log_weight_BG1, terms.advantages_BGT, clip_low=clip, clip_high=clip)
    effective = torch.where(outside_BG1, torch.zeros_like(weight), weight)
    return summarize(loss_BGT, effective, clipped | outside_BG1, terms, batch, aggregation)


def _released_surrogate(
    log_weight_BG1: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    cfg: GepoPaperConfig,
    aggregation: AggregationConfig,
    *,
    extra_metrics: dict[str, Tensor] | None = None,
) -> LossOutput:
    outside_BG1 = log_weight_BG1.detach().abs() > cfg.log_weight_bound
    loss_BGT, weight_BGT, clipped_BGT = clipped_minimum(
        log_weight_BG1.clamp(-cfg.log_weight_bound, cfg.log_weight_bound),
        terms.advantages_BGT,
        clip_low=cfg.clip_low,
        clip_high=cfg.clip_high,
    )
    effective_BGT = torch.where(outside_BG1, torch.zeros_like(weight_BGT), weight_BGT)
    penalty_BG = mean_k3(-terms.log_ratio_BGT, terms.mask_BGT, bound=cfg.log_ratio_bound)
    metrics = {"kl_penalty": penalty_BG.detach().mean(), **(extra_metrics or {})}
    token_loss_BGT = loss_BGT + cfg.kl_beta * penalty_BG.unsqueeze(-1)
    return summarize(
        token_loss_BGT, effective_BGT, clipped_BGT | outside_BG1, terms, batch, aggregation, extra_metrics=metrics
    )


GEPO = LossSpec(name="gepo", function=gepo, config_type=GepoConfig)
GEPO_PAPER = LossSpec(name="gepo_paper", function=gepo_paper, config_type=GepoPaperConfig)
GEPO_PLUS = LossSpec(name="gepo_plus", function=gepo_plus, config_type=GepoPlusConfig)
EQP = LossSpec(name="eqp", function=eqp, config_type=EqpConfig, needs_whole_groups=True)
