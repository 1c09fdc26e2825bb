"""REINFORCE that halves the weight of a completion for every `half_life` updates it is old.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import terms_of
from p2prl.algorithms.surrogates import weighted_logprob
from p2prl.algorithms.value_checks import require_positive
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class FreshReinforceConfig:
    """Decay of the weight. Its fields are the loss's `options` in run.toml."""

    half_life: float = 16.0
    """Updates, > 0: a completion this stale has half the weight of a fresh one."""

    def __post_init__(self) -> None:
        require_positive("half_life", self.half_life)


def fresh_reinforce(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: FreshReinforceConfig, aggregation: AggregationConfig
) -> LossOutput:
    """−2^(−staleness / half_life) · A log p per token; log-probs in nats, shapes (B, G, T)."""
    if batch.staleness_BG is None:
        raise LocalProtocolError("fresh_reinforce needs staleness_BG")
    terms = terms_of(policy_logprobs_BGT, batch)
    weights_BG1 = 2.0 ** (-batch.staleness_BG.to(terms.policy_BGT.dtype) / cfg.half_life).unsqueeze(-1)
    return weighted_logprob(weights_BG1, weights_BG1 < 1, terms, batch, aggregation)


FRESH_REINFORCE = LossSpec(
    name="fresh_reinforce",
    function=fresh_reinforce,
    config_type=FreshReinforceConfig,
    uses_behavior_logprobs=False,
)
