"""Building blocks of policy losses: PPO's clipped minimum, a detached weight on log-prob, and their summary.

Shape legend: B groups, G completions, T tokens; a trailing 1 broadcasts over T.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig, aggregate
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.ratios import LOG_RATIO_BOUND, Terms, bounded_exp, on_mask


def clipped_minimum(
    log_weight: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """−min(w A, clip(w, 1−low, 1+high) A) elementwise, with (loss, weight that still has gradient, clipped bool).

    Written as a choice rather than torch.minimum, which halves the gradient between its arguments at a tie.
    """
    weight = bounded_exp(log_weight)
    clipped = ((advantages > 0) & (weight > 1 + clip_high)) | ((advantages < 0) & (weight < 1 - clip_low))
    loss = -torch.where(clipped, weight.clamp(1 - clip_low, 1 + clip_high), weight) * advantages
    has_gradient = ~clipped & (log_weight.detach().abs() <= LOG_RATIO_BOUND)
    return loss, on_mask(weight.detach(), has_gradient), clipped


def weighted_logprob(
    weights: Tensor,
    bounded: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    aggregation: AggregationConfig,
    extra_metrics: Mapping[str, Tensor] | None = None,
) -> LossOutput:
    """−sg(w) · A · log p per token: gradient of the policy scaled by a detached weight that broadcasts to (B, G, T)."""
    weights = weights.detach()
    token_loss_BGT = -weights * terms.advantages_BGT * terms.policy_BGT
    return summarize(token_loss_BGT, weights, bounded, terms, batch, aggregation, extra_metrics=extra_metrics)


def over_nll(weights: Tensor, terms: Terms, *, power: float, floor: float) -> Tensor:
    """Weights / max(NLL, floor)^power, NLL = −LP, the completion's mean −log p in nats; 0 is no division.

    log p of a nearly certain completion has almost no gradient left; power 1 restores it, as ASymPO does (arXiv
    2606.03070). `weights` broadcast to (B, G, T).
    """
    if power == 0:
        return weights
    return weights * (-terms.policy_mean_BG.detach()).clamp(min=floor).unsqueeze(-1) ** -power


def by_sign(advantages: Tensor, *, positive: float, other: float) -> Tensor:
    """One constant where A > 0 and another elsewhere, in the dtype of the advantages."""
    # torch.where between two Python numbers would round them to float32.
    return torch.where(advantages > 0, torch.full_like(advantages, positive), torch.full_like(advantages, other))


def weight_of_slope(slopes: Tensor, advantages: Tensor) -> Tensor:
    """Weight of a loss whose gradient is −slope: slope/A, and 0 where A is 0."""
    without = advantages == 0
    return torch.where(without, torch.zeros_like(slopes), slopes / torch.where(without, 1.0, advantages))


def summarize(
    token_loss: Tensor,
    weights: Tensor,
    bounded: Tensor,
    terms: Terms,
    batch: RolloutBatch,
    aggregation: AggregationConfig,
    *,
    extra_metrics: Mapping[str, Tensor] | None = None,
) -> LossOutput:
    """Apply the batch's guards, aggregate, compute metrics. `token_loss`, `weights`, `bounded` broadcast to (B, G, T).

    Metrics, over tokens on the mask: weight_mean, weight_max, weight_variance (of the effective weight, after caps and
    guards); bounded_fraction (share whose weight a clip, cap, taper or guard changed); kl_k1 (mean of log q − log p,
    nats per token, an estimate of KL(q‖p)); zero_advantage_groups (count of groups without a learning signal).
    """
    shape = terms.mask_BGT.shape
    token_loss_BGT, weights_BGT = token_loss.expand(shape), weights.detach().expand(shape)
    bounded_BGT = bounded.expand(shape)
    scale_BGT, limited_BGT = _guards(weights_BGT, batch)
    if scale_BGT is not None:
        token_loss_BGT, weights_BGT = token_loss_BGT * scale_BGT, weights_BGT * scale_BGT
        bounded_BGT = bounded_BGT | limited_BGT
    weights_BGT, bounded_BGT = on_mask(weights_BGT, terms.mask_BGT), bounded_BGT & terms.mask_BGT
    loss = aggregate(token_loss_BGT, terms.mask_BGT, aggregation, update_lengths_N=batch.update_lengths_N)
    tokens = terms.lengths_BG.sum()
    mean = weights_BGT.sum() / tokens
    metrics = {
        "weight_mean": mean,
        "weight_max": weights_BGT.max(),
        "weight_variance": on_mask((weights_BGT - mean).square(), terms.mask_BGT).sum() / tokens,
        "bounded_fraction": bounded_BGT.sum() / tokens,
        "kl_k1": -terms.sequence_BG.detach().sum() / tokens,
        "zero_advantage_groups": (terms.advantages_BGT == 0).all(dim=-1).all(dim=-1).sum(),
        **(extra_metrics or {}),
    }
    return LossOutput(loss=loss, metrics=metrics, weights_BGT=weights_BGT, bounded_BGT=bounded_BGT)


def _guards(weights_BGT: Tensor, batch: RolloutBatch) -> tuple[Tensor | None, Tensor]:
    """Factor on each token from the weight cap and the guard mask (None: neither is set), and where it is below 1."""
    scale_BGT: Tensor | None = None
    if batch.weight_cap_BG is not None:
        cap_BG1 = batch.weight_cap_BG.detach().to(weights_BGT.dtype).unsqueeze(-1)
        scale_BGT = torch.where(weights_BGT > cap_BG1, cap_BG1 / weights_BGT, torch.ones_like(weights_BGT))
    if batch.guard_BGT is not None:
        guard_BGT = on_mask(batch.guard_BGT.detach().to(weights_BGT.dtype), batch.mask_BGT.bool())
        scale_BGT = guard_BGT if scale_BGT is None else scale_BGT * guard_BGT
    if scale_BGT is None:
        return None, torch.zeros_like(weights_BGT, dtype=torch.bool)
    return scale_BGT, scale_BGT < 1
