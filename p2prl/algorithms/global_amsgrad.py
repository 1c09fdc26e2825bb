"""AMSGrad with one number for all weights: the learning rate follows the gradient's norm down from its highest level.

Adam divides by the gradient's recent scale. When nearly all groups have equal rewards, gradients are rare, Adam forgets
the scale of the earlier ones, and a rare one moves every weight by whole learning rates, whatever it is worth. Fresh
rollouts would correct that soon; under a delay of hundreds of updates the policy wanders for as long. AMSGrad (Reddi,
Kale and Kumar 2018) keeps the highest second moment of each weight. One for the norm does the same here, for three
numbers instead of four bytes a weight, and beside any optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import LocalProtocolError


class GlobalAmsgrad:
    """The level of the gradient's norm, and the highest so far; one, or many side by side."""

    def __init__(self, *, beta2: float) -> None:
        """`beta2`: decay of the running mean of the squared norm, per update, as of Adam's second moment."""
        self._beta2 = beta2
        self._mean = self._highest = torch.zeros((), dtype=torch.float64)
        self._known = 0.0
        """Share of the mean that is not its start at 0."""

    def factor(self, norm: Tensor) -> Tensor:
        """Factor on the learning rate for the next gradient, in [0, 1], float64, for each of its norms after the clip.

        √(mean / highest): the mean of squared norms without bias, over the highest one with Adam's bias towards 0, so
        that the first gradient alone sets no level. 0 only while all gradients so far are 0. LocalProtocolError for a
        norm that is not finite.
        """
        if not bool(torch.isfinite(norm).all()):
            raise LocalProtocolError("the gradient's norm is not finite")
        square = norm.detach().cpu().double().square()
        self._mean = self._beta2 * self._mean + (1 - self._beta2) * square
        self._known = self._beta2 * self._known + (1 - self._beta2)
        self._highest = torch.maximum(self._mean, self._highest)
        share = self._mean / self._known / self._highest.clamp(min=torch.finfo(torch.float64).tiny)
        return share.clamp(max=1.0).sqrt()

    def state(self) -> dict[str, object]:
        """Plain numbers, for a checkpoint; exact."""
        return {"mean": self._mean.tolist(), "highest": self._highest.tolist(), "known": self._known}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state; an empty one begins anew."""
        if state:
            self._mean = torch.tensor(state["mean"], dtype=torch.float64)
            self._highest = torch.tensor(state["highest"], dtype=torch.float64)
            self._known = float(state["known"])
