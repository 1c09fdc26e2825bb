"""AdamW over many policies at once, each with its own gradient norm and learning rate.

Shape legend: M policies, W weights of one policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.global_amsgrad import GlobalAmsgrad

_BETA1, _EPSILON = 0.9, 1e-8
BETA2 = 0.99
_CLIP = 1.0


@dataclass(frozen=True, kw_only=True)
class StackedAdam:
    """Adam's moments and the update, without weight decay. Same numbers as torch.optim.AdamW after a norm clip of 1."""

    first_MW: Tensor
    second_MW: Tensor
    beta2: float = BETA2
    """β₂ of Adam's second moment."""
    amsgrad: GlobalAmsgrad | None = None
    """What lowers the learning rates as gradients become small; None for nothing."""

    @classmethod
    def fresh(cls, weights_MW: Tensor, *, beta2: float = BETA2, amsgrad: bool = False) -> StackedAdam:
        """Moments of zero."""
        return cls(
            first_MW=torch.zeros_like(weights_MW),
            second_MW=torch.zeros_like(weights_MW),
            beta2=beta2,
            amsgrad=GlobalAmsgrad(beta2=beta2) if amsgrad else None,
        )

    @torch.no_grad()
    def step(self, weights_MW: Tensor, gradient_MW: Tensor, *, number: int, rate_M: Tensor) -> Tensor:
        """Update `weights_MW` in place, and return the gradient norms (M,) before the clip. `number` counts from 1."""
        norm_M: Tensor = torch.linalg.vector_norm(gradient_MW, dim=1)
        clipped_MW = gradient_MW * (_CLIP / (norm_M + 1e-6)).clamp(max=1.0).unsqueeze(1)
        if self.amsgrad is not None:
            rate_M = rate_M * self.amsgrad.factor(norm_M.clamp(max=_CLIP)).to(rate_M)
        self.first_MW.lerp_(clipped_MW, 1 - _BETA1)
        self.second_MW.mul_(self.beta2).addcmul_(clipped_MW, clipped_MW, value=1 - self.beta2)
        deviation_MW = (self.second_MW / (1 - self.beta2**number)).sqrt_().add_(_EPSILON)
        weights_MW.sub_(rate_M.unsqueeze(1) * (self.first_MW / (1 - _BETA1**number)) / deviation_MW)
        return norm_M
