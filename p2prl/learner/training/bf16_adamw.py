"""AdamW on weights held in bfloat16 alone, whose small steps rounding to nearest would lose.

A step of 1e-6 on a weight of .01 is 1/60 of a bfloat16 ulp. Either the new weight is rounded up or down at random, so
that its expectation is exact (arXiv 2010.06192), or what rounding cut off is kept beside it in a second bfloat16 and
added at the next step (Kahan summation, same paper). Adam's means are in bfloat16 too, rounded at random. The random
bits depend on the step and the parameter's index alone, so a replay after a crash repeats them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1 << 22
"""Weights computed at once in float32: 100 MB of temporaries, however large the model."""

_RANDOM_BITS = 16
"""Bits that bfloat16 cuts off float32."""

_FIELD = (1 << _RANDOM_BITS) - 1


class Bf16AdamW(torch.optim.Optimizer):
    """AdamW with decoupled weight decay, on bfloat16 parameters."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
        kahan: bool,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps})
        self._kahan = kahan

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients at hand."""
        assert closure is None
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._step(group, index, parameter, parameter.grad)

    def _step(self, group: dict[str, Any], index: int, parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if self._kahan and "rest" not in state:
            state["rest"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = int(state["step"])
        generator = torch.Generator(device=parameter.device)
        generator.manual_seed(step << 32 | index)
        names = ("exp_avg", "exp_avg_sq", *(("rest",) if self._kahan else ()))
        whole = [parameter.view(-1), gradient.contiguous().view(-1), *(state[name].view(-1) for name in names)]
        for start in range(0, parameter.numel(), _BLOCK):
            _update_block(group, step, generator, *(tensor[start : start + _BLOCK] for tensor in whole))


def _update_block(
    group: dict[str, Any],
    step: int,
    generator: torch.Generator,
    weight: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    rest: Tensor | None = None,
) -> None:
    """One step of a block of weights, in place, computed in float32."""
    beta1, beta2 = group["betas"]
    exact_gradient = gradient.float()
    exact_mean = mean.float().lerp_(exact_gradient, 1 - beta1)
    exact_square = square.float().mul_(beta2).addcmul_(exact_gradient, exact_gradient, value=1 - beta2)
    exact_weight = weight.float() if rest is None else weight.float().add_(rest.float())
    exact_weight.mul_(1 - group["lr"] * group["weight_decay"])
    spread = (exact_square.sqrt() / math.sqrt(1 - beta2**step)).add_(group["eps"])
    exact_weight.addcdiv_(exact_mean, spread, value=-group["lr"] / (1 - beta1**step))
    bits = torch.randint(
        0, 1 << 3 * _RANDOM_BITS, weight.shape, generator=generator, device=weight.device, dtype=torch.int64
    )
    mean.copy_(_rounded(exact_mean, bits >> _RANDOM_BITS))
    square.copy_(_rounded(exact_square, bits >> 2 * _RANDOM_BITS))
    if rest is None:
        weight.copy_(_rounded(exact_weight, bits))
    else:
        weight.copy_(exact_weight)
        rest.copy_(exact_weight.sub_(weight.float()))


def _rounded(exact: Tensor, bits: Tensor) -> Tensor:
    """float32 rounded to a bfloat16 neighbor, away from zero with a probability equal to the share of the gap."""
    noisy = exact.view(torch.int32) + (bits & _FIELD).to(torch.int32)
    return (noisy & ~_FIELD).view(torch.float32)
