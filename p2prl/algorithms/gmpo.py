"""GMPO: the geometric mean of clipped token ratios.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import LOG_RATIO_BOUND, bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import summarize
from p2prl.algorithms.value_checks import require_positive


@dataclass(frozen=True, kw_only=True)
class GmpoConfig:
    """Clip of each token's log-ratio."""

    log_clip_low: float = 0.4
    """ε_low > 0, nats: below −ε_low a negative token has no gradient."""
    log_clip_high: float = 0.4
    """ε_high > 0, nats: above ε_high a positive token has no gradient."""

    def __post_init__(self) -> None:
        require_positive("log_clip_low", self.log_clip_low)
        require_positive("log_clip_high", self.log_clip_high)


def gmpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GmpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GMPO (arXiv 2507.20673 §3; geo_mean in verl): −A exp(mean_t ℓ̂), ℓ̂ the pessimistic one of ℓ and its clip.

    ℓ̂ = min(ℓ, ε_high) where A > 0 and max(ℓ, −ε_low) where A < 0: the clip is of the log-ratio, token by token, before
    the mean. One value per completion, spread over its tokens. Shapes (B, G, T); nats. Raises LocalProtocolError (see
    `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    ratio_BGT, advantages_BGT = terms.log_ratio_BGT, terms.advantages_BGT
    high_BGT = (advantages_BGT > 0) & (ratio_BGT > cfg.log_clip_high)
    low_BGT = (advantages_BGT < 0) & (ratio_BGT < -cfg.log_clip_low)
    clipped_BGT = torch.where(high_BGT, torch.full_like(ratio_BGT, cfg.log_clip_high), ratio_BGT)
    clipped_BGT = torch.where(low_BGT, torch.full_like(ratio_BGT, -cfg.log_clip_low), clipped_BGT)
    mean_BG1 = (clipped_BGT.sum(dim=-1) / terms.lengths_BG).unsqueeze(-1)
    weight_BG1 = bounded_exp(mean_BG1)
    free_BGT = ~(high_BGT | low_BGT) & (mean_BG1.detach().abs() <= LOG_RATIO_BOUND)
    weights_BGT = on_mask(weight_BG1.detach().expand(free_BGT.shape), free_BGT)
    return summarize(-weight_BG1 * advantages_BGT, weights_BGT, high_BGT | low_BGT, terms, batch, aggregation)


GMPO = LossSpec(name="gmpo", function=gmpo, config_type=GmpoConfig, advantage="mean_std")
