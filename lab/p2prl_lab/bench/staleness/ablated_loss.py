"""GEPO-T with each of its parts as a switch: group expectation, cap, taper, division by NLL.

Only for comparison: it is not in the registry, so a run cannot use it. Shape legend: B groups, G completions, T tokens;
a trailing 1 broadcasts over T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.gepo_tapered import taper_negatives
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import log_expectation_of, terms_of
from p2prl.algorithms.surrogates import over_nll, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_choice, require_positive


@dataclass(frozen=True, kw_only=True)
class AblatedConfig:
    """Switches; all of them on are `gepo_t:sharpness=1`, without the expectation it is `topr:sharpness=1`."""

    expectation: Literal["group", "none"] = "group"
    """group: w = P/Ê; none: w = 1."""
    cap: float = 2.0
    """Largest weight before the division by NLL, > 0; 1e9 is none."""
    taper: Literal["sequence", "geometric", "token", "none"] = "sequence"
    """Bound on the weight of a negative: see `gepo_tapered.Taper`; none: it weighs as a positive does."""
    sharpness: float = 1.0
    """κ in [0, 1]: the weight is divided by max(NLL, .01)^κ; 0 is no division."""

    def __post_init__(self) -> None:
        require_choice("expectation", self.expectation, ("group", "none"))
        require_positive("cap", self.cap)
        require_choice("taper", self.taper, ("sequence", "geometric", "token", "none"))
        require_between("sharpness", self.sharpness, 0.0, 1.0)


_NLL_FLOOR = 0.01
"""Nats per token: smallest NLL to divide by, as in GEPO-T."""


def ablated(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: AblatedConfig, aggregation: AggregationConfig
) -> LossOutput:
    """−sg(w) A log p, w = min(P/Ê, cap), tapered for A < 0, over max(NLL, .01)^κ; each part can be left out.

    Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_weight_BG = torch.zeros_like(terms.policy_mean_BG)
    if cfg.expectation == "group":
        log_weight_BG = terms.policy_mean_BG.detach() - log_expectation_of(terms, batch)
    capped_BG = log_weight_BG.clamp(max=math.log(cfg.cap))
    bounded = (capped_BG < log_weight_BG).unsqueeze(-1)
    log_weights = capped_BG.unsqueeze(-1)
    if cfg.taper != "none":
        log_weights, tapered = taper_negatives(capped_BG, terms, cfg.taper)
        bounded = bounded | tapered
    weights = over_nll(log_weights.exp(), terms, power=cfg.sharpness, floor=_NLL_FLOOR)
    return weighted_logprob(weights, bounded, terms, batch, aggregation)


ABLATED = LossSpec(name="ablated", function=ablated, config_type=AblatedConfig)
