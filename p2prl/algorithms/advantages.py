"""Advantages from rewards: baseline and scale, configured separately from the loss.

Shape legend: B groups, G completions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from p2prl.algorithms.ratios import computing
from p2prl.algorithms.value_checks import require_choice, require_positive
from p2prl.errors import ConfigError, LocalProtocolError

AdvantageKind = Literal[
    "none", "mean", "mean_std", "opo", "rloo", "beta", "optimal", "pass_at_k", "reinforce_pp", "reinforce_pp_baseline"
]

GROUPLESS: frozenset[AdvantageKind] = frozenset({"none", "reinforce_pp"})
"""Kinds without a baseline of the group: they give a group of equal rewards, or of one completion, a signal."""

ZERO_VARIANCE_RANGE = 1e-8
"""Reward units. Groups with a smaller reward range are skipped: dividing by it would amplify rounding errors."""


@dataclass(frozen=True, kw_only=True)
class AdvantageConfig:
    """Baseline to subtract and scale to divide by."""

    kind: AdvantageKind = "mean"
    """none: A = R. mean: R − mean(R) (Dr. GRPO, GEPO). mean_std: (R − mean)/(std + ε), unbiased std (GRPO).
    opo: R − Σ|y|R/Σ|y| (OPO, arXiv 2505.23585). rloo: R − mean of the others (arXiv 2402.14740).
    beta: (R − mean)/f(mean; 1+a/3, 1+b/3), f the Beta density, a and b by moments (population variance) over the
    batch's group means (BNPO, arXiv 2506.02864 §3). optimal: R − β₁ log mean e^{R/β₁} (OAPL, arXiv 2602.19362,
    equation 2).
    pass_at_k: R − the second best for the best, else 0: the gain in the best of G (arXiv 2503.19595).
    reinforce_pp: R − mean of the batch, divided by its deviation, both by token (REINFORCE++, arXiv 2501.03262);
    reinforce_pp_baseline: the same of R − mean of the group."""
    std_epsilon: float = 1e-4
    """Reward units, added to the standard deviation of mean_std."""
    optimal_beta: float = 1.0
    """β₁ of optimal, > 0, reward units: towards 0 the baseline is the best reward, for large β₁ the mean."""
    beta_density_floor: float = 1e-2
    """Smallest Beta density to divide by. The authors have none; near 0 and 1 their scale is unbounded."""

    def __post_init__(self) -> None:
        require_choice("advantage.kind", self.kind, get_args(AdvantageKind))
        require_positive("advantage.std_epsilon", self.std_epsilon)
        require_positive("advantage.optimal_beta", self.optimal_beta)
        require_positive("advantage.beta_density_floor", self.beta_density_floor)


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """Advantages, and the groups without a learning signal."""

    advantages_BG: Tensor
    """No gradient."""
    zero_variance_B: Tensor
    """Bool: all rewards of the group agree, so every baseline of the group gives exactly 0 (not so for `GROUPLESS`)."""


def compute_advantages(rewards_BG: Tensor, cfg: AdvantageConfig, *, lengths_BG: Tensor | None = None) -> Advantages:
    """Advantages of B groups. `lengths_BG` (tokens) is read by opo and the kinds of REINFORCE++.

    Zero-variance groups get exactly 0 and so no signal, which the learner counts and is not an error. The same holds
    for G = 1, whose baseline is its own reward; not for `GROUPLESS`. Raises ConfigError when the kind does not support
    these rewards (no lengths, rloo or pass_at_k with G = 1, beta outside [0, 1]); LocalProtocolError for shape, NaN,
    infinity.
    """
    if rewards_BG.dim() != 2 or rewards_BG.numel() == 0:
        raise LocalProtocolError(f"rewards_BG must be (B, G) and not empty, not {tuple(rewards_BG.shape)}")
    rewards_BG = computing(rewards_BG.detach())
    if not bool(torch.isfinite(rewards_BG).all()):
        raise LocalProtocolError("rewards_BG holds NaN or infinity")
    zero_variance_B = (rewards_BG.amax(dim=-1) - rewards_BG.amin(dim=-1)) <= ZERO_VARIANCE_RANGE
    advantages_BG = _raw_advantages(rewards_BG, cfg, lengths_BG)
    if cfg.kind not in GROUPLESS:
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
        case "optimal":
            log_mean_B1 = torch.logsumexp(rewards_BG / cfg.optimal_beta, dim=-1, keepdim=True) - math.log(size)
            return rewards_BG - cfg.optimal_beta * log_mean_B1
        case "rloo":
            _require_several(cfg.kind, size)
            return centered_BG * (size / (size - 1))
        case "pass_at_k":
            _require_several(cfg.kind, size)
            best_B2 = rewards_BG.topk(2, dim=-1).values
            return torch.where(rewards_BG == best_B2[:, :1], rewards_BG - best_B2[:, 1:], 0.0)
        case "reinforce_pp":
            return _whitened_by_token(rewards_BG, _lengths(cfg.kind, rewards_BG, lengths_BG))
        case "reinforce_pp_baseline":
            return _whitened_by_token(centered_BG, _lengths(cfg.kind, rewards_BG, lengths_BG))
        case "opo":
            weights_BG = _lengths(cfg.kind, rewards_BG, lengths_BG)
            return rewards_BG - (weights_BG * rewards_BG).sum(-1, keepdim=True) / weights_BG.sum(-1, keepdim=True)
        case "beta":
            if bool((rewards_BG < 0).any()) or bool((rewards_BG > 1).any()):
                raise ConfigError("advantage.kind = 'beta' needs rewards in [0, 1]", remedy="Use 'mean' instead.")
            return centered_BG / beta_density(rewards_BG.mean(dim=-1)).clamp(min=cfg.beta_density_floor).unsqueeze(-1)


def _lengths(kind: AdvantageKind, rewards_BG: Tensor, lengths_BG: Tensor | None) -> Tensor:
    if lengths_BG is None or lengths_BG.shape != rewards_BG.shape:
        raise ConfigError(f"advantage.kind = {kind!r} needs the completion lengths", remedy="Pass lengths_BG.")
    return lengths_BG.to(rewards_BG.dtype)


def _require_several(kind: AdvantageKind, size: int) -> None:
    if size == 1:
        raise ConfigError(f"advantage.kind = {kind!r} needs groups of at least 2", remedy="Increase the group size.")


def _whitened_by_token(values_BG: Tensor, lengths_BG: Tensor) -> Tensor:
    """Values with mean 0 and unbiased deviation 1 over the tokens of the batch; 0 where all agree."""
    tokens = lengths_BG.sum()
    centered_BG = values_BG - (lengths_BG * values_BG).sum() / tokens
    variance = (lengths_BG * centered_BG.square()).sum() / (tokens - 1).clamp(min=1)
    return centered_BG * (variance + 1e-8).rsqrt()


def off_policy_optimal_baseline(rewards_BG: Tensor, sequence_log_ratios_BG: Tensor, score_norms_BG: Tensor) -> Tensor:
    """Baseline of each group, (B, 1), with the least variance of the gradient: Σ w² n² R / Σ w² n² (VCPO).

    arXiv 2602.17616 §4: w = e^{Σℓ} of the whole sequence, not truncated, and n = ‖∇ log p‖ of the completion by the
    policy's weights. The mean where every n is 0. Rewards in reward units; ratios in nats; no gradient.
    """
    rewards_BG = computing(rewards_BG.detach())
    log_weights_BG = 2 * (computing(sequence_log_ratios_BG.detach()) + computing(score_norms_BG.detach()).log())
    flat_B1 = torch.isneginf(log_weights_BG).all(dim=-1, keepdim=True)
    shares_BG = torch.where(flat_B1, torch.zeros_like(log_weights_BG), log_weights_BG).softmax(dim=-1)
    return (shares_BG * rewards_BG).sum(dim=-1, keepdim=True)


def decoupled_advantages(rewards_KBG: Tensor, weights_K: Tensor, *, epsilon: float = 1e-4) -> Tensor:
    """GDPO (arXiv 2601.05242): K rewards, each normalized in its group, then their weighted sum over the batch.

    A = whiten(Σ_k w_k (R_k − mean)/(std + ε)), the unbiased deviation in groups, so that no reward drowns another. A
    reward that agrees within a group adds 0 to it. Raises LocalProtocolError for wrong shapes. For trainers that hold
    the rewards one by one: a run's reward is a single number.
    """
    if rewards_KBG.dim() != 3 or weights_K.shape != rewards_KBG.shape[:1]:
        raise LocalProtocolError(f"weights_K {tuple(weights_K.shape)} does not fit {tuple(rewards_KBG.shape)}")
    cfg = AdvantageConfig(kind="mean_std", std_epsilon=epsilon)
    parts_KBG = torch.stack([compute_advantages(rewards_BG, cfg).advantages_BG for rewards_BG in rewards_KBG])
    return whiten((weights_K.to(parts_KBG.dtype).view(-1, 1, 1) * parts_KBG).sum(dim=0))


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
