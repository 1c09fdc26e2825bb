"""AdamW on weights held in bfloat16 alone, whose small steps rounding to nearest would lose.

A step of 1e-6 on a weight of .01 is 1/60 of a bfloat16 ulp. Either the new weight is rounded up or down at random, so
that its expectation is exact (arXiv 2010.06192), or what rounding cut off is kept beside it in a second bfloat16 and
added at the next step (Kahan summation, same paper). Adam's means are in bfloat16 too, rounded at random. The random
bits depend on the step and the place in the model alone, so a replay after a crash repeats them, and processes that
each hold a part of a parameter round as one that holds it all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_BLOCK = 1 << 22
"""Weights computed at once in float32: 100 MB of temporaries, however large the model."""

_RANDOM_BITS = 16
"""Bits that bfloat16 cuts off float32."""

_FIELD = (1 << _RANDOM_BITS) - 1

_BLOCK_SHIFT = 20
"""Place of a block's number in its seed, above that of the parameter: a model has fewer than a million of them."""


@dataclass(frozen=True, slots=True)
class PartOfParameter:
    """Which elements of a model's parameter a tensor holds."""

    number: int
    """Of the parameter among those that are trained."""
    first: int
    """Element of the parameter, flattened, that the tensor begins with."""
    elements: int
    """Of the whole parameter."""
    rows: int = 0
    """Of the whole parameter, where the tensor holds columns of it as its rows, and `first` counts in that order; 0
    where it holds rows."""

    def elements_of(self, block: int) -> int:
        """Elements in a block of the whole parameter."""
        return min(_BLOCK, self.elements - block * _BLOCK)


def whole_parameters(parameters: Sequence[Tensor]) -> list[PartOfParameter]:
    """The parts of a process that holds all of its parameters."""
    return [PartOfParameter(number, 0, each.numel()) for number, each in enumerate(parameters)]


class Bf16AdamW(torch.optim.Optimizer):
    """AdamW with decoupled weight decay, on bfloat16 parameters."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        parts: Sequence[PartOfParameter] | None = None,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
        kahan: bool,
    ) -> None:
        """`parts` says what each tensor holds of its parameter; None if all of it."""
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps})
        self._kahan = kahan
        self._parts = whole_parameters(parameters) if parts is None else parts

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients at hand."""
        assert closure is None
        for group in self.param_groups:
            for part, parameter in zip(self._parts, group["params"], strict=True):
                if parameter.grad is not None:
                    self._step(group, part, parameter, parameter.grad)

    def _step(self, group: dict[str, Any], part: PartOfParameter, parameter: Tensor, gradient: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        if self._kahan and "rest" not in state:
            state["rest"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = int(state["step"])
        names = ("exp_avg", "exp_avg_sq", *(("rest",) if self._kahan else ()))
        whole = [parameter.view(-1), gradient.contiguous().view(-1), *(state[name].view(-1) for name in names)]
        if part.rows:
            _update_columns(group, step, part, *whole)
            return
        for block in range(part.first // _BLOCK, -(-(part.first + parameter.numel()) // _BLOCK)):
            here = slice(max(block * _BLOCK - part.first, 0), max((block + 1) * _BLOCK - part.first, 0))
            bits = _random_bits(step, part, block, parameter.device)
            begins = max(part.first - block * _BLOCK, 0)
            values = [tensor[here] for tensor in whole]
            _update_block(group, step, bits[begins : begins + values[0].numel()], *values)


def _random_bits(step: int, part: PartOfParameter, block: int, device: torch.device) -> Tensor:
    """Random bits of all elements of a block of the whole parameter, of which the tensor may hold a few."""
    generator = torch.Generator(device=device)
    generator.manual_seed(step << 32 | block << _BLOCK_SHIFT | part.number)
    shape = (part.elements_of(block),)
    return torch.randint(0, 1 << 3 * _RANDOM_BITS, shape, generator=generator, device=device, dtype=torch.int64)


def _update_columns(group: dict[str, Any], step: int, part: PartOfParameter, weight: Tensor, *others: Tensor) -> None:
    """One step of a tensor of columns, which has a few elements of every block of the whole parameter."""
    columns = part.elements // part.rows
    for block in range(-(-part.elements // _BLOCK)):
        place = torch.arange(part.elements_of(block), device=weight.device) + block * _BLOCK
        held = place % columns * part.rows + place // columns - part.first
        is_here = (held >= 0) & (held < weight.numel())
        held = held[is_here]
        whole = (weight, *others)
        values = [tensor[held] for tensor in whole]
        _update_block(group, step, _random_bits(step, part, block, weight.device)[is_here], *values)
        for tensor, value in zip(whole, values, strict=True):
            tensor[held] = value


def _update_block(
    group: dict[str, Any],
    step: int,
    bits: Tensor,
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
