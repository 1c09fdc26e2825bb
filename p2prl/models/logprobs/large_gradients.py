"""Gradients of large matrices, added where they are kept instead of in a tensor of their own.

A tied matrix has a gradient from the output and one from the input, and autograd holds the first until the second has
come, each as large as the matrix: half a gigabyte for 152k words of 896 numbers.

Shapes: N rows, L tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LARGE = 1 << 22
"""Elements from which on a gradient is added in place. Sums then have another order, so that small models, which have
no need of it, keep the results that they have always had."""


def place_for(weight: Tensor) -> Tensor | None:
    """Where a large float32 weight's gradient is kept, zeros at first; None for one whose gradient autograd adds."""
    if not (weight.is_leaf and weight.requires_grad and weight.dtype == torch.float32 and weight.numel() >= LARGE):
        return None
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad


def look_up(weight_VH: Tensor, ids: Tensor, padding: int | None = None) -> Tensor:
    """Embeddings (…, H) of ids. The gradient of a `padding` id is dropped, as by `nn.Embedding`."""
    if not torch.is_grad_enabled() or not weight_VH.requires_grad or weight_VH.numel() < LARGE:
        return functional.embedding(ids, weight_VH, padding)
    found: Tensor = _LookUp.apply(weight_VH, ids, padding)  # type: ignore[no-untyped-call]
    return found


def use_in(embedding: Any) -> None:
    """Have a model's plain embedding look up like this."""
    if type(embedding) is nn.Embedding and embedding.max_norm is None and not embedding.scale_grad_by_freq:
        embedding.forward = partial(_forward, embedding)  # type: ignore[method-assign]


def _forward(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    return look_up(embedding.weight, ids, embedding.padding_idx)


class _LookUp(torch.autograd.Function):
    """`functional.embedding` whose gradient goes to its place."""

    @staticmethod
    def forward(ctx: Any, weight_VH: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.weight_VH, ctx.padding = weight_VH, padding  # a leaf: gathered again, it is still this tensor
        ctx.save_for_backward(ids)
        return functional.embedding(ids, weight_VH)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (ids,) = ctx.saved_tensors
        flat_K, gradient_KH = ids.flatten(), gradient.flatten(0, -2)
        if ctx.padding is not None:
            gradient_KH = gradient_KH * (flat_K != ctx.padding)[:, None]
        place_VH = place_for(ctx.weight_VH)
        if place_VH is None:
            whole_VH = torch.zeros_like(ctx.weight_VH)
            return whole_VH.index_add_(0, flat_K, gradient_KH.to(whole_VH.dtype)), None, None
        place_VH.index_add_(0, flat_K, gradient_KH.to(place_VH.dtype))
        return None, None, None
