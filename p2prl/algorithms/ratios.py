"""Importance ratios in the log domain: per token, geometric mean, whole sequence, and the group expectation of GEPO.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.batch import RolloutBatch, check_logprobs

LOG_RATIO_BOUND = 20.0
"""Nats. exp(20) = 4.9e8 and its square stay finite in float32; a ratio beyond it has no gradient."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of every loss formula, computed once. Gradients flow through the policy's side only.

    Each loss reads the few it needs.
    """

    mask_BGT: Tensor
    """Bool."""
    lengths_BG: Tensor
    """Completion length |y|, tokens, in the computing dtype."""
    advantages_BG: Tensor
    """In the computing dtype."""
    advantages_BGT: Tensor
    """Of each token: that of its completion, or the batch's `token_advantages_BGT`, 0 off the mask."""
    policy_BGT: Tensor
    """Nats; 0 off the mask."""
    behavior_BGT: Tensor
    """Nats; 0 off the mask; no gradient."""
    log_ratio_BGT: Tensor
    """ℓ = policy − behavior, nats; 0 off the mask."""
    policy_mean_BG: Tensor
    """LP = mean_t log p: log of the geometric mean probability P."""
    behavior_mean_BG: Tensor
    """LQ = mean_t log q, no gradient."""
    geometric_BG: Tensor
    """mean_t ℓ: log of GSPO's ratio s."""
    sequence_BG: Tensor
    """Σ_t ℓ: log of the whole-sequence ratio W."""


def terms_of(policy_logprobs_BGT: Tensor, batch: RolloutBatch) -> Terms:
    """Check the policy's log-probs and compute the terms in their dtype, float64 or float32.

    Raises LocalProtocolError for half precision, for a wrong shape, or for NaN, infinity or positive log-probs on the
    mask.
    """
    mask_BGT = batch.mask_BGT.bool()
    check_logprobs("policy_logprobs_BGT", policy_logprobs_BGT, mask_BGT)
    policy_BGT = on_mask(computing(policy_logprobs_BGT), mask_BGT)
    dtype = policy_BGT.dtype
    behavior_BGT = on_mask(batch.behavior_logprobs_BGT.detach().to(dtype), mask_BGT)
    log_ratio_BGT = policy_BGT - behavior_BGT
    advantages_BG = batch.advantages_BG.detach().to(dtype)
    advantages_BGT = advantages_BG.unsqueeze(-1).expand(mask_BGT.shape)
    if batch.token_advantages_BGT is not None:
        advantages_BGT = on_mask(batch.token_advantages_BGT.detach().to(dtype), mask_BGT)
    lengths_BG = mask_BGT.sum(dim=-1).to(dtype)
    sequence_BG = log_ratio_BGT.sum(dim=-1)
    return Terms(
        mask_BGT=mask_BGT,
        lengths_BG=lengths_BG,
        advantages_BG=advantages_BG,
        advantages_BGT=advantages_BGT,
        policy_BGT=policy_BGT,
        behavior_BGT=behavior_BGT,
        log_ratio_BGT=log_ratio_BGT,
        policy_mean_BG=policy_BGT.sum(dim=-1) / lengths_BG,
        behavior_mean_BG=behavior_BGT.sum(dim=-1) / lengths_BG,
        geometric_BG=sequence_BG / lengths_BG,
        sequence_BG=sequence_BG,
    )


def computing(values: Tensor) -> Tensor:
    """float64 stays; everything else is computed in float32, because half precision cannot hold a sum of log-probs."""
    return values if values.dtype == torch.float64 else values.float()


def widest(values: Tensor) -> Tensor:
    """float64 where the device has it (Apple's does not), for sums over all tokens of an update."""
    return values.float() if values.device.type == "mps" else values.double()


def running_sum(values: Tensor, dim: int = -1) -> Tensor:
    """Sums of the values up to each, along a dimension, summed on the CPU.

    CUDA adds floats up in no fixed order here, so torch refuses where a learner must repeat an update exactly.
    """
    return values.cpu().cumsum(dim).to(values.device)


def on_mask(values_BGT: Tensor, mask_BGT: Tensor) -> Tensor:
    """`values_BGT` with zeros off the mask. Selects, not multiplies: padding may hold NaN, and NaN · 0 is NaN."""
    return torch.where(mask_BGT, values_BGT, torch.zeros((), dtype=values_BGT.dtype, device=values_BGT.device))


def masked_mean(values_BGT: Tensor, mask_BGT: Tensor) -> Tensor:
    """Mean over each completion's tokens, (B, G)."""
    values_BGT = on_mask(computing(values_BGT), mask_BGT)
    return values_BGT.sum(dim=-1) / mask_BGT.sum(dim=-1).to(values_BGT.dtype)


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp of a log-ratio clamped to ±LOG_RATIO_BOUND; no gradient outside."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def group_log_expectation(behavior_mean_BG: Tensor) -> Tensor:
    """log Ê of each group, (B,), no gradient: Ê = Σ Q²/Σ Q with Q = exp(LQ), the geometric mean probabilities.

    GEPO (arXiv 2508.17850 §3). Reads the sampler's log-probs only, so it can be computed once by the sampler. Lies
    between mean(Q) and max(Q); equals Q when all are equal or G = 1. The released code sums over the device's
    micro-batch after a shuffle, which can mix prompts; here a group is one prompt.
    """
    means_BG = computing(behavior_mean_BG.detach())
    return torch.logsumexp(2 * means_BG, dim=-1) - torch.logsumexp(means_BG, dim=-1)


def log_expectation_of(terms: Terms, batch: RolloutBatch) -> Tensor:
    """log Ê of the complete group, (B, 1): the batch's value if it has one, else computed from its completions."""
    if batch.group_log_expectation_B is None:
        return group_log_expectation(terms.behavior_mean_BG).unsqueeze(-1)
    return batch.group_log_expectation_B.detach().to(terms.policy_BGT.dtype).unsqueeze(-1)


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """ESS = (Σ w)² / Σ w² over the last dimension, between 1 and its size; in the log domain, for any log-weights."""
    return (2 * torch.logsumexp(log_weights, dim=-1) - torch.logsumexp(2 * log_weights, dim=-1)).exp()


def mean_k3(log_ratio_BGT: Tensor, mask_BGT: Tensor, *, bound: float = 10.0) -> Tensor:
    """mean_t [e^x − x − 1] per completion with x clamped to ±bound; non-negative.

    With x = ℓ = log p − log q under samples of q it estimates KL(q‖p) without bias (Schulman's k3); GEPO's code uses
    x = −ℓ, unclamped, which reaches 3e6 in its published logs. Hence the clamp.
    """
    clamped_BGT = log_ratio_BGT.clamp(-bound, bound)
    return masked_mean(clamped_BGT.exp() - clamped_BGT - 1, mask_BGT)
