"""Clip-Cov and KL-Cov: tokens that would lower the entropy most are dropped, or pulled back to the sampler.

The covariance of a token is (A − mean A)(log p − mean log p), both means over the tokens of the batch: the larger, the
more its update lowers the entropy. Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.grpo import GrpoConfig
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import LOG_RATIO_BOUND, Terms, bounded_exp, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between


@dataclass(frozen=True, kw_only=True)
class ClipCovConfig(GrpoConfig):
    """GRPO's clip, and which tokens are dropped."""

    share: float = 2e-4
    """In (0, 1]: share of the tokens that is dropped, and at least one."""
    cov_low: float = 1.0
    """Smallest covariance of a dropped token, excluded."""
    cov_high: float = 5.0
    """Largest covariance of a dropped token, excluded; above cov_low."""

    def __post_init__(self) -> None:
        GrpoConfig.__post_init__(self)
        require_between("share", self.share, 0.0, 1.0, open_low=True)
        require_between("cov_low", self.cov_low, float("-inf"), float("inf"), open_low=True, open_high=True)
        require_between("cov_high", self.cov_high, self.cov_low, float("inf"), open_low=True)


@dataclass(frozen=True, kw_only=True)
class KlCovConfig:
    """Which tokens are pulled, and how strongly."""

    share: float = 2e-4
    """In (0, 1]: share of the tokens that is pulled, and at least one."""
    penalty: float = 1.0
    """β ≥ 0 on |ℓ| of those tokens."""

    def __post_init__(self) -> None:
        require_between("share", self.share, 0.0, 1.0, open_low=True)
        require_between("penalty", self.penalty, 0.0, float("inf"), open_high=True)


def clip_cov(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: ClipCovConfig, aggregation: AggregationConfig
) -> LossOutput:
    """Clip-Cov (arXiv 2505.22617 §4): GRPO without `share` of the tokens, of those with covariance in (low, high).

    Tokens that the clip already stops are no candidates. The authors draw the dropped ones at random; here they are
    evenly spaced among the candidates, so that the same batch gives the same loss. The share is of this batch; parts of
    an update each drop their own. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    covariance_BGT = _covariance(terms)
    candidates_BGT = (covariance_BGT > cfg.cov_low) & (covariance_BGT < cfg.cov_high) & terms.mask_BGT & ~clipped_BGT
    places_N3 = candidates_BGT.nonzero()
    count = min(_tokens(terms, cfg.share), len(places_N3))
    chosen_N3 = places_N3[torch.arange(count, device=places_N3.device) * len(places_N3) // max(count, 1)]
    dropped_BGT = torch.zeros_like(terms.mask_BGT)
    dropped_BGT[tuple(chosen_N3.unbind(dim=-1))] = True
    keep_BGT = ~dropped_BGT
    return summarize(
        on_mask(loss_BGT, keep_BGT),
        on_mask(weights_BGT, keep_BGT),
        clipped_BGT | dropped_BGT,
        terms,
        batch,
        aggregation,
    )


def kl_cov(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: KlCovConfig, aggregation: AggregationConfig
) -> LossOutput:
    """KL-Cov (arXiv 2505.22617 §4): −r A per token, plus β |ℓ| on the `share` of tokens with the largest covariance.

    No clip. Of equal covariances the first tokens are pulled, so equal rewards leave a pull on some. The share is of
    this batch; parts of an update each pull their own. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    order_N = _covariance(terms)[terms.mask_BGT].argsort(descending=True, stable=True)
    pulled_N = torch.zeros_like(order_N, dtype=torch.bool)
    pulled_N[order_N[: _tokens(terms, cfg.share)]] = True
    pulled_BGT = torch.zeros_like(terms.mask_BGT)
    pulled_BGT[terms.mask_BGT] = pulled_N
    ratio_BGT = bounded_exp(terms.log_ratio_BGT)
    within_BGT = terms.log_ratio_BGT.detach().abs() <= LOG_RATIO_BOUND
    loss_BGT = -ratio_BGT * terms.advantages_BGT + cfg.penalty * on_mask(terms.log_ratio_BGT.abs(), pulled_BGT)
    return summarize(loss_BGT, on_mask(ratio_BGT.detach(), within_BGT), ~within_BGT, terms, batch, aggregation)


def _covariance(terms: Terms) -> Tensor:
    """(A − mean A)(log p − mean log p) of each token, no gradient; 0 off the mask."""
    tokens = terms.lengths_BG.sum()
    policy_BGT = terms.policy_BGT.detach()
    mean_advantage = (terms.lengths_BG * terms.advantages_BG).sum() / tokens
    centered_BGT = (terms.advantages_BGT - mean_advantage) * (policy_BGT - policy_BGT.sum() / tokens)
    return on_mask(centered_BGT, terms.mask_BGT)


def _tokens(terms: Terms, share: float) -> int:
    return max(1, int(share * int(terms.mask_BGT.sum())))


CLIP_COV = LossSpec(
    name="clip_cov", function=clip_cov, config_type=ClipCovConfig, advantage="mean_std", aggregation="token_mean"
)
KL_COV = LossSpec(
    name="kl_cov", function=kl_cov, config_type=KlCovConfig, advantage="mean_std", aggregation="token_mean"
)
