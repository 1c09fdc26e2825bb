"""Reference policy: the run's first weights or a moving average, for the KL penalty and for DPO."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.guards import ema_update
from p2prl.errors import ConfigError, require
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.policy_gradient import BatchLogprobs
from p2prl.models.logprobs.policy_forward import Row

_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceConfig:
    """Settings of a moving reference."""

    ema_rate: float = 0.0
    """η in [0, 1): θ_ref ← (1 − η) θ_ref + η θ after every update; 0 keeps the first weights."""

    def __post_init__(self) -> None:
        require("loss.reference.ema_rate", self.ema_rate, 0.0 <= self.ema_rate < 1.0, "within 0..1, 1 excluded")


class Reference:
    """A frozen copy of the model. Costs one more forward pass per update, and the size of what is trained in memory."""

    def __init__(
        self, model: Any, config: ReferenceConfig, *, temperature: float, autocast: torch.dtype | None = None
    ) -> None:
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        if config.ema_rate > 0 and any(p.dtype in _SHORT for p in model.parameters()):
            raise ConfigError(
                "a reference policy that follows (ema_rate) would hardly move in 16 bits: its steps are rounded away",
                remedy='Set precision = "bf16" in [learner.memory] of run.toml, or another kind in [loss.reference].',
            )
        frozen = {id(p): p for name, p in model.named_parameters() if name not in trained}
        self._model = copy.deepcopy(model, frozen).eval().requires_grad_(False)
        self._trained = [parameter for name, parameter in self._model.named_parameters() if name in trained]
        self._policy = BatchLogprobs(self._model, temperature=temperature, autocast=autocast)
        self._config = config

    def logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor:
        """Log-probs (N, T) of the rows' completions, nats; no gradient."""
        return self._policy.logprobs(rows, rule)

    def follow(self, parameters: Sequence[Tensor]) -> None:
        """Move one step towards the policy's parameters."""
        if self._config.ema_rate > 0:
            ema_update(self._trained, parameters, rate=self._config.ema_rate)

    def tensors(self) -> dict[str, Tensor]:
        """The weights, for a checkpoint."""
        return {str(i): p.detach().cpu().contiguous() for i, p in enumerate(self._trained)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a checkpoint's weights."""
        with torch.no_grad():
            for i, parameter in enumerate(self._trained):
                parameter.copy_(tensors[str(i)])
