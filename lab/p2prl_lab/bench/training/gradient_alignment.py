"""Gradient Alignment Control: removal of what a gradient has in common with the one before.

Under a delay consecutive gradients point the same way, because the rollouts do not show yet what the last step did
(arXiv 2603.01501). Shape legend: M policies, W weights of one policy.
"""

from __future__ import annotations

import torch
from torch import Tensor


class GradientAlignment:
    """Each policy's last gradient, and what is left of the next one."""

    def __init__(self, bound: float) -> None:
        """`bound`: cosine within [0, 1) up to which gradients may agree."""
        self._bound = bound
        self._last_MW: Tensor | None = None

    @torch.no_grad()
    def controlled(self, gradient_MW: Tensor) -> Tensor:
        """The gradient without its excess along the last one: g − max(0, cos − bound) |g| ĝ₋₁; the first is itself.

        Written from the paper's abstract: the authors' thresholds, and whether they compare with the raw or with the
        projected gradient, are unchecked. Here it is the raw one.
        """
        last_MW, self._last_MW = self._last_MW, gradient_MW.clone()
        if last_MW is None:
            return gradient_MW
        unit_MW = torch.nn.functional.normalize(last_MW, dim=1)
        along_M1 = (gradient_MW * unit_MW).sum(dim=1, keepdim=True)
        norm_M1 = torch.linalg.vector_norm(gradient_MW, dim=1, keepdim=True)
        excess_MW: Tensor = (along_M1 - self._bound * norm_M1).clamp(min=0.0) * unit_MW
        return gradient_MW - excess_MW
