"""Losses that do not read the sampler's log-probs: for groups of peers that are not trusted yet.

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
from p2prl.algorithms.surrogates import summarize, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class AsympoConfig:
    """Floor of the normalizer."""

    nll_floor: float = 0.01
    """Nats per token, > 0: smallest mean NLL to divide by; a nearly certain completion would divide by zero."""

    def __post_init__(self) -> None:
        require_positive("nll_floor", self.nll_floor)


@dataclass(frozen=True, kw_only=True)
class AsymreConfig:
    """Shift of the baseline."""

    delta_v: float = -0.1
    """δV ≤ 0, reward units: the baseline is this far below the mean reward. Above it, support collapses."""

    def __post_init__(self) -> None:
        require_between("delta_v", self.delta_v, float("-inf"), 0.0, open_low=True)


def asympo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: AsympoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """ASymPO (arXiv 2606.03070): −A log p / sg(NLL) with NLL = mean_t(−log p) of the completion under the policy now.

    The weight is 1/NLL: a negative that the policy finds unlikely weighs less, regardless of the sampler's claims. The
    floor is ours. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    nll_BG1 = -terms.policy_mean_BG.detach().unsqueeze(-1)
    weights_BG1 = 1 / nll_BG1.clamp(min=cfg.nll_floor)
    return weighted_logprob(weights_BG1, nll_BG1 < cfg.nll_floor, terms, batch, aggregation)


def asymre(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: AsymreConfig, aggregation: AggregationConfig
) -> LossOutput:
    """AsymRE (arXiv 2506.20520 §3): −(R − V) log p with V = mean(R) + δV, δV ≤ 0: learn a little more from successes.

    The batch's advantages are R − mean(R), so the factor is A − δV; `weights_BGT` counts it as 1 on that factor. It
    moves on zero-variance groups, by −δV on every member, as its paper has it. Shapes (B, G, T).
    Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    token_loss_BGT = -(terms.advantages_BGT - cfg.delta_v) * terms.policy_BGT
    ones_BGT = torch.ones_like(terms.advantages_BGT)
    return summarize(token_loss_BGT, ones_BGT, ones_BGT > 1, terms, batch, aggregation)


ASYMPO = LossSpec(
    name="asympo",
    function=asympo,
    config_type=AsympoConfig,
    advantage="mean_std",
    uses_behavior_logprobs=False,
    token_advantages=True,
)
ASYMRE = LossSpec(
    name="asymre",
    function=asymre,
    config_type=AsymreConfig,
    advantages=frozenset({"mean", "opo", "rloo"}),
    uses_behavior_logprobs=False,
)
