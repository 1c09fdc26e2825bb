"""Aggregation of per-token losses to one number, configured separately from the loss.

Shape legend: B groups, G completions, T tokens, N completions of the complete update (N = B·G by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from p2prl.algorithms.ratios import on_mask, widest
from p2prl.algorithms.value_checks import require_between, require_choice, require_positive
from p2prl.errors import ConfigError

AggregationKind = Literal["seq_mean", "token_mean", "fixed_length", "delta_l"]


@dataclass(frozen=True, kw_only=True)
class AggregationConfig:
    """Averaging of token losses. Every kind is Σ_i c_i Σ_t m_t loss_t with its own c_i."""

    kind: AggregationKind = "seq_mean"
    """seq_mean: c = 1/(N·|y|) (GRPO); token_mean: c = 1/Σ|y| (DAPO); fixed_length: c = 1/(N·Lmax) (Dr. GRPO);
    delta_l: c = |y|^−α / (Lmax · Σ_j |y_j|^−α) (ΔL normalization, arXiv 2509.07558)."""
    max_completion_tokens: int | None = None
    """Lmax, tokens: the run's completion limit. Needed by fixed_length and delta_l, ignored by the others."""
    delta_l_alpha: float = 0.75
    """α of delta_l in [0, 1]: 0 weights all tokens equally, 1 weights each completion by its inverse length."""

    def __post_init__(self) -> None:
        require_choice("aggregation.kind", self.kind, get_args(AggregationKind))
        require_between("aggregation.delta_l_alpha", self.delta_l_alpha, 0.0, 1.0)
        if self.max_completion_tokens is not None:
            require_positive("aggregation.max_completion_tokens", self.max_completion_tokens)
        elif self.kind in ("fixed_length", "delta_l"):
            raise ConfigError(
                f"aggregation.kind = {self.kind!r} needs aggregation.max_completion_tokens",
                remedy="set aggregation.max_completion_tokens to the run's completion limit",
            )


def aggregate(
    token_loss_BGT: Tensor, mask_BGT: Tensor, cfg: AggregationConfig, *, update_lengths_N: Tensor | None = None
) -> Tensor:
    """Scalar Σ_i c_i Σ_t m_t loss_t. With `update_lengths_N` the parts of one update add up to the update's loss."""
    coefficients_BG = aggregation_coefficients(mask_BGT, cfg, update_lengths_N=update_lengths_N)
    sums_BG = on_mask(token_loss_BGT, mask_BGT.bool()).sum(dim=-1)
    return (coefficients_BG.to(sums_BG.dtype) * sums_BG).sum()


def aggregation_coefficients(
    mask_BGT: Tensor, cfg: AggregationConfig, *, update_lengths_N: Tensor | None = None
) -> Tensor:
    """c_i of each completion, (B, G), in the widest float of the device."""
    lengths_BG = widest(mask_BGT.bool().sum(dim=-1))
    lengths_N = lengths_BG.flatten() if update_lengths_N is None else widest(update_lengths_N)
    count = lengths_N.numel()
    if cfg.kind == "seq_mean":
        return 1 / (count * lengths_BG)
    if cfg.kind == "token_mean":
        return (1 / lengths_N.sum()).expand_as(lengths_BG)
    assert cfg.max_completion_tokens is not None, "checked by AggregationConfig"
    if cfg.kind == "fixed_length":
        return torch.full_like(lengths_BG, 1 / (count * cfg.max_completion_tokens))
    inverse_BG = lengths_BG.pow(-cfg.delta_l_alpha)
    return inverse_BG / (cfg.max_completion_tokens * lengths_N.pow(-cfg.delta_l_alpha).sum())
