"""KL penalty toward a reference policy, a separate term that can be added to any loss.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, aggregate
from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.ratios import on_mask, terms_of
from p2prl.algorithms.value_checks import require_between
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class ReferencePenaltyConfig:
    """Strength and clamp of the penalty."""

    beta: float = 0.0
    """β ≥ 0: factor on the penalty; 0 means none."""
    log_ratio_bound: float = 10.0
    """Nats in (0, 20]: |log ref − log p| of a token is clamped here; no gradient outside."""

    def __post_init__(self) -> None:
        require_between("beta", self.beta, 0.0, float("inf"), open_high=True)
        require_between("log_ratio_bound", self.log_ratio_bound, 0.0, 20.0, open_low=True)


def reference_penalty(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: ReferencePenaltyConfig, aggregation: AggregationConfig
) -> Tensor:
    """Scalar β · aggregate(e^x − x − 1), x = log ref − log p: k3, GRPO's KL(p‖ref) (arXiv 2402.03300 §4.1).

    Unbiased only for samples of p; for stale rollouts it is a regularizer, not an estimate. Raises LocalProtocolError
    (see `terms_of`), also where the batch has no reference log-probs.
    """
    if batch.reference_logprobs_BGT is None:
        raise LocalProtocolError("the reference penalty needs reference_logprobs_BGT")
    terms = terms_of(policy_logprobs_BGT, batch)
    reference_BGT = on_mask(batch.reference_logprobs_BGT.detach().to(terms.policy_BGT.dtype), terms.mask_BGT)
    x_BGT = (reference_BGT - terms.policy_BGT).clamp(-cfg.log_ratio_bound, cfg.log_ratio_bound)
    penalty_BGT = x_BGT.exp() - x_BGT - 1
    return cfg.beta * aggregate(penalty_BGT, terms.mask_BGT, aggregation, update_lengths_N=batch.update_lengths_N)
