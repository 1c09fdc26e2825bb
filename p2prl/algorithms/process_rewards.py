"""Sum of a completion's reward parts: success, outcome and process scores, with the Clip and Delta refinements.

A process reward model's raw scores can be hacked by repeating correct but needless steps; Clip and Delta bound what
any completion can accumulate (arXiv 2410.15115). `p2prl/models/rewards/run_reward.py` gets the scores and calls this.
Shape legend: B groups, G completions, T tokens, K steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.ratios import computing, on_mask
from p2prl.algorithms.value_checks import require_between
from p2prl.errors import LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Weights and refinements of the parts of a reward."""

    success_weight: float = 1.0
    """Factor ≥ 0 on the verifier's verdict."""
    outcome_weight: float = 0.0
    """Factor ≥ 0 on the outcome reward model's score of the whole completion."""
    process_weight: float = 0.0
    """Factor ≥ 0 on the refined step scores."""
    clip: bool = True
    """Apply Clip to the step scores, before Delta."""
    clip_threshold: float = 0.5
    """η, in the step scores' unit: a step scoring at least this earns 0, one below it costs the difference."""
    delta: bool = True
    """Apply Delta to the step scores."""
    model: str = ""
    """Beginning of the digest of the reward model that gives outcome or step scores, hex; empty where the task's own
    process scorer does."""

    def __post_init__(self) -> None:
        for field in ("success_weight", "outcome_weight", "process_weight"):
            require_between(field, getattr(self, field), 0.0, float("inf"), open_high=True)
        require_between(
            "clip_threshold", self.clip_threshold, float("-inf"), float("inf"), open_low=True, open_high=True
        )


def clip_steps(step_scores_BGK: Tensor, step_mask_BGK: Tensor, *, threshold: float) -> Tensor:
    """Clip (arXiv 2410.15115 §4): r'_k = min(r_k − η, 0). No step earns, so adding steps never pays. 0 off the mask."""
    _check_steps(step_scores_BGK, step_mask_BGK)
    return on_mask((computing(step_scores_BGK) - threshold).clamp(max=0.0), step_mask_BGK.bool())


def delta_steps(step_scores_BGK: Tensor, step_mask_BGK: Tensor) -> Tensor:
    """Delta (arXiv 2410.15115 §4): r'_k = r_k − r_{k+1} for k < K−1, r'_{K−1} = r_{K−1}, r'_K = 0.

    K is each completion's own number of steps; step K states the answer, which the success reward judges. Telescopes:
    from any step k < K on, the sum is r_k, so repeating a good step gains nothing. 0 off the mask.
    """
    _check_steps(step_scores_BGK, step_mask_BGK)
    mask_BGK = step_mask_BGK.bool()
    scores_BGK = on_mask(computing(step_scores_BGK), mask_BGK)
    has_next_BGK = torch.zeros_like(mask_BGK)
    has_next_BGK[..., :-1] = mask_BGK[..., 1:]
    judged_BGK = on_mask(scores_BGK, has_next_BGK)
    following_BGK = torch.zeros_like(judged_BGK)
    following_BGK[..., :-1] = judged_BGK[..., 1:]
    return judged_BGK - following_BGK


def refine_steps(step_scores_BGK: Tensor, step_mask_BGK: Tensor, cfg: RewardConfig) -> Tensor:
    """Step scores after Clip and Delta, as configured, (B, G, K)."""
    mask_BGK = step_mask_BGK.bool()
    _check_steps(step_scores_BGK, mask_BGK)
    scores_BGK = on_mask(computing(step_scores_BGK), mask_BGK)
    if cfg.clip:
        scores_BGK = clip_steps(scores_BGK, mask_BGK, threshold=cfg.clip_threshold)
    if cfg.delta:
        scores_BGK = delta_steps(scores_BGK, mask_BGK)
    return scores_BGK


