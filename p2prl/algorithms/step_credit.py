"""Step credit: an advantage for each token from the rewards of a completion's steps, without a value head.

A completion's process rewards summed into one number reward or punish all of its tokens alike; with Delta that sum is
the first step's score. Here a token answers for what comes after it: for the rewards of its own step and of all later
ones. Shape legend: B groups, G completions, T tokens, K steps; a trailing 1 broadcasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, AdvantageKind
from p2prl.algorithms.ratios import computing, on_mask, running_sum, widest
from p2prl.errors import ConfigError, LocalProtocolError

STEP_ADVANTAGES: frozenset[AdvantageKind] = frozenset({"none", "mean", "mean_std", "rloo"})
"""Advantages that have a meaning for steps. `opo` weighs completions by their length, `beta` fits rewards in [0, 1]."""

_ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Share of a group's largest return below which its advantages are rounding errors: rewards are kept in float32."""


@dataclass(frozen=True, kw_only=True)
class StepRewards:
    """Rewards of the steps of completions, each on its step's last token."""

    rewards_BGT: Tensor
    """Reward units; 0 except where a step ends. The completion's own reward is part of its last step's."""
    ends_BGT: Tensor
    """Bool: the last token of a step. Each completion's last token is one, so that every token is part of a step."""

    def __post_init__(self) -> None:
        if self.rewards_BGT.dim() != 3 or self.rewards_BGT.shape != self.ends_BGT.shape:
            raise LocalProtocolError(
                f"rewards_BGT {tuple(self.rewards_BGT.shape)} and ends_BGT {tuple(self.ends_BGT.shape)} "
                "must be one (B, G, T)"
            )
        ends_BGT = self.ends_BGT.bool()
        if not bool(ends_BGT.any(dim=-1).all()):
            raise LocalProtocolError("ends_BGT is empty for at least one completion")
        if not bool(torch.isfinite(self.rewards_BGT).all()):
            raise LocalProtocolError("rewards_BGT holds NaN or infinity")
        if bool((self.rewards_BGT[~ends_BGT] != 0).any()):
            raise LocalProtocolError("rewards_BGT rewards a token that ends no step")


def returns_to_go(token_rewards_BGT: Tensor) -> Tensor:
    """Return of each token, (B, G, T): the sum of the rewards on it and on all later tokens, in the device's widest
    float. No gradient."""
    return running_sum(widest(token_rewards_BGT.detach()).flip(-1)).flip(-1)


def step_advantages(steps: StepRewards, mask_BGT: Tensor, cfg: AdvantageConfig) -> Tensor:
    """Advantage of each token, (B, G, T), 0 off the mask, no gradient: its return less a baseline of its group.

    A_t = Σ_{j ≥ k} r_j − b_k for a token of step k, where b_k is the mean of that sum over the completions of the group
    that reached step k: no action from step k on affects who did. A step that one completion alone reached takes the
    baseline of the last that another reached too. `mean_std` divides by √(Σ_i mean_t A²/(G − 1)), and `rloo` leaves a
    completion out of its own baseline. Where every completion has one step, all of this is `compute_advantages`.

    Groups whose advantages are all within rounding of 0 get exactly 0, and so does G = 1. ConfigError for a kind that
    has no meaning for steps; LocalProtocolError for a wrong shape.
    """
    if cfg.kind not in STEP_ADVANTAGES:
        raise ConfigError(
            f"advantage.kind = {cfg.kind!r} has no meaning for the rewards of steps",
            remedy=f"Set it to one of: {', '.join(sorted(STEP_ADVANTAGES))}.",
        )
    mask_BGT = mask_BGT.bool()
    if mask_BGT.shape != steps.ends_BGT.shape:
        raise LocalProtocolError(f"mask_BGT has shape {tuple(mask_BGT.shape)}, not {tuple(steps.ends_BGT.shape)}")
    dtype = computing(steps.rewards_BGT).dtype
    returns_BGT = returns_to_go(steps.rewards_BGT)
    if cfg.kind == "none":
        return on_mask(returns_BGT, mask_BGT).to(dtype)
    advantages_BGT = on_mask(_centered(returns_BGT, steps.ends_BGT.bool(), leave_out=cfg.kind == "rloo"), mask_BGT)
    size = mask_BGT.shape[1]
    silent_B = _largest(advantages_BGT) <= _ROUNDING * _largest(returns_BGT).clamp(min=1.0)
    if cfg.kind == "mean_std" and size > 1:
        squares_BG = advantages_BGT.square().sum(-1) / mask_BGT.sum(-1)
        deviation_B = (squares_BG.sum(-1) / (size - 1)).sqrt()
        advantages_BGT = advantages_BGT / (deviation_B + cfg.std_epsilon)[:, None, None]
    keep_B11 = (~silent_B & torch.tensor(size > 1, device=silent_B.device))[:, None, None]
    return on_mask(advantages_BGT, keep_B11.expand_as(mask_BGT)).to(dtype)


def _centered(returns_BGT: Tensor, ends_BGT: Tensor, *, leave_out: bool) -> Tensor:
    """Returns less the baseline of their step; with `leave_out`, that of the others."""
    index_BGT = ends_BGT.long().cumsum(-1) - ends_BGT.long()
    baseline_BK, reached_BK = _baselines(returns_BGT, ends_BGT, index_BGT)
    shape = (*returns_BGT.shape[:2], -1)
    # Padding after a completion's last step has an index beyond the steps; the mask drops it.
    index_BGT = index_BGT.clamp(max=baseline_BK.shape[-1] - 1)
    centered_BGT = returns_BGT - baseline_BK.unsqueeze(1).expand(shape).gather(-1, index_BGT)
    if not leave_out:
        return centered_BGT
    # Its own return is in the mean of n: leaving it out stretches the difference by n/(n − 1).
    stretch_BK = torch.where(reached_BK > 1, reached_BK / (reached_BK - 1).clamp(min=1), torch.ones_like(reached_BK))
    return centered_BGT * stretch_BK.unsqueeze(1).expand(shape).gather(-1, index_BGT)


def _baselines(returns_BGT: Tensor, ends_BGT: Tensor, index_BGT: Tensor) -> tuple[Tensor, Tensor]:
    """(baseline, completions that reached it) of each step, (B, K)."""
    steps = int(ends_BGT.sum(-1).max())
    shape = (*returns_BGT.shape[:2], steps)
    at_BGT = index_BGT.clamp(max=steps - 1)
    sums_BGK = returns_BGT.new_zeros(shape).scatter_add_(-1, at_BGT, on_mask(returns_BGT, ends_BGT))
    reached_BK = returns_BGT.new_zeros(shape).scatter_add_(-1, at_BGT, ends_BGT.to(returns_BGT.dtype)).sum(1)
    means_BK = sums_BGK.sum(1) / reached_BK.clamp(min=1)
    # Steps are counted from the first, so the number that reached one never rises.
    last_shared_B1 = ((reached_BK > 1).sum(-1, keepdim=True) - 1).clamp(min=0)
    places_BK = torch.minimum(torch.arange(steps, device=returns_BGT.device).expand_as(means_BK), last_shared_B1)
    return means_BK.gather(-1, places_BK), reached_BK


def _largest(values_BGT: Tensor) -> Tensor:
    """Largest absolute value of each group, (B,)."""
    return values_BGT.abs().amax(dim=(1, 2))
