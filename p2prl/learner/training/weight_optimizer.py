"""The optimizer of a run's weights by precision and state width, its step, and its state as tensors to save.

Its step draws no random numbers, or draws them from the step's number alone, so that a replay repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import ConfigError
from p2prl.installation import install_command
from p2prl.learner.training.bf16_adamw import Bf16AdamW, PartOfParameter, whole_parameters
from p2prl.learner.training.memory_config import PURE_BF16, OptimizerStates, Precision
from p2prl.learner.training.optimizer_config import OptimizerConfig

_SIGNED = {"exp_avg": True, "exp_avg_sq": False}
"""torchao's code book of each mean; the mean of squares is never negative."""


def build_low_bit_adamw(
    parameters: Sequence[Tensor], *, lr: float, betas: tuple[float, float], weight_decay: float, stochastic: bool
) -> torch.optim.Optimizer:
    """torchao's AdamW. `stochastic` rounds new bfloat16 weights at random, by torch's global generator."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            'optimizer_states = "8bit" needs torchao, which is not installed',
            remedy=f'{install_command("lowbit")}; or set optimizer_states = "full".',
        ) from error
    made: torch.optim.Optimizer = AdamW8bit(
        parameters, lr=lr, betas=betas, weight_decay=weight_decay, bf16_stochastic_round=stochastic
    )
    return made


def stepping(device: torch.device) -> AbstractContextManager[Any]:
    """Context of its step. torchao compiles it; a CPU takes it as written, which needs no C++ compiler."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance(
        "force_eager" if device.type == "cpu" else "default"
    )
    return stance


def split_state(value: Any) -> dict[str, Tensor]:
    """The plain tensors of a mean, by the suffix of their name; a plain tensor is one without a suffix."""
    if not hasattr(value, "codes"):
        return {"": value}
    return {f".{name}": getattr(value, name) for name in value.__tensor_flatten__()[0]}


def join_state(name: str, parts: dict[str, Tensor], parameter: Tensor) -> Any:
    """The inverse of `split_state`."""
    if "" in parts:
        return parts[""]
    from torchao.optim.subclass_8bit import OptimState8bit

    inner = {suffix.removeprefix("."): part for suffix, part in parts.items()}
    return OptimState8bit.__tensor_unflatten__(inner, (_SIGNED[name], parameter.dtype))


FUSED_FROM_PARAMETERS = 1_000_000
"""Models of at least this size take torch's fused AdamW: one pass over the weights without temporaries of their size.
Smaller ones take its plain loop, whose results runs of small models have always had."""


class WeightOptimizer:
    """AdamW on a model's parameters."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        config: OptimizerConfig,
        *,
        precision: Precision = "fp32",
        states: OptimizerStates = "full",
        parts: Sequence[PartOfParameter] | None = None,
        parameters_of_all: int | None = None,
    ) -> None:
        """`parameters` may be `parts` of a model's, which has `parameters_of_all`; None if they are the whole."""
        self._parameters = parameters
        parts = whole_parameters(parameters) if parts is None else parts
        count = sum(p.numel() for p in parameters) if parameters_of_all is None else parameters_of_all
        self._states = states
        self._draws_globally = states == "8bit" and precision in PURE_BF16
        self._optimizer = _build(
            parameters, parts, config, precision=precision, states=states, fused=count >= FUSED_FROM_PARAMETERS
        )

    def step(self, learning_rate: float, *, number: int) -> None:
        """Take step `number` with the parameters' gradients."""
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # torchao's, so that a new value is not compiled in
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate
        device = self._parameters[0].device
        with ExitStack() as around:
            if self._states == "8bit":
                around.enter_context(stepping(device))
            if self._draws_globally:
                around.enter_context(torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]))
                torch.manual_seed(number)
            self._optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The state, for a checkpoint: plain tensors named `INDEX.NAME`."""
        return {
            f"{index}.{name}{suffix}": part.detach().cpu().contiguous()
            for index, parameter in enumerate(self._parameters)
            for name, value in self._optimizer.state[parameter].items()
            for suffix, part in split_state(value).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint's state. `ConfigError` when it is of other states than this run's settings ask for."""
        by_state: dict[tuple[int, str], dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name, *suffix = key.split(".")
            by_state.setdefault((int(number), name), {})["".join(f".{part}" for part in suffix)] = tensor
        is_low_bit = any("" not in parts for parts in by_state.values())
        if by_state and is_low_bit != (self._states == "8bit") and _could_be_low_bit(self._parameters):
            written = "8bit" if is_low_bit else "full"
            raise ConfigError(
                f"the newest checkpoint was written with optimizer_states = {written!r}",
                remedy=f'Set learner.memory.optimizer_states = "{written}" in run.toml again.',
            )
        for (index, name), parts in by_state.items():
            parameter = self._parameters[index]
            if name != "step":
                moved = {suffix: _like(part, parameter) for suffix, part in parts.items()}
                self._optimizer.state[parameter][name] = join_state(name, moved, parameter)
            else:
                fused = self._optimizer.defaults.get("fused")
                self._optimizer.state[parameter][name] = parts[""].to(parameter.device if fused else "cpu")


def _build(
    parameters: Sequence[Tensor],
    parts: Sequence[PartOfParameter],
    config: OptimizerConfig,
    *,
    precision: Precision,
    states: OptimizerStates,
    fused: bool,
) -> torch.optim.Optimizer:
    rate, betas, decay = config.learning_rate, (config.beta1, config.beta2), config.weight_decay
    if states == "8bit":
        stochastic = precision in PURE_BF16
        return build_low_bit_adamw(parameters, lr=rate, betas=betas, weight_decay=decay, stochastic=stochastic)
    if precision in PURE_BF16:
        kahan = precision == "bf16_kahan"
        return Bf16AdamW(parameters, parts=parts, lr=rate, betas=betas, weight_decay=decay, kahan=kahan)
    return torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=decay, foreach=False, fused=fused)


def _like(part: Tensor, parameter: Tensor) -> Tensor:
    """A state on the parameter's device; a plain one also in its type, as the precision may have changed."""
    if part.shape == parameter.shape and part.is_floating_point():
        return part.to(parameter.device, parameter.dtype)
    return part.to(parameter.device)


def _could_be_low_bit(parameters: Sequence[Tensor]) -> bool:
    """Whether some parameter is large enough for torchao to keep its state in 8 bits."""
    return any(parameter.numel() >= 4096 and parameter.numel() % 256 == 0 for parameter in parameters)
