"""SAPO: a sigmoid gate on each token's ratio in place of a clip.

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
from p2prl.algorithms.surrogates import by_sign, summarize
from p2prl.algorithms.value_checks import require_positive


@dataclass(frozen=True, kw_only=True)
class SapoConfig:
    """Temperatures of the gate."""

    tau_pos: float = 1.0
    """τ > 0 where A > 0: the larger, the narrower the gate."""
    tau_neg: float = 1.05
    """τ > 0 elsewhere. Above tau_pos: negatives fade sooner, because they spread over the whole vocabulary."""

    def __post_init__(self) -> None:
        require_positive("tau_pos", self.tau_pos)
        require_positive("tau_neg", self.tau_neg)


def sapo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: SapoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """SAPO (Soft Adaptive Policy Optimization, arXiv 2511.20347): −(4/τ) σ(τ(r − 1)) A per token, r = e^ℓ.

    The gradient is −4 σ(1 − σ) r A of log p: weight 1 on policy, and fading to both sides. Another paper of that name
    (arXiv 2509.08721) is about sharing rollouts. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    ratio_BGT = bounded_exp(terms.log_ratio_BGT)
    tau_BGT = by_sign(terms.advantages_BGT, positive=cfg.tau_pos, other=cfg.tau_neg)
    gate_BGT = torch.sigmoid(tau_BGT * (ratio_BGT - 1))
    slope_BGT = (4 * gate_BGT * (1 - gate_BGT) * ratio_BGT).detach()
    within_BGT = terms.log_ratio_BGT.detach().abs() <= LOG_RATIO_BOUND
    return summarize(
        -4 / tau_BGT * gate_BGT * terms.advantages_BGT,
        on_mask(slope_BGT, within_BGT),
        ~within_BGT,
        terms,
        batch,
        aggregation,
    )


SAPO = LossSpec(name="sapo", function=sapo, config_type=SapoConfig, advantage="mean_std")
