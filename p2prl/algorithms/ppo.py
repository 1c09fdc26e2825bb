"""PPO with a value head: the clipped policy loss, the value loss and generalized advantage estimation.

The learner's value head is `p2prl/learner/training/value_head.py`.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, aggregate
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.ratios import computing, on_mask, terms_of
from p2prl.algorithms.surrogates import clipped_minimum, summarize
from p2prl.algorithms.value_checks import require_between, require_positive
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """Clip of the per-token ratio."""

    clip_low: float = 0.2
    """ε_low in [0, 1]."""
    clip_high: float = 0.2
    """ε_high > 0."""

    def __post_init__(self) -> None:
        require_between("clip_low", self.clip_low, 0.0, 1.0)
        require_positive("clip_high", self.clip_high)


@dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """The value loss and the advantage estimator."""

    value_clip: float | None = 0.2
    """Reward units, > 0: the new value is clipped to this distance from the old one; None: not clipped."""
    gamma: float = 1.0
    """Discount in [0, 1]; 1 for completions that are rewarded at their end."""
    gae_lambda: float = 0.95
    """λ in [0, 1]: 0 is one-step TD, 1 is Monte Carlo."""

    def __post_init__(self) -> None:
        if self.value_clip is not None:
            require_positive("value_clip", self.value_clip)
        require_between("gamma", self.gamma, 0.0, 1.0)
        require_between("gae_lambda", self.gae_lambda, 0.0, 1.0)


def ppo(policy_logprobs_BGT: Tensor, batch: RolloutBatch, cfg: PpoConfig, aggregation: AggregationConfig) -> LossOutput:
    """PPO's policy part (arXiv 1707.06347 §3): −min(r A_t, clip(r, 1−ε_low, 1+ε_high) A_t), r = e^ℓ, A_t per token.

    A_t is the batch's token advantages (from `gae`), or the completion's advantage if there are none. The sampler
    stands in for the old policy. Shapes (B, G, T). Raises LocalProtocolError (see `terms_of`).
    """
    terms = terms_of(policy_logprobs_BGT, batch)
    loss_BGT, weights_BGT, clipped_BGT = clipped_minimum(
        terms.log_ratio_BGT, terms.advantages_BGT, clip_low=cfg.clip_low, clip_high=cfg.clip_high
    )
    return summarize(loss_BGT, weights_BGT, clipped_BGT, terms, batch, aggregation)


def value_loss(
    values_BGT: Tensor,
    old_values_BGT: Tensor,
    returns_BGT: Tensor,
    mask_BGT: Tensor,
    cfg: ValueConfig,
    aggregation: AggregationConfig,
) -> Tensor:
    """Scalar ½ max((v − R)², (v_old + clip(v − v_old, ±c) − R)²), aggregated (arXiv 1707.06347; OpenAI baselines).

    All (B, G, T), reward units; gradient through `values_BGT` only. Raises LocalProtocolError for a wrong shape or NaN.
    """
    mask_BGT = mask_BGT.bool()
    named = {"values_BGT": values_BGT, "old_values_BGT": old_values_BGT, "returns_BGT": returns_BGT}
    for field, tensor in named.items():
        _check_finite(field, tensor, mask_BGT)
    values_BGT = on_mask(computing(values_BGT), mask_BGT)
    old_BGT = on_mask(old_values_BGT.detach().to(values_BGT.dtype), mask_BGT)
    target_BGT = on_mask(returns_BGT.detach().to(values_BGT.dtype), mask_BGT)
    squared_BGT = (values_BGT - target_BGT).square()
    if cfg.value_clip is not None:
        near_BGT = old_BGT + (values_BGT - old_BGT).clamp(-cfg.value_clip, cfg.value_clip)
        clipped_BGT = (near_BGT - target_BGT).square()
        squared_BGT = torch.where(clipped_BGT > squared_BGT, clipped_BGT, squared_BGT)
    return 0.5 * aggregate(squared_BGT, mask_BGT, aggregation)


def gae(token_rewards_BGT: Tensor, values_BGT: Tensor, mask_BGT: Tensor, cfg: ValueConfig) -> tuple[Tensor, Tensor]:
    """(advantages, returns), (B, G, T): generalized advantage estimation (arXiv 1506.02438 §3); returns = A + v.

    δ_t = r_t + γ v_{t+1} − v_t, A_t = δ_t + γλ A_{t+1}; after the last token value and advantage are 0. Tokens off the
    mask (tool output inside a completion) are stepped over: a token's successor is the next one on the mask. No
    gradient. Raises LocalProtocolError for a wrong shape or NaN.
    """
    mask_BGT = mask_BGT.bool()
    _check_finite("token_rewards_BGT", token_rewards_BGT, mask_BGT)
    _check_finite("values_BGT", values_BGT, mask_BGT)
    values_BGT = on_mask(computing(values_BGT.detach()), mask_BGT)
    rewards_BGT = on_mask(token_rewards_BGT.detach().to(values_BGT.dtype), mask_BGT)
    next_value_BG = torch.zeros_like(values_BGT[..., 0])
    next_advantage_BG = torch.zeros_like(next_value_BG)
    advantages_BGT = torch.zeros_like(values_BGT)
    for step in reversed(range(mask_BGT.shape[-1])):
        on_BG = mask_BGT[..., step]
        delta_BG = rewards_BGT[..., step] + cfg.gamma * next_value_BG - values_BGT[..., step]
        advantage_BG = delta_BG + cfg.gamma * cfg.gae_lambda * next_advantage_BG
        advantages_BGT[..., step] = torch.where(on_BG, advantage_BG, torch.zeros_like(advantage_BG))
        next_value_BG = torch.where(on_BG, values_BGT[..., step], next_value_BG)
        next_advantage_BG = torch.where(on_BG, advantage_BG, next_advantage_BG)
    return advantages_BGT, advantages_BGT + values_BGT


def _check_finite(field: str, values_BGT: Tensor, mask_BGT: Tensor) -> None:
    if values_BGT.shape != mask_BGT.shape:
        raise LocalProtocolError(f"{field} has shape {tuple(values_BGT.shape)}, expected {tuple(mask_BGT.shape)}")
    if not bool(torch.isfinite(values_BGT.detach()[mask_BGT]).all()):
        raise LocalProtocolError(f"{field} holds NaN or infinity on the mask")


PPO = LossSpec(name="ppo", function=ppo, config_type=PpoConfig, aggregation="token_mean", token_advantages=True)
