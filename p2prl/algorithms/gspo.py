"""GSPO and LUSPO: the clipped surrogate on the geometric-mean ratio of the whole completion.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class GspoConfig:
    """Clip of the sequence ratio."""

    clip_low: float = 0.2
    """ε_low in [0, 1]. The paper's 3e-4 suits rollouts one update old; .2 (HeteroRL) suits stale ones."""
    clip_high: float = 0.2
    """ε_high > 0. The paper's 4e-4 is for nearly fresh rollouts, as above."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)


def gspo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GspoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GSPO (arXiv 2507.18071 §4.1): −min(s A, clip(s, 1−ε_low, 1+ε_high) A), s = exp(mean_t ℓ).

    One value per completion, spread over its tokens, so seq_mean gives the paper's objective and token_mean weighs
    completions by length. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    token_loss_BG1, weights_BG1, clipped_BG1 = clipped_minimum(
        terms.geometric_BG.unsqueeze(-1), terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    return summarize(token_loss_BG1, weights_BG1, clipped_BG1, terms, batch, aggregation)


def luspo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GspoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """LUSPO (arXiv 2602.05261): GSPO's surrogate with every completion's loss multiplied by its length.

    The mean of |y| loss is the aggregation `fixed_length` times the completion limit, so that aggregation, the
    registry's default for this name, is the only difference. The paper clips at 2e-3 and 2.5e-3, for nearly fresh
    rollouts. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    return gspo(policy_logprobs_BGT, batch, cfg, aggregation)


GSPO = LossSpec(name="gspo", function=gspo, config_type=GspoConfig, advantage="mean_std")
LUSPO = LossSpec(name="luspo", function=luspo, config_type=GspoConfig, advantage="mean_std", aggregation="fixed_length")
