"""The port between a training step and the machines that compute it: what is as large as the weights, and where it is.

`Trainer` decides: loss, guards, warm-up, learning rate. An engine holds weights, gradients, optimizer, value head and
reference policy, on one device (`LocalEngine`) or over many processes. It sees no loss, only coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from p2prl.learner.training.memory_config import OptimizerStates, Precision
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.policy_gradient import GradientSource
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.trainer_checkpoint import TrainerNumbers
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.logprobs.policy_forward import Row
from p2prl.models.weights.layout import WeightLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """Settings of an engine, equal on every process that shares its work."""

    temperature: float
    """Of sampling."""
    optimizer: OptimizerConfig
    precision: Precision = "fp32"
    """The model must be held in `weight_dtype(precision)`."""
    states: OptimizerStates = "full"
    value: ValueHeadConfig | None = None
    """None without a value head."""
    reference: ReferenceConfig | None = None
    """None without a reference policy."""

    @property
    def autocast(self) -> torch.dtype | None:
        """Type of the model's products where it is not that of its weights."""
        return torch.bfloat16 if self.precision == "bf16" else None


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Norms of a batch's gradient, before it was clipped."""

    weights: Tensor
    value: Tensor | None = None
    """Of the value head; None without one."""


class UpdateEngine(GradientSource, Protocol):
    """Weights under training. One update: `score`, `push`, `clip`, `step`."""

    @property
    def model(self) -> Any:
        """The model. An engine of many processes holds a part of each weight in it."""
        ...

    @property
    def device(self) -> torch.device:
        """Where log-probs and coefficients are."""
        ...

    def reference_logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor | None:
        """Log-probs (N, T) of the reference policy, nats; None without one."""
        ...

    def forget(self) -> None:
        """Free gradients and graphs: the next update begins, or this one begins again."""
        ...

    def clip(self, most: float) -> GradientNorms:
        """Scale the gradients of weights and value head down to a norm of at most `most`."""
        ...

    def step(self, learning_rate: float, *, value_factor: float, number: int) -> None:
        """Take step `number`: AdamW on the weights, the value head at `value_factor` times its own rate, and the
        reference policy after them. Gradients are forgotten."""
        ...

    def copy_weights(self, layout: WeightLayout, into: bytearray | None = None) -> bytearray:
        """The weights as bytes in layout order, written `into` memory of its size if given."""
        ...

    def save(self, directory: Path, tokenizer: Any, numbers: TrainerNumbers) -> None:
        """Write a checkpoint atomically, the same whichever engine writes it."""
        ...

    def restore(self, directory: Path) -> None:
        """Load a checkpoint except its weights, which the model already holds.

        One written without a reference leaves the reference at those weights, and one without a value head leaves that
        at zero.
        """
        ...

    def check(self) -> None:
        """Raise `ProcessLostError` if a process that computes for it has ended. Costs nothing; from any thread."""
        ...

    def close(self) -> None:
        """End the processes that compute for it."""
        ...


EngineMaker = Callable[[Any, EngineSettings], UpdateEngine]
"""Makes the engine of a loaded model."""
