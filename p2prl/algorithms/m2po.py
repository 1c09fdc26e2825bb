"""M2PO: the second moment of the log-ratio is kept within a budget, by a mask or by the width of a clip.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.guards import second_moment_keep, second_moment_width
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class M2poConfig:
    """Second-moment budget."""

    budget: float = 0.04
    """τ > 0, nats²: largest mean ℓ² of the kept tokens."""

    def __post_init__(self) -> None:
        require_positive("budget", self.budget)


@dataclass(frozen=True, kw_only=True)
class M2poClipConfig(M2poConfig):
    """Second-moment budget, and the least width of the clip."""

    least_low: float = 0.3
    """Smallest ε_low, in [0, 1]."""
    least_high: float = 0.5
    """Smallest ε_high, ≥ 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("least_low", self.least_low, 0.0, 1.0)
        require_between("least_high", self.least_high, 0.0, float("inf"), open_high=True)


def m2po(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: M2poConfig, aggregation: AggregationConfig
) -> LossOutput:
    """M2PO (arXiv 2510.01161 §4): −M r A per token, r = e^ℓ, M drops the largest ℓ² until the kept mean is ≤ τ.

    No clip. The budget holds over this batch; parts of an update each keep their own. All tokens are candidates, as in
    the paper's algorithm and in AReaL; the authors' own code is `m2po_clip`. Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    keep_BGT = second_moment_keep(terms.log_ratio_BGT, terms.mask_BGT, budget=cfg.budget)
    ratio_BGT = torch.where(keep_BGT, bounded_exp(terms.log_ratio_BGT), torch.zeros_like(terms.log_ratio_BGT))
    token_loss_BGT = -ratio_BGT * terms.advantages_BGT
    return summarize(token_loss_BGT, on_mask(ratio_BGT, keep_BGT), ~keep_BGT, terms, batch, aggregation)


def m2po_clip(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: M2poClipConfig, aggregation: AggregationConfig
) -> LossOutput:
    """M2PO as its authors released it (Infini-AI-Lab/M2PO): GRPO's surrogate with a clip as wide as the budget allows.

    ε_low = max(1 − e^{−h}, least_low), ε_high = max(e^h − 1, least_high). h is the largest |ℓ| of the tokens that a
    clip could stop (A and ℓ of one sign) such that their mean of min(ℓ², h²) stays below the budget; without limit
    where their mean ℓ² does. The budget holds over this batch. Metric clip_width: h in nats, at most 20. Shapes
    (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    outward_BGT = terms.mask_BGT & (terms.advantages_BGT * terms.log_ratio_BGT.detach() > 0)
    width = second_moment_width(terms.log_ratio_BGT[outward_BGT], budget=cfg.budget)
    token_loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT,
        terms.advantages_BGT,
        clip_low=max(-math.expm1(-width), cfg.least_low),
        clip_high=max(math.expm1(width), cfg.least_high),
    )
    metrics = {"clip_width": torch.tensor(width, device=token_loss_BGT.device)}
    return summarize(token_loss_BGT, weights_BGT, clipped_BGT, terms, batch, aggregation, extra_metrics=metrics)


M2PO = LossSpec(
    name="m2po",
    function=m2po,
    config_type=M2poConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
M2PO_CLIP = LossSpec(
    name="m2po_clip", function=m2po_clip, config_type=M2poClipConfig, advantage="mean_std", aggregation="token_mean"
)
