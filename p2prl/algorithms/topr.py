"""TOPR: the default loss of a run, a success at full weight and a failure at its tapered sequence ratio.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
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
from p2prl.algorithms.ratios import Terms, bounded_exp, log_expectation_of, terms_of
from p2prl.algorithms.surrogates import over_nll, weighted_logprob


@dataclass(frozen=True, kw_only=True)
class ToprConfig:
    """Bounds of the weight of negatives, a gate on what the group says already, and a division by the mean −log p."""

    negative_low: float = 0.0
    """Smallest weight of a negative, in [0, 1]."""
    negative_high: float = 1.0
    """Largest weight of a negative, at least negative_low."""
    sharpness: float = 0.0
    """κ in [0, 1]: every weight is divided by max(NLL, nll_floor)^κ, see `over_nll`. 0 is the paper's loss."""
    nll_floor: float = 0.01
    """Nats per token, > 0: smallest NLL to divide by. No effect without sharpness."""
    gate: float = 0.0
    """ε in [0, 1): a success whose P is above (1 + ε) Ê of its group has no gradient, nor a failure whose P is below
    (1 − ε) Ê. 0 is no gate, the paper's loss."""

    def __post_init__(self) -> None:
        require_between("negative_low", self.negative_low, 0.0, 1.0)
        require_between("negative_high", self.negative_high, self.negative_low, math.inf, open_high=True)
        require_between("sharpness", self.sharpness, 0.0, 1.0)
        require_positive("nll_floor", self.nll_floor)
        require_between("gate", self.gate, 0.0, 1.0, open_high=True)


def topr(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: ToprConfig, aggregation: AggregationConfig
) -> LossOutput:
    """TOPR (arXiv 2503.14286 §3): −sg(w) A log p with w = 1 where A ≥ 0 and w = clip(W, low, high) where A < 0.

    W = e^{Σℓ} of the whole sequence. The paper takes raw rewards with a tuned baseline; here the advantage's sign
    decides. Two options are not the paper's. The gate is where GEPO's PPO clip has no gradient: what a group already
    answers more often than on average is not pushed up, nor what it answers more seldom down. With sharpness κ, w is
    divided by max(NLL, nll_floor)^κ. Both were compared under delay (docs/decisions/0005-loss.md). Metric
    gated_fraction: share of tokens that the gate leaves out. Shapes (B, G, T). Raises LocalProtocolError (see
    `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    ratio_BG1 = bounded_exp(terms.sequence_BG.detach()).unsqueeze(-1)
    negative_BGT = terms.advantages_BGT < 0
    tapered_BG1 = ratio_BG1.clamp(cfg.negative_low, cfg.negative_high)
    weights_BGT = torch.where(negative_BGT, tapered_BG1, torch.ones_like(ratio_BG1))
    weights_BGT = over_nll(weights_BGT, terms, power=cfg.sharpness, floor=cfg.nll_floor)
    bounded_BGT = negative_BGT & (tapered_BG1 != ratio_BG1)
    if not cfg.gate:
        return weighted_logprob(weights_BGT, bounded_BGT, terms, batch, aggregation)
    gated_BGT = _gated(terms, batch, cfg.gate)
    metrics = {"gated_fraction": (gated_BGT & terms.mask_BGT).sum() / terms.lengths_BG.sum()}
    weights_BGT = weights_BGT * ~gated_BGT
    return weighted_logprob(weights_BGT, bounded_BGT | gated_BGT, terms, batch, aggregation, metrics)


def _gated(terms: Terms, batch: RolloutBatch, gate: float) -> Tensor:
    """Bool (B, G, T): tokens of completions that have passed their group's Ê in the direction of the advantage."""
    above_group_BG1 = (terms.policy_mean_BG.detach() - log_expectation_of(terms, batch)).unsqueeze(-1)
    return torch.where(
        terms.advantages_BGT < 0, above_group_BG1 < math.log1p(-gate), above_group_BG1 > math.log1p(gate)
    )


TOPR = LossSpec(name="topr", function=topr, config_type=ToprConfig, token_advantages=True)
