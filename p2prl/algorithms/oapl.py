"""OAPL: regression of the whole-sequence log-ratio on the optimal advantage, with no weight and no clip.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import terms_of
from p2prl.algorithms.surrogates import summarize, weight_of_slope
from p2prl.algorithms.value_checks import require_positive


@dataclass(frozen=True, kw_only=True)
class OaplConfig:
    """Strength of the pull toward the sampler."""

    beta: float = 1e-3
    """β₂ > 0, reward units per nat: the policy that fits exactly has Σℓ = A/β₂."""

    def __post_init__(self) -> None:
        require_positive("beta", self.beta)


def oapl(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: OaplConfig, aggregation: AggregationConfig
) -> LossOutput:
    """OAPL (arXiv 2602.19362, equations 2 and 3): (β₂ Σℓ − A)²/(2 β₂), A = R − V̂, V̂ = β₁ log mean e^{R/β₁}.

    V̂ is the advantage kind `optimal`, the registry's default for this name, with the paper's β₁ = 1; `mean` is its
    limit for large β₁. The division by 2 β₂ is ours and only scales the gradient, to −(A − β₂ Σℓ) of every token: on
    policy REINFORCE on whole sequences. Equal rewards leave the pull toward the sampler, β₂ Σℓ. `weights_BGT` holds
    |y| (A − β₂ Σℓ)/A, and 0 where A is 0. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    gap_BG = terms.advantages_BG - cfg.beta * terms.sequence_BG
    weights_BG = weight_of_slope(terms.lengths_BG * gap_BG.detach(), terms.advantages_BG)
    loss_BG1 = (gap_BG.square() / (2 * cfg.beta)).unsqueeze(-1)
    free_BG1 = torch.zeros_like(loss_BG1, dtype=torch.bool)
    return summarize(loss_BG1, weights_BG.unsqueeze(-1), free_BG1, terms, batch, aggregation)


OAPL = LossSpec(name="oapl", function=oapl, config_type=OaplConfig, advantage="optimal")
