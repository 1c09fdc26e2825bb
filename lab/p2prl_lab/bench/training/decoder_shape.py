"""Sizes of a stacked decoder, the layout of its weights, and random initial weights.

Shape legend: W weights of one policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.errors import ConfigError

_INITIAL_DEVIATION = 0.1
"""As in `p2prl/models/small_models/tiny_models.py`: with the usual .02 such a narrow decoder hardly begins to learn."""


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of one decoder."""

    vocabulary: int
    """Tokens."""
    context: int
    """Most tokens of prompt and completion together."""
    width: int = 48
    """Size of the residual stream; `heads` divides it."""
    feedforward: int = 192
    """Inner size of the feed-forward layers."""
    layers: int = 2
    """Decoder layers."""
    heads: int = 2
    """Attention heads."""
    value_head: bool = False
    """Add a value head: one more linear output of the last features."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "feedforward", "layers", "heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", remedy=f"Set {name} to 1 or more.")
        if self.width % self.heads:
            raise ConfigError(f"heads = {self.heads} does not divide width = {self.width}")

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of a row of weights. Names are GPT2LMHeadModel's."""
        width, inner = self.width, self.feedforward
        named: dict[str, tuple[int, ...]] = {
            "wte.weight": (self.vocabulary, width),
            "wpe.weight": (self.context, width),
        }
        for layer in range(self.layers):
            named |= {
                f"h.{layer}.ln_1.weight": (width,),
                f"h.{layer}.ln_1.bias": (width,),
                f"h.{layer}.attn.c_attn.weight": (width, 3 * width),
                f"h.{layer}.attn.c_attn.bias": (3 * width,),
                f"h.{layer}.attn.c_proj.weight": (width, width),
                f"h.{layer}.attn.c_proj.bias": (width,),
                f"h.{layer}.ln_2.weight": (width,),
                f"h.{layer}.ln_2.bias": (width,),
                f"h.{layer}.mlp.c_fc.weight": (width, inner),
                f"h.{layer}.mlp.c_fc.bias": (inner,),
                f"h.{layer}.mlp.c_proj.weight": (inner, width),
                f"h.{layer}.mlp.c_proj.bias": (width,),
            }
        named |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
        # The value head is last, so that the weights without it are a prefix of the row.
        return named | ({"v_head.weight": (width,), "v_head.bias": (1,)} if self.value_head else {})

    def size(self) -> int:
        """Weights of one policy."""
        return sum(math.prod(shape) for shape in self.layout().values())


def initial_weights(shape: DecoderShape, seed: int) -> Tensor:
    """A row (W,) of seeded random weights, float32, with GPT-2's initialization."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for name, size in shape.layout().items():
        if name.endswith("bias") or name.startswith("v_head"):
            parts.append(torch.zeros(math.prod(size)))
        elif "ln_" in name:
            parts.append(torch.ones(math.prod(size)))
        else:
            deviation = _INITIAL_DEVIATION
            if name.endswith("c_proj.weight"):
                deviation /= math.sqrt(2 * shape.layers)  # each layer adds twice to the residual stream
            parts.append(deviation * torch.randn(math.prod(size), generator=generator))
    return torch.cat(parts)
