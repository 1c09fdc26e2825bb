"""Losses that mask drifted samples: whole negatives (OPSM), or tokens by probability (DPPO, IPO) or ratio (IcePop).

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.guards import negative_tail_keep
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import Terms, bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize, weighted_logprob
from p2prl.algorithms.value_checks import require_between, require_positive


@dataclass(frozen=True, kw_only=True)
class OpsmConfig:
    """GRPO's clip and the bound of the sequence mask."""

    clip_low: float = 0.2
    """ε_low in [0, 1]."""
    clip_high: float = 0.2
    """ε_high > 0."""
    bound_nats: float = 0.5
    """δ ≥ 0, nats per token. TRL's figure; slime's 1e-4 is for nearly fresh rollouts."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)
        require_between("bound_nats", self.bound_nats, 0.0, float("inf"), open_high=True)


@dataclass(frozen=True, kw_only=True)
class DppoConfig:
    """Bounds on the change of a token's probability, and the pull back."""

    mask_low: float = 0.2
    """In (0, 1]: a negative token is dropped once its probability fell by more than this."""
    mask_high: float = 0.2
    """In (0, 1]: a positive token is dropped once its probability rose by more than this."""
    kl_tau: float = 1e-3
    """τ ≥ 0 on the squared log-ratio of every token, dropped ones too."""

    def __post_init__(self) -> None:
        require_between("mask_low", self.mask_low, 0.0, 1.0, open_low=True)
        require_between("mask_high", self.mask_high, 0.0, 1.0, open_low=True)
        require_between("kl_tau", self.kl_tau, 0.0, float("inf"), open_high=True)


@dataclass(frozen=True, kw_only=True)
class IpoConfig:
    """Bound on the change of a token's probability, and the pull back."""

    threshold: float = 0.3
    """In (0, 1]: a token is dropped once its probability moved by more than this. prime-rl's configuration had .1 in
    August 2026."""
    kl_tau: float = 1e-3
    """τ ≥ 0 on the squared log-ratio of every token, dropped ones too."""

    def __post_init__(self) -> None:
        require_between("threshold", self.threshold, 0.0, 1.0, open_low=True)
        require_between("kl_tau", self.kl_tau, 0.0, float("inf"), open_high=True)


@dataclass(frozen=True, kw_only=True)
class IcepopConfig:
    """Interval of a token's ratio outside which it is dropped."""

    low: float = 0.5
    """In (0, 1]."""
    high: float = 5.0
    """At least 1."""

    def __post_init__(self) -> None:
        require_between("low", self.low, 0.0, 1.0, open_low=True)
        require_between("high", self.high, 1.0, float("inf"), open_high=True)


def opsm(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: OpsmConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556 §3): GRPO without the drifted negatives.

    A completion is dropped where A < 0 and mean_t(log q − log p) > δ; the normalizers still count it. The authors take
    the KL from the old to the current policy; the sampler stands in for the old policy here. Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    keep_BG1 = negative_tail_keep(terms.geometric_BG, terms.advantages_BG, bound_nats=cfg.bound_nats).unsqueeze(-1)
    loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    return summarize(keep_BG1 * loss_BGT, keep_BG1 * weights_BGT, clipped_BGT | ~keep_BG1, terms, batch, aggregation)


def dppo(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: DppoConfig, aggregation: AggregationConfig
) -> LossOutput:
    """DPPO with total-variation masks (arXiv 2602.04879, as in prime-rl): −M r A + τ ℓ² per token, r = e^ℓ.

    M = 0 where A > 0 and p − q > mask_high, or A < 0 and q − p > mask_low, p and q the token's probabilities: a bound
    on probability, not on ratio, so unlikely tokens stay free. r is unbounded, as in prime-rl; verl truncates it at 20.
    Metric squared_log_ratio: mean ℓ², nats². Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    change_BGT = terms.policy_BGT.detach().exp() - terms.behavior_BGT.exp()
    rose_BGT = (terms.advantages_BGT > 0) & (change_BGT > cfg.mask_high)
    fell_BGT = (terms.advantages_BGT < 0) & (change_BGT < -cfg.mask_low)
    return _masked_and_pulled(rose_BGT | fell_BGT, cfg.kl_tau, terms, batch, aggregation)


def ipo(policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: IpoConfig, aggregation: AggregationConfig) -> LossOutput:
    """IPO of prime-rl (not the preference loss of that name): −M r A + τ ℓ² per token, M = 0 where |p − q| > threshold.

    As DPPO, whatever the sign of the advantage. Metric squared_log_ratio: mean ℓ², nats². Shapes (B, G, T). Raises
    LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    moved_BGT = (terms.policy_BGT.detach().exp() - terms.behavior_BGT.exp()).abs() > cfg.threshold
    return _masked_and_pulled(moved_BGT, cfg.kl_tau, terms, batch, aggregation)


def icepop(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: IcepopConfig, aggregation: AggregationConfig
) -> LossOutput:
    """IcePop by token (Ring-1T, arXiv 2510.18855): −sg(r · 1[low ≤ r ≤ high]) A log p, r = e^ℓ per token.

    The authors mask the ratio of trainer to inference engine and clip another one around it; the sampler stands in for
    both here, as in verl's REINFORCE with IcePop, whose bounds these are. Dropped tokens still count in every
    normalizer. By sequence: `seq_mis`. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    log_ratio_BGT = terms.log_ratio_BGT.detach()
    outside_BGT = (log_ratio_BGT < math.log(cfg.low)) | (log_ratio_BGT > math.log(cfg.high))
    weights_BGT = on_mask(bounded_exp(log_ratio_BGT), ~outside_BGT)
    return weighted_logprob(weights_BGT, outside_BGT, terms, batch, aggregation)


def _masked_and_pulled(
    dropped_BGT: Tensor, kl_tau: float, terms: Terms, batch: RolloutBatch, aggregation: AggregationConfig
) -> LossOutput:
    """−r A of the tokens that are not dropped, and τ ℓ² of all."""
    ratio_BGT = on_mask(bounded_exp(terms.log_ratio_BGT), ~dropped_BGT)
    squares_BGT = terms.log_ratio_BGT.square()
    token_loss_BGT = -ratio_BGT * terms.advantages_BGT + kl_tau * squares_BGT
    metrics = {"squared_log_ratio": squares_BGT.detach().sum() / terms.lengths_BG.sum()}
    return summarize(token_loss_BGT, ratio_BGT, dropped_BGT, terms, batch, aggregation, extra_metrics=metrics)


OPSM = LossSpec(name="opsm", function=opsm, config_type=OpsmConfig, advantage="mean_std")
DPPO = LossSpec(name="dppo", function=dppo, config_type=DppoConfig, aggregation="token_mean", token_advantages=True)
IPO = LossSpec(name="ipo", function=ipo, config_type=IpoConfig, aggregation="token_mean")
ICEPOP = LossSpec(
    name="icepop", function=icepop, config_type=IcepopConfig, advantage="mean_std", aggregation="token_mean"
)
