"""Guards around any loss: learning-rate factors, keep-masks and weight caps.

Keep-masks go to `RolloutBatch.guard_BGT` and leave every normalizer alone: dropping work must not amplify the rest.
Shape legend: B groups, G completions, T tokens, N completions of an update.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch
from p2prl.algorithms.ratios import (
    LOG_RATIO_BOUND,
    computing,
    effective_sample_size,
    masked_mean,
    running_sum,
    widest,
)
from p2prl.algorithms.value_checks import require_between, require_positive
from p2prl.errors import LocalProtocolError


def kl_brake(kl_per_token: Tensor, *, target_kl: float = 0.05) -> Tensor:
    """Learning-rate factor min(1, sqrt(δ/KL)), in (0, 1]; KL(q‖p) in nats per token, from k1 or k3.

    This project's own: a second line of defense at aggressive learning rates. A KL at or below 0 (k1's noise) has no
    effect; NaN raises LocalProtocolError, because it would silently disable the brake. δ > 0 or ConfigError.
    """
    require_positive("target_kl", target_kl)
    if bool(torch.isnan(kl_per_token).any()):
        raise LocalProtocolError("kl_per_token is NaN")
    kl = computing(kl_per_token.detach())
    return torch.where(kl > target_kl, (target_kl / kl.clamp(min=target_kl)).sqrt(), torch.ones_like(kl))


def vcpo_factor(sequence_log_ratios: Tensor) -> Tensor:
    """VCPO's learning-rate factor sqrt(ESS/N) over all whole-sequence log-ratios given (arXiv 2602.17616), in (0, 1].

    ESS = (ΣW)²/ΣW². N is the number of completions, the batch size B of the paper. Nats; any shape.
    """
    log_ratios_N = computing(sequence_log_ratios.detach()).flatten()
    if log_ratios_N.numel() == 0:
        raise LocalProtocolError("sequence_log_ratios is empty")
    return (effective_sample_size(log_ratios_N) / log_ratios_N.numel()).sqrt()


def second_moment_keep(log_ratio_BGT: Tensor, mask_BGT: Tensor, *, budget: float = 0.04) -> Tensor:
    """Keep-mask (B, G, T) of M2PO (arXiv 2510.01161 §4): drop the tokens of largest ℓ² until their mean is ≤ τ.

    The mean runs over kept tokens of this batch. Keeps the longest such prefix in order of ℓ²; tokens that tie with
    the first dropped one are dropped with it, so the result does not depend on the order of tokens. Budget τ > 0,
    nats². Off the mask: false.
    """
    require_positive("budget", budget)
    mask_BGT = mask_BGT.bool()
    squares_BGT = widest(log_ratio_BGT.detach()).square()
    ordered_N = squares_BGT[mask_BGT].sort().values
    if ordered_N.numel() == 0:
        raise LocalProtocolError("mask_BGT is empty")
    running_mean_N = running_sum(ordered_N) / torch.arange(1, ordered_N.numel() + 1, device=ordered_N.device)
    over_N = running_mean_N > budget
    if not bool(over_N.any()):
        return mask_BGT
    first_dropped = ordered_N[over_N.int().argmax()]
    return mask_BGT & (squares_BGT < first_dropped)


def second_moment_width(log_ratio_N: Tensor, *, budget: float = 0.04) -> float:
    """Largest |ℓ| of the tokens given to which all may be clipped with a mean ℓ² below τ (M2PO's released code).

    LOG_RATIO_BOUND where no clip is needed, and 0 where the smallest |ℓ| is already too large. Budget τ > 0, nats².
    """
    require_positive("budget", budget)
    squares_N = widest(log_ratio_N.detach()).square().sort().values
    if squares_N.numel() == 0 or float(squares_N.mean()) <= budget:
        return LOG_RATIO_BOUND
    above_N = torch.arange(squares_N.numel() - 1, -1, -1, device=squares_N.device)
    capped_N = (running_sum(squares_N) + squares_N * above_N) / squares_N.numel()
    within = int((capped_N < budget).sum())
    return float(squares_N[within - 1].sqrt()) if within else 0.0


def negative_tail_keep(geometric_BG: Tensor, advantages_BG: Tensor, *, bound_nats: float = 0.5) -> Tensor:
    """Keep-mask (B, G): false where A < 0 and mean_t(log q − log p) > δ. The off-policy sequence mask of DeepSeek-V3.2.

    A negative that the policy no longer samples carries no signal, yet its gradient is unbounded. δ ≥ 0, nats per
    token.
    """
    require_between("bound_nats", bound_nats, 0.0, float("inf"), open_high=True)
    return ~((advantages_BG < 0) & (-geometric_BG.detach() > bound_nats))


def group_deflation_keep(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, *, max_rise_nats: float = 0.5, max_fall_nats: float = 3.0
) -> Tensor:
    """Keep-mask (B,): false where the group's mean_i(LP_i − LQ_i) is above max_rise_nats or below −max_fall_nats.

    A peer that deflates all log-probs of a group by k nats scales every weight of it by e^k, also GEPO's. This mean
    reveals it: honest samples give −KL(q‖p) ≤ 0 in expectation, so any rise is suspect, while a fall grows with honest
    staleness (2 nats per token were measured under strong drift) and only limits over-reported log-probs. Needs whole
    groups; nats per token, both ≥ 0.
    """
    require_between("max_rise_nats", max_rise_nats, 0.0, float("inf"), open_high=True)
    require_between("max_fall_nats", max_fall_nats, 0.0, float("inf"), open_high=True)
    if not batch.whole_groups:
        raise LocalProtocolError("group_deflation_keep needs whole groups: whole_groups is False in this batch")
    mask_BGT = batch.mask_BGT.bool()
    policy_BG = masked_mean(policy_logprobs_BGT.detach(), mask_BGT)
    shift_B = (policy_BG - masked_mean(batch.behavior_logprobs_BGT, mask_BGT)).mean(dim=-1)
    return (shift_B <= max_rise_nats) & (shift_B >= -max_fall_nats)


def trust_caps(trust_BG: Tensor, *, unverified_cap: float = 1.0, verified_cap: float = 2.0) -> Tensor:
    """Largest weight of each completion (B, G): from unverified_cap at trust 0, linearly, to verified_cap at trust 1.

    For `RolloutBatch.weight_cap_BG`. Trust in [0, 1] is the sender's audited standing; a weight based on unverified
    log-probs must not amplify a completion.
    """
    require_between("unverified_cap", unverified_cap, 0.0, verified_cap)
    require_positive("verified_cap", verified_cap)
    if not bool(((trust_BG >= 0) & (trust_BG <= 1)).all()):
        raise LocalProtocolError("trust_BG must lie in [0, 1]")
    return unverified_cap + computing(trust_BG) * (verified_cap - unverified_cap)


def spread(keep: Tensor, mask_BGT: Tensor) -> Tensor:
    """A keep-mask of shape (B,), (B, G) or (B, G, T) as (B, G, T) floats for `RolloutBatch.guard_BGT`."""
    if keep.dim() > 3 or keep.shape != mask_BGT.shape[: keep.dim()]:
        raise LocalProtocolError(f"keep has shape {tuple(keep.shape)}, which does not lead {tuple(mask_BGT.shape)}")
    return keep.reshape(*keep.shape, *([1] * (3 - keep.dim()))).expand(mask_BGT.shape).float()


def ema_update(reference: Iterable[Tensor], policy: Iterable[Tensor], *, rate: float = 1e-3) -> None:
    """θ_ref ← (1 − η) θ_ref + η θ, in place (arXiv 2404.10719 §4: the moving reference of PPO). Rate η in [0, 1]."""
    require_between("rate", rate, 0.0, 1.0)
    with torch.no_grad():
        for reference_weight, policy_weight in zip(reference, policy, strict=True):
            reference_weight.lerp_(policy_weight.to(reference_weight), rate)
