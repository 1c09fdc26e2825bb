"""VESPO: a smooth, detached weight on the whole-sequence ratio.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import LOG_RATIO_BOUND, terms_of
from p2prl.algorithms.surrogates import by_sign, weighted_logprob
from p2prl.algorithms.value_checks import require_positive


@dataclass(frozen=True, kw_only=True)
class VespoConfig:
    """Power and decay of the weight, for each sign of the advantage."""

    power_pos: float = 2.0
    """k > 0 where A > 0: how fast the weight falls for W below 1."""
    decay_pos: float = 3.0
    """λ > 0 where A > 0: how fast it falls for W above k/λ."""
    power_neg: float = 3.0
    """k > 0 elsewhere."""
    decay_neg: float = 2.0
    """λ > 0 elsewhere."""

    def __post_init__(self) -> None:
        for field in ("power_pos", "decay_pos", "power_neg", "decay_neg"):
            require_positive(field, getattr(self, field))


def vespo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: VespoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """VESPO (arXiv 2602.10693 §3.4): −sg(φ(W)) A log p with φ(W) = W^k e^{λ(1−W)}, W = e^{Σℓ} of the whole sequence.

    φ(1) = 1; the largest weight is φ(k/λ), below 1.25 with the authors' constants. Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_ratio_BG = terms.sequence_BG.detach().clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    power_BG = by_sign(terms.advantages_BG, positive=cfg.power_pos, other=cfg.power_neg)
    decay_BG = by_sign(terms.advantages_BG, positive=cfg.decay_pos, other=cfg.decay_neg)
    weights_BG1 = (power_BG * log_ratio_BG + decay_BG * (1 - log_ratio_BG.exp())).exp().unsqueeze(-1)
    return weighted_logprob(weights_BG1, weights_BG1 < 0, terms, batch, aggregation)


VESPO = LossSpec(name="vespo", function=vespo, config_type=VespoConfig, advantage="mean_std", aggregation="token_mean")
