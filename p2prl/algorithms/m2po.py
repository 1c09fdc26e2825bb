"""M2PO: the plain ratio surrogate on the tokens within a second-moment budget.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.config_checks import require_positive
from p2prl.algorithms.guards import second_moment_keep
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import summarize


@dataclass(frozen=True, kw_only=True)
class M2poConfig:
    """Second-moment budget."""

    budget: float = 0.04
    """τ > 0, nats²: largest mean ℓ² of the kept tokens."""

    def __post_init__(self) -> None:
        require_positive("budget", self.budget)


def m2po(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: M2poConfig, aggregation: AggregationConfig
) -> LossOutput:
    """M2PO (arXiv 2510.01161 §4): −M r A per token, r = e^ℓ, M drops the largest ℓ² until the kept mean is ≤ τ.

    No clip. The budget holds over this batch; parts of an update each keep their own. The authors' released code
    masks only tokens that PPO would clip (A and log r of one sign); here all tokens are candidates, as in the paper's
    algorithm. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    keep_BGT = second_moment_keep(terms.log_ratio_BGT, terms.mask_BGT, budget=cfg.budget)
    ratio_BGT = torch.where(keep_BGT, bounded_exp(terms.log_ratio_BGT), torch.zeros_like(terms.log_ratio_BGT))
    token_loss_BGT = -ratio_BGT * terms.advantages_BG1
    return summarize(token_loss_BGT, on_mask(ratio_BGT, keep_BGT), ~keep_BGT, terms, batch, aggregation)


M2PO = LossSpec(
    name="m2po",
    function=m2po,
    config_type=M2poConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
