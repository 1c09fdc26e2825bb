"""Token-level clipped surrogates: GRPO and the losses that differ from it in clip, scale or normalizer.

Dr. GRPO, DAPO and BNPO share GRPO's surrogate; their own parts are the aggregation and the advantage, which the
registry sets as their defaults. Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class GrpoConfig:
    """Clip of the per-token ratio."""

    clip_low: float = 0.2
    """ε_low in [0, 1]: below 1 − ε_low a negative token has no gradient."""
    clip_high: float = 0.2
    """ε_high > 0: above 1 + ε_high a positive token has no gradient."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)


@dataclass(frozen=True, kw_only=True)
class DapoConfig(GrpoConfig):
    """GRPO's clip with DAPO's higher ceiling."""

    clip_high: float = 0.28
    """ε_high > 0. "Clip-higher" leaves room for unlikely tokens to grow."""


@dataclass(frozen=True, kw_only=True)
class TwoSidedConfig(GrpoConfig):
    """GRPO's clip, and a bound on the branch that PPO leaves open."""

    delta: float = 4.0
    """δ > 1 + ε_high: ceiling of the ratio where the advantage is negative."""

    def __post_init__(self) -> None:
        GrpoConfig.__post_init__(self)
        require_between("delta", self.delta, 1 + self.clip_high, float("inf"), open_low=True, open_high=True)


def grpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GrpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """GRPO (DeepSeekMath, arXiv 2402.03300 §4.1): −min(r A, clip(r, 1−ε_low, 1+ε_high) A), r = e^ℓ per token.

    The sampler's policy stands in for the old policy, so r also corrects staleness. No KL term here: the reference
    penalty is a separate setting. Shapes (B, G, T); log-probs in nats. Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    token_loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    return summarize(token_loss_BGT, weights_BGT, clipped_BGT, terms, batch, aggregation)


def dr_grpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GrpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Dr. GRPO (arXiv 2503.20783 §3.2): GRPO's surrogate with A = R − mean and the sum divided by N·Lmax.

    Both differences are the registry's defaults for this name. The authors' code divides by the completion limit, as
    `fixed_length` does. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    return grpo(policy_logprobs_BGT, batch, cfg, aggregation)


def dapo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: DapoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """DAPO (arXiv 2503.14476 §3): GRPO's surrogate with ε_high = .28 and the mean over all tokens of the update.

    Dynamic sampling and overlong shaping are not losses: zero-variance groups already give no gradient and are
    counted. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    return grpo(policy_logprobs_BGT, batch, cfg, aggregation)


def bnpo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: GrpoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """BNPO (arXiv 2506.02864): GRPO's surrogate, token mean, A = (R − mean)/Beta density (`advantages`, kind beta).

    HeteroRL's table labels its token mean alone "BNPO"; here the Beta scale belongs to the name. Shapes (B, G, T).
    Raises LocalProtocolError (see `terms_of`).
    """
    return grpo(policy_logprobs_BGT, batch, cfg, aggregation)


def two_sided(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: TwoSidedConfig, aggregation: AggregationConfig
) -> LossOutput:
    """INTELLECT-2's two-sided clip (arXiv 2505.07291 §4.1): −min(min(r, δ) A, clip(r, 1−ε_low, 1+ε_high) A).

    PPO leaves r unbounded where A < 0; δ bounds it, and beyond δ the token has no gradient. The authors divide by the
    token limit; here that is the aggregation's job. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_delta = torch.tensor(cfg.delta, dtype=torch.float64).log().item()
    beyond_BGT = terms.log_ratio_BGT.detach() > log_delta
    capped_BGT = torch.where(beyond_BGT, torch.full_like(terms.log_ratio_BGT, log_delta), terms.log_ratio_BGT)
    token_loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        capped_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    weights_BGT = torch.where(beyond_BGT, torch.zeros_like(weights_BGT), weights_BGT)
    return summarize(token_loss_BGT, weights_BGT, clipped_BGT | beyond_BGT, terms, batch, aggregation)


GRPO = LossSpec(name="grpo", function=grpo, config_type=GrpoConfig, advantage="mean_std", token_advantages=True)
DR_GRPO = LossSpec(
    name="dr_grpo", function=dr_grpo, config_type=GrpoConfig, aggregation="fixed_length", token_advantages=True
)
DAPO = LossSpec(
    name="dapo",
    function=dapo,
    config_type=DapoConfig,
    advantage="mean_std",
    aggregation="token_mean",
    token_advantages=True,
)
BNPO = LossSpec(
    name="bnpo",
    function=bnpo,
    config_type=GrpoConfig,
    advantage="beta",
    aggregation="token_mean",
    token_advantages=True,
)
TWO_SIDED = LossSpec(
    name="two_sided", function=two_sided, config_type=TwoSidedConfig, advantage="mean_std", token_advantages=True
)
