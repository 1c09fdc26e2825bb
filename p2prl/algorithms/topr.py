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
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import bounded_exp, terms_of
from p2prl.algorithms.surrogates import over_nll, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class ToprConfig:
    """Bounds of the weight of negatives, and a division by the mean −log p."""

    negative_low: float = 0.0
    """Smallest weight of a negative, in [0, 1]."""
    negative_high: float = 1.0
    """Largest weight of a negative, at least negative_low."""
    sharpness: float = 0.0
    """κ in [0, 1]: every weight is divided by max(NLL, nll_floor)^κ, see `over_nll`. 0 is the paper's loss."""
    nll_floor: float = 0.01
    """Nats per token, > 0: smallest NLL to divide by. No effect without sharpness."""

    def __post_init__(self) -> None:
        require_between("negative_low", self.negative_low, 0.0, 1.0)
        require_between("negative_high", self.negative_high, self.negative_low, math.inf, open_high=True)
        require_between("sharpness", self.sharpness, 0.0, 1.0)
        require_positive("nll_floor", self.nll_floor)


def topr(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: ToprConfig, aggregation: AggregationConfig
) -> LossOutput:
    """TOPR (arXiv 2503.14286 §3): −sg(w) A log p with w = 1 where A ≥ 0 and w = clip(W, low, high) where A < 0.

    W = e^{Σℓ} of the whole sequence. The paper takes raw rewards with a tuned baseline; here the advantage's sign
    decides. A run takes high = 1/4 (docs/decisions/0005-loss.md). With sharpness κ, which is not the paper's, w is
    divided by max(NLL, nll_floor)^κ: what is nearly certain still teaches, and skills that come later find less left
    to try. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    ratio_BG1 = bounded_exp(terms.sequence_BG.detach()).unsqueeze(-1)
    negative_BGT = terms.advantages_BGT < 0
    tapered_BG1 = ratio_BG1.clamp(cfg.negative_low, cfg.negative_high)
    weights_BG1 = torch.where(negative_BGT, tapered_BG1, torch.ones_like(ratio_BG1))
    weights_BG1 = over_nll(weights_BG1, terms, power=cfg.sharpness, floor=cfg.nll_floor)
    return weighted_logprob(weights_BG1, negative_BGT & (tapered_BG1 != ratio_BG1), terms, batch, aggregation)


TOPR = LossSpec(name="topr", function=topr, config_type=ToprConfig, token_advantages=True)
