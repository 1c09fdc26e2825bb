"""AdamW with 8-bit means through torchao (extra `lowbit`): 2 bytes of state for each weight instead of 8."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import ConfigError
from p2prl.installation import install_command

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
            remedy=f'In your clone: {install_command("lowbit")}; or set optimizer_states = "full".',
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