def completion_rewards(
    success_BG: Tensor,
    cfg: RewardConfig,
    *,
    outcome_BG: Tensor | None = None,
    step_scores_BGK: Tensor | None = None,
    step_mask_BGK: Tensor | None = None,
) -> Tensor:
    """Weighted sum of success, outcome and refined process reward of each completion, (B, G), reward units.

    Raises LocalProtocolError where a part has a weight but no scores, a wrong shape, or NaN or infinity.
    """
    rewards_BG = cfg.success_weight * _finite("success_BG", success_BG, success_BG.shape)
    if cfg.outcome_weight > 0:
        rewards_BG = rewards_BG + cfg.outcome_weight * _finite("outcome_BG", outcome_BG, success_BG.shape)
    if cfg.process_weight > 0:
        if step_scores_BGK is None or step_mask_BGK is None:
            raise LocalProtocolError("process_weight is above 0 but step_scores_BGK or step_mask_BGK is missing")
        if step_scores_BGK.shape[:-1] != success_BG.shape:
            raise LocalProtocolError(f"step_scores_BGK does not lead with {tuple(success_BG.shape)}")
        rewards_BG = rewards_BG + cfg.process_weight * refine_steps(step_scores_BGK, step_mask_BGK, cfg).sum(dim=-1)
    return rewards_BG


def steps_to_tokens(step_rewards_BGK: Tensor, step_ends_BGK: Tensor, step_mask_BGK: Tensor, *, tokens: int) -> Tensor:
    """Token rewards (B, G, T): each step's reward on its last token, for `ppo.gae`. Steps that end together add up.

    `step_ends_BGK` holds token positions in [0, T). Raises LocalProtocolError for one outside or a wrong shape.
    For trainers with a value head; the learner rewards whole completions.
    """
    _check_steps(step_rewards_BGK, step_mask_BGK)
    mask_BGK = step_mask_BGK.bool()
    if step_ends_BGK.shape != mask_BGK.shape:
        raise LocalProtocolError(
            f"step_ends_BGK has shape {tuple(step_ends_BGK.shape)}, expected {tuple(mask_BGK.shape)}"
        )
    ends_BGK = on_mask(step_ends_BGK.long(), mask_BGK)
    if bool(((ends_BGK < 0) | (ends_BGK >= tokens)).any()):
        raise LocalProtocolError(f"step_ends_BGK must lie in [0, {tokens})")
    rewards_BGK = on_mask(computing(step_rewards_BGK), mask_BGK)
    return rewards_BGK.new_zeros(*mask_BGK.shape[:-1], tokens).scatter_add_(-1, ends_BGK, rewards_BGK)


def _check_steps(step_scores_BGK: Tensor, step_mask_BGK: Tensor) -> None:
    mask_BGK = step_mask_BGK.bool()
    if step_scores_BGK.dim() != 3 or step_scores_BGK.shape != mask_BGK.shape or mask_BGK.shape[-1] == 0:
        raise LocalProtocolError(
            f"step scores {tuple(step_scores_BGK.shape)} and mask {tuple(mask_BGK.shape)} must be one (B, G, K), K ≥ 1"
        )
    if bool((mask_BGK[..., 1:] & ~mask_BGK[..., :-1]).any()):
        raise LocalProtocolError("step_mask_BGK has a gap: steps are counted from the first")
    if not bool(torch.isfinite(step_scores_BGK[mask_BGK]).all()):
        raise LocalProtocolError("step_scores_BGK holds NaN or infinity on the mask")


def _finite(field: str, values_BG: Tensor | None, shape: torch.Size) -> Tensor:
    if values_BG is None:
        raise LocalProtocolError(f"{field} is missing although its weight is above 0")
    if values_BG.shape != shape or values_BG.dim() != 2:
        raise LocalProtocolError(f"{field} has shape {tuple(values_BG.shape)}, expected (B, G) {tuple(shape)}")
    values_BG = computing(values_BG.detach())
    if not bool(torch.isfinite(values_BG).all()):
        raise LocalProtocolError(f"{field} holds NaN or infinity")
    return values_BG
