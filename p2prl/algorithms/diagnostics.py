"""Distance between the sampler's policy and the learner's, per bucket of staleness. Nothing here has a gradient.

Shape legend: B groups, G completions, T tokens, N the completions or tokens of one bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.ratios import Terms, effective_sample_size, terms_of, widest
from p2prl.errors import ConfigError

STALENESS_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Updates: the first staleness of each bucket; the last bucket is open."""

DIAGNOSTIC_BOUND = 10.0
"""Nats: token log-ratios are clamped here before exp, so that one token cannot dominate the chart."""


@dataclass(frozen=True, kw_only=True)
class StalenessDiagnostics:
    """One bucket, as plain numbers over its completions or tokens; ℓ = log p − log q."""

    staleness_from: int
    """Updates: smallest staleness in the bucket."""
    completions: int
    """Completions in the bucket."""
    tokens: int
    """Tokens in the bucket."""
    ess_fraction: float
    """ESS/n of the whole-sequence ratios e^{Σℓ}, in (0, 1]; near 1/n is the sign of collapse."""
    kl_k1: float
    """mean −ℓ, nats per token: estimates KL(q‖p) without bias; may be below 0 by noise."""
    kl_k3: float
    """mean e^ℓ − 1 − ℓ with ℓ clamped, nats per token: estimates KL(q‖p), never below 0."""
    chi2: float
    """mean e^{2ℓ} − 1 per token with ℓ clamped: estimates χ²(p‖q)."""
    m2: float
    """mean ℓ², nats² per token, ℓ clamped: M2PO's second moment."""
    bounded_fraction: float
    """Share of tokens whose weight a clip, cap, taper or mask changed."""
    weight_max: float
    """Largest effective weight."""
    weight_variance: float
    """Variance of the effective weight over tokens."""


def diagnose(
    policy_logprobs_BGT: Tensor, batch: RolloutBatch, output: LossOutput, *, edges: Sequence[int] = STALENESS_EDGES
) -> tuple[StalenessDiagnostics, ...]:
    """Diagnostics of each non-empty bucket, by increasing staleness; without staleness, one bucket from 0.

    `output` is the loss's output for this batch. Raises ConfigError unless `edges` rise from 0; LocalProtocolError as
    `terms_of` does.
    """
    if not edges or edges[0] != 0 or any(low >= high for low, high in itertools.pairwise(edges)):
        raise ConfigError(f"edges = {tuple(edges)} must rise strictly from 0")
    with torch.no_grad():
        terms = terms_of(policy_logprobs_BGT.detach(), batch)
        if batch.staleness_BG is None:
            staleness_BG = torch.zeros_like(terms.lengths_BG)
        else:
            staleness_BG = batch.staleness_BG.to(terms.lengths_BG.dtype)
        inner = torch.tensor(edges[1:], dtype=staleness_BG.dtype, device=staleness_BG.device)
        bucket_BG = torch.bucketize(staleness_BG, inner, right=True)
        return tuple(
            _bucket(terms, output, bucket_BG == index, edges[index])
            for index in sorted(set(bucket_BG.flatten().tolist()))
        )


def _bucket(terms: Terms, output: LossOutput, inside_BG: Tensor, staleness_from: int) -> StalenessDiagnostics:
    token_mask_BGT = terms.mask_BGT & inside_BG.unsqueeze(-1)
    log_ratio_N = terms.log_ratio_BGT[token_mask_BGT]
    clamped_N = log_ratio_N.clamp(-DIAGNOSTIC_BOUND, DIAGNOSTIC_BOUND)
    sequence_N = terms.sequence_BG[inside_BG]
    weights_N = output.weights_BGT[token_mask_BGT]
    return StalenessDiagnostics(
        staleness_from=staleness_from,
        completions=sequence_N.numel(),
        tokens=log_ratio_N.numel(),
        ess_fraction=float(effective_sample_size(sequence_N)) / sequence_N.numel(),
        kl_k1=float(-log_ratio_N.mean()),
        kl_k3=float((clamped_N.exp() - 1 - clamped_N).mean()),
        chi2=float((2 * clamped_N).exp().mean() - 1),
        m2=float(clamped_N.square().mean()),
        bounded_fraction=float(widest(output.bounded_BGT[token_mask_BGT]).mean()),
        weight_max=float(weights_N.max()),
        weight_variance=float(weights_N.var(unbiased=False)),
    )
