"""REINFORCE with detached importance weights: none, truncated or masked.

No clip stops the gradient of a token here; the weight alone bounds it. Shape legend: B groups, G completions,
T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import bounded_exp, terms_of
from p2prl.algorithms.surrogates import weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_choice, require_positive


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig:
    """No options; this loss is a control."""


@dataclass(frozen=True, kw_only=True)
class TisConfig:
    """Truncation of the whole-sequence ratio."""

    cap: float = 2.0
    """C > 0: largest weight."""

    def __post_init__(self) -> None:
        require_positive("cap", self.cap)


@dataclass(frozen=True, kw_only=True)
class NormalizedTisConfig(TisConfig):
    """Truncation of the ratio before the division by the batch's mean weight."""

    level: Literal["sequence", "token"] = "sequence"
    """sequence: W of a completion, mean over completions; token: r of a token, mean over tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("level", self.level, ("sequence", "token"))


@dataclass(frozen=True, kw_only=True)
class CispoConfig:
    """Truncation of the per-token ratio."""

    cap: float = 5.0
    """Largest weight, > 0. MiniMax-M1 gives 1 + ε_high without a figure; ScaleRL uses values near 5."""

    def __post_init__(self) -> None:
        require_positive("cap", self.cap)


@dataclass(frozen=True, kw_only=True)
class SeqMisConfig:
    """Interval of the whole-sequence ratio outside which a completion is dropped."""

    low: float = 0.5
    """In (0, 1]."""
    high: float = 2.0
    """At least 1."""

    def __post_init__(self) -> None:
        require_between("low", self.low, 0.0, 1.0, open_low=True)
        require_between("high", self.high, 1.0, math.inf, open_high=True)


def reinforce(
    policy_logprobs_BGT: Tensor,
    batch: RolloutBatch,
    cfg: ReinforceConfig,  # noqa: ARG001 (every loss has one signature)
    aggregation: AggregationConfig,
) -> LossOutput:
    """REINFORCE with a baseline (Williams 1992): −A log p, no importance weight. A control that collapses under delay.

    Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    ones_BGT = torch.ones_like(terms.advantages_BGT)
    return weighted_logprob(ones_BGT, ones_BGT > 1, terms, batch, aggregation)


def tis(policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: TisConfig, aggregation: AggregationConfig) -> LossOutput:
    """Truncated importance sampling on whole sequences: −sg(min(W, C)) A log p, W = e^{Σℓ} (Ionides 2008; seq-TIS).

    The per-token form, min(e^{ℓ_t}, C), is `cispo` with its cap set to C. W explodes or vanishes with length, so this
    is for short completions. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_ratio_BG1 = terms.sequence_BG.detach().unsqueeze(-1)
    log_cap = math.log(cfg.cap)
    return weighted_logprob(log_ratio_BG1.clamp(max=log_cap).exp(), log_ratio_BG1 > log_cap, terms, batch, aggregation)


def normalized_tis(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: NormalizedTisConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Truncated importance sampling with weights of batch mean 1: −sg(w / mean w) A log p, w = min(W, C).

    Self-normalized importance sampling over the batch (verl's `rollout_is_batch_normalize`, after the truncation as
    there), so parts of an update each have their own mean. Weights exceed the cap where the mean is below 1. Shapes
    (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_cap = math.log(cfg.cap)
    if cfg.level == "token":
        log_ratio = terms.log_ratio_BGT.detach()
        log_total = torch.logsumexp(log_ratio[terms.mask_BGT].clamp(max=log_cap), dim=0)
        log_mean = log_total - terms.lengths_BG.sum().log()
    else:
        log_ratio = terms.sequence_BG.detach().unsqueeze(-1)
        log_mean = torch.logsumexp(log_ratio.clamp(max=log_cap).flatten(), dim=0) - math.log(log_ratio.numel())
    weights = (log_ratio.clamp(max=log_cap) - log_mean).exp()
    return weighted_logprob(weights, log_ratio > log_cap, terms, batch, aggregation)


def cispo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: CispoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """CISPO (MiniMax-M1, arXiv 2506.13585 §3.1): −sg(min(r, cap)) A log p per token; clipped tokens keep a gradient.

    The authors clip from above only, as here (verl also from below), and average over tokens (the registry's default).
    LlamaRL's AIPO is the same with cap ρ in [2, 10]. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_ratio_BGT = terms.log_ratio_BGT.detach()
    log_cap = math.log(cfg.cap)
    return weighted_logprob(log_ratio_BGT.clamp(max=log_cap).exp(), log_ratio_BGT > log_cap, terms, batch, aggregation)


def seq_mis(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: SeqMisConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Masked importance sampling on whole sequences: −sg(W · 1[low ≤ W ≤ high]) A log p, W = e^{Σℓ} (seq-MIS).

    Dropped completions still count in every normalizer. W leaves the interval with length, so this is for short
    completions or nearly fresh rollouts. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_ratio_BG1 = terms.sequence_BG.detach().unsqueeze(-1)
    outside_BG1 = (log_ratio_BG1 < math.log(cfg.low)) | (log_ratio_BG1 > math.log(cfg.high))
    weights_BG1 = torch.where(outside_BG1, torch.zeros_like(log_ratio_BG1), bounded_exp(log_ratio_BG1))
    return weighted_logprob(weights_BG1, outside_BG1, terms, batch, aggregation)


REINFORCE = LossSpec(
    name="reinforce",
    function=reinforce,
    config_type=ReinforceConfig,
    uses_behavior_logprobs=False,
    token_advantages=True,
)
TIS = LossSpec(name="tis", function=tis, config_type=TisConfig, token_advantages=True)
CISPO = LossSpec(
    name="cispo",
    function=cispo,
    config_type=CispoConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
SEQ_MIS = LossSpec(name="seq_mis", function=seq_mis, config_type=SeqMisConfig, token_advantages=True)
NORMALIZED_TIS = LossSpec(name="normalized_tis", function=normalized_tis, config_type=NormalizedTisConfig)
