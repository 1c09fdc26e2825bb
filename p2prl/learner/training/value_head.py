"""Value head: a linear estimate of a completion's return at each of its tokens, for generalized advantage estimation.

It reads the hidden states that the next token is chosen from, and is no part of the model: it is saved in checkpoints,
and never published. Shape legend: B groups, G completions, T tokens, N rows, M tokens of some rows, H hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.guards import ema_update
from p2prl.algorithms.ppo import ValueConfig, value_loss
from p2prl.errors import require

_AVERAGE_RATE = 0.1
"""Share of the head that enters its average at each update: targets that hardly move within a few updates."""

_NORM_FLOOR = 1e-6
"""Least mean square of a hidden state, so that zeros stay zeros."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueHeadConfig:
    """The `[loss.value]` table: the value head of `ppo`."""

    head: bool = True
    """Whether `ppo` has a value head; without one its advantages are those of groups."""
    weight: float = 0.5
    """Factor on the value loss, whose gradient reaches the model too."""
    clip: float = 0.2
    """Reward units: how far a value may move from the head's average without being held back."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation: 0 trusts the next value, 1 the rewards alone."""
    learning_rate: float = 5e-3
    """Learning rate of the head, far above a model's: it starts at zero, and is one layer on normalized states."""

    def __post_init__(self) -> None:
        require("loss.value.weight", self.weight, 0.0 < self.weight <= 1e3, "above 0, up to 1000")
        require("loss.value.clip", self.clip, 0.0 < self.clip < math.inf, "above 0")
        require("loss.value.gae_lambda", self.gae_lambda, 0.0 <= self.gae_lambda <= 1.0, "within 0..1")
        require("loss.value.learning_rate", self.learning_rate, 0.0 < self.learning_rate <= 1.0, "above 0, up to 1")

    @property
    def estimator(self) -> ValueConfig:
        """Clip, discount and λ as `ppo.gae` and `ppo.value_loss` take them."""
        return ValueConfig(value_clip=self.clip, gae_lambda=self.gae_lambda)


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Estimates at each token of a batch, before that token is chosen; reward units."""

    values_NT: Tensor
    """Of the head; gradients flow here."""
    average_NT: Tensor
    """Of its moving average: the old values of the value clip and of the advantages. No gradient."""

    def shaped(self, shape: torch.Size) -> TokenValues:
        """The same as (B, G, T)."""
        return TokenValues(self.values_NT.reshape(shape), self.average_NT.reshape(shape))

    def held(self, dropped_BG: Tensor) -> TokenValues:
        """The same (B, G, T) values, without a gradient to those of some completions."""
        return replace(self, values_NT=torch.where(dropped_BG.unsqueeze(-1), self.values_NT.detach(), self.values_NT))

    def loss(
        self, returns_BGT: Tensor, mask_BGT: Tensor, config: ValueHeadConfig, aggregation: AggregationConfig
    ) -> tuple[Tensor, dict[str, float]]:
        """The weighted value loss of (B, G, T) values, and what to log of it."""
        loss = value_loss(self.values_NT, self.average_NT, returns_BGT, mask_BGT, config.estimator, aggregation)
        returns_M, values_M = returns_BGT[mask_BGT], self.values_NT.detach()[mask_BGT]
        variance = float(returns_M.var(unbiased=False))
        left = float((returns_M - values_M).var(unbiased=False))
        figures = {
            "value/loss": float(loss.detach()),
            "value/mean": float(values_M.mean()),
            "value/explained": 1.0 - left / variance if variance > 0.0 else 0.0,
        }
        return config.weight * loss, figures


class ValueHead:
    """The head, its moving average and its optimizer. All in float32, whatever the model is held in."""

    def __init__(self, hidden: int, config: ValueHeadConfig, device: torch.device) -> None:
        """`hidden` is the width of the model's hidden states. Starts at zero: the first advantages are the returns."""
        self._head = [torch.zeros(size, device=device, requires_grad=True) for size in (hidden, 1)]
        self._average = [parameter.detach().clone() for parameter in self._head]
        self._rate = config.learning_rate
        self._optimizer = torch.optim.Adam(self._head, lr=config.learning_rate, foreach=False)

    @property
    def parameters(self) -> Sequence[Tensor]:
        """Weight and bias."""
        return self._head

    def values(self, hidden_MH: Tensor) -> Tensor:
        """Estimates (M,) of the head, with gradient to it and to the hidden states if they require one."""
        return _estimate(hidden_MH, self._head)

    def average(self, hidden_MH: Tensor) -> Tensor:
        """Estimates (M,) of the moving average; no gradient."""
        with torch.no_grad():
            return _estimate(hidden_MH, self._average)

    def backward(self, hidden_MH: Tensor, coefficients_M: Tensor) -> Tensor:
        """Gradient of Σ coefficient · value towards the hidden states; that towards the head is added to its own."""
        leaf_MH = hidden_MH.detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(self.values(leaf_MH), coefficients_M.float())
        assert leaf_MH.grad is not None
        return leaf_MH.grad

    def zero_gradients(self) -> None:
        """Forget the gradient."""
        for parameter in self._head:
            parameter.grad = None

    def step(self, factor: float) -> None:
        """One step of Adam at `factor` times the head's learning rate, and one of the average towards the head."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * factor
        self._optimizer.step()
        ema_update(self._average, self._head, rate=_AVERAGE_RATE)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs."""
        named: dict[str, Tensor] = {}
        for index, (parameter, average) in enumerate(zip(self._head, self._average, strict=True)):
            state = self._optimizer.state[parameter]
            named |= {f"{index}.head": parameter, f"{index}.average": average}
            named |= {f"{index}.{name}": value for name, value in state.items()}
        return {name: tensor.detach().cpu().clone() for name, tensor in named.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint's state."""
        with torch.no_grad():
            for index, (parameter, average) in enumerate(zip(self._head, self._average, strict=True)):
                parameter.copy_(tensors[f"{index}.head"])
                average.copy_(tensors[f"{index}.average"])
                kept = {name for name in tensors if name.startswith(f"{index}.")} - {
                    f"{index}.head",
                    f"{index}.average",
                }
                self._optimizer.state[parameter] = {
                    name.partition(".")[2]: tensors[name]
                    .clone()
                    .to("cpu" if name.endswith("step") else parameter.device)
                    for name in sorted(kept)
                }


def _estimate(hidden_MH: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """w · h/rms(h) / √H + b: of one scale for models of any width."""
    weight_H, bias_1 = parameters
    states_MH = hidden_MH.float()
    states_MH = states_MH * (states_MH.square().mean(dim=-1, keepdim=True) + _NORM_FLOOR).rsqrt()
    return states_MH @ weight_H / math.sqrt(weight_H.numel()) + bias_1
