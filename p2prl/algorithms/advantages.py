"""Advantages from rewards: baseline and scale, configured separately from the loss.

Shape legend: B groups, G completions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from p2prl.algorithms.config_checks import require_choice, require_positive
from p2prl.algorithms.ratios import computing
from p2prl.errors import ConfigError, LocalProtocolError

AdvantageKind = Literal["none", "mean", "mean_std", "opo", "rloo", "beta"]

ZERO_VARIANCE_RANGE = 1e-8
"""Reward units. Groups with a smaller reward range are skipped: dividing by it would amplify rounding errors."""


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """Baseline to subtract and scale to divide by."""

    kind: AdvantageKind = "mean"
    """none: A = R. mean: R − mean(R) (Dr. GRPO, GEPO). mean_std: (R − mean)/(std + ε), unbiased std (GRPO).
    opo: R − Σ|y|R/Σ|y| (OPO, arXiv 2505.23585). rloo: R − mean of the others (arXiv 2402.14740).
    beta: (R − mean)/f(mean; 1+a/3, 1+b/3), f the Beta density, a and b by moments over the batch's group means
    (BNPO, arXiv 2506.02864 §3)."""
    std_epsilon: float = 1e-4
    """Reward units, added to the standard deviation of mean_std."""
    beta_density_floor: float = 1e-2
    """Smallest Beta density to divide by. The authors have none; near 0 and 1 their scale is unbounded."""

    def __post_init__(self) -> None:
        require_choice("advantage.kind", self.kind, get_args(AdvantageKind))
        require_positive("advantage.std_epsilon", self.std_epsilon)
        require_positive("advantage.beta_density_floor", self.beta_density_floor)


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """Advantages, and the groups without a learning signal."""

    advantages_BG: Tensor
    """No gradient."""
    zero_variance_B: Tensor
    """Bool: all rewards of the group agree, so every baseline of the group gives exactly 0 (not so for kind none)."""


def compute_advantages(rewards_BG: Tensor, cfg: AdvantageConfig, *, lengths_BG: Tensor | None = None) -> Advantages:
    """Advantages of B groups. `lengths_BG` (tokens) is read by opo only.

    Zero-variance groups get exactly 0 and so no gradient, which the learner counts and is not an error. The same holds
    for G = 1, whose baseline is its own reward. Raises ConfigError when the kind does not support these rewards (opo
    without lengths, rloo with G = 1, beta outside [0, 1]); LocalProtocolError for shape, NaN, infinity.
    """
    if rewards_BG.dim() != 2 or rewards_BG.numel() == 0:
        raise LocalProtocolError(f"rewards_BG must be (B, G) and not empty, not {tuple(rewards_BG.shape)}")
    rewards_BG = computing(rewards_BG.detach())
    if not bool(torch.isfinite(rewards_BG).all()):
        raise LocalProtocolError("rewards_BG holds NaN or infinity")
    zero_variance_B = (rewards_BG.amax(dim=-1) - rewards_BG.amin(dim=-1)) <= ZERO_VARIANCE_RANGE
    advantages_BG = _raw_advantages(rewards_BG, cfg, lengths_BG)
    if cfg.kind != "none":
        advantages_BG = torch.where(zero_variance_B.unsqueeze(-1), torch.zeros_like(advantages_BG), advantages_BG)
    return Advantages(advantages_BG=advantages_BG, zero_variance_B=zero_variance_B)


def _raw_advantages(rewards_BG: Tensor, cfg: AdvantageConfig, lengths_BG: Tensor | None) -> Tensor:
    size = rewards_BG.shape[-1]
    centered_BG = rewards_BG - rewards_BG.mean(dim=-1, keepdim=True)
    match cfg.kind:
        case "none":
            return rewards_BG
        case "mean":
            return centered_BG
        case "mean_std":
            if size == 1:
                return centered_BG
            return centered_BG / (rewards_BG.std(dim=-1, keepdim=True) + cfg.std_epsilon)
        case "rloo":
            if size == 1:
                raise ConfigError(
                    "advantage.kind = 'rloo' needs groups of at least 2", remedy="Increase the group size."
                )
            return centered_BG * (size / (size - 1))
        case "opo":
            if lengths_BG is None or lengths_BG.shape != rewards_BG.shape:
                raise ConfigError("advantage.kind = 'opo' needs the completion lengths", remedy="Pass lengths_BG.")
            weights_BG = lengths_BG.to(rewards_BG.dtype)
            return rewards_BG - (weights_BG * rewards_BG).sum(-1, keepdim=True) / weights_BG.sum(-1, keepdim=True)
        case "beta":
            if bool((rewards_BG < 0).any()) or bool((rewards_BG > 1).any()):
                raise ConfigError("advantage.kind = 'beta' needs rewards in [0, 1]", remedy="Use 'mean' instead.")
            return centered_BG / beta_density(rewards_BG.mean(dim=-1)).clamp(min=cfg.beta_density_floor).unsqueeze(-1)


def beta_density(success_B: Tensor) -> Tensor:
    """f(p; 1+a/3, 1+b/3) at each group's mean reward, a and b the moments' Beta over the batch of groups, (B,).

    Degenerate moments (one group, equal means, or a variance no Beta has) give the uniform density 1: A = R − mean.
    """
    uniform_B = torch.ones_like(success_B)
    if success_B.numel() < 2:
        return uniform_B
    mean, variance = success_B.mean(), success_B.var(unbiased=False)
    if not bool((variance > 1e-6) & (variance < mean * (1 - mean))):
        return uniform_B
    concentration = mean * (1 - mean) / variance - 1
    alpha, beta = 1 + mean * concentration / 3, 1 + (1 - mean) * concentration / 3
    p_B = success_B.clamp(1e-6, 1 - 1e-6)
    log_normalizer = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return ((alpha - 1) * p_B.log() + (beta - 1) * (1 - p_B).log() - log_normalizer).exp()


def whiten(advantages: Tensor, mask: Tensor | None = None, *, epsilon: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and deviation 1 over the batch (arXiv 2404.10719 §4: a key factor of PPO).

    Any shape. With a mask of the same shape (per-token advantages) only masked-in entries count, and the rest is 0.
    For trainers with a value head, after `ppo.gae`.
    """
    if mask is None:
        mask = torch.ones_like(advantages, dtype=torch.bool)
    if mask.shape != advantages.shape or not bool(mask.any()):
        raise LocalProtocolError(f"mask {tuple(mask.shape)} does not fit {tuple(advantages.shape)}, or is empty")
    mask = mask.bool()
    on_N = computing(advantages.detach())[mask]
    centered = computing(advantages.detach()) - on_N.mean()
    return torch.where(mask, centered / (on_N.std(unbiased=False) + epsilon), torch.zeros_like(centered))
