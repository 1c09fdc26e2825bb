"""The engine of one process and one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.policy_gradient import BatchLogprobs, TokenScores
from p2prl.learner.training.preferences import Preferences
from p2prl.learner.training.reference_policy import Reference, ReferenceConfig
from p2prl.learner.training.trainer_checkpoint import TrainerNumbers, TrainerTensors, load_tensors, save_checkpoint
from p2prl.learner.training.update_engine import EngineMaker, EngineSettings, GradientNorms
from p2prl.learner.training.value_head import ValueHead
from p2prl.learner.training.weight_optimizer import WeightOptimizer
from p2prl.models.logprobs.policy_forward import Row
from p2prl.models.weights.layout import WeightLayout, flatten


class LocalEngine:
    """An `UpdateEngine` whose model is all here."""

    def __init__(self, model: Any, settings: EngineSettings) -> None:
        # Never in training mode: dropout would draw random numbers that a replay after a crash could not reproduce.
        self.model = model.eval()
        self._value = None
        if settings.value is not None:
            self._value = ValueHead(model.config.get_text_config().hidden_size, settings.value, self.device)
        temperature, autocast = settings.temperature, settings.autocast
        self._policy = BatchLogprobs(model, temperature=temperature, autocast=autocast, value=self._value)
        self._reference = None
        if settings.reference is not None:
            self._reference = Reference(model, settings.reference, temperature=temperature, autocast=autocast)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer = WeightOptimizer(
            self._parameters, settings.optimizer, precision=settings.precision, states=settings.states
        )

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def reference_logprobs(self, rows: Sequence[Row], rule: MicroBatchRule) -> Tensor | None:
        return None if self._reference is None else self._reference.logprobs(rows, rule)

    def score(self, rows: Sequence[Row], rule: MicroBatchRule) -> TokenScores:
        return self._policy.score(rows, rule)

    def push(self, coefficients_NT: Tensor, value_coefficients_NT: Tensor | None = None) -> None:
        self._policy.push(coefficients_NT, value_coefficients_NT)

    def forget(self) -> None:
        self._policy.forget()
        for parameter in self._parameters:
            parameter.grad = None
        if self._value is not None:
            self._value.zero_gradients()

    def clip(self, most: float) -> GradientNorms:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, most)
        value = None if self._value is None else torch.nn.utils.clip_grad_norm_(self._value.parameters, most)
        return GradientNorms(norm, value)

    def step(self, learning_rate: float, *, value_factor: float, number: int) -> None:
        self._optimizer.step(learning_rate, number=number)
        if self._value is not None:
            self._value.step(value_factor)
        self.forget()
        if self._reference is not None:
            self._reference.follow(self._parameters)

    def copy_weights(self, layout: WeightLayout, into: bytearray | None = None) -> bytearray:
        return flatten(self.model, layout, into)

    def save(self, directory: Path, tokenizer: Any, numbers: TrainerNumbers) -> None:
        tensors = TrainerTensors(
            optimizer=self._optimizer.tensors(),
            reference=None if self._reference is None else self._reference.tensors(),
            value=None if self._value is None else self._value.tensors(),
        )
        save_checkpoint(directory, self.model, tokenizer, numbers, tensors)

    def restore(self, directory: Path) -> None:
        tensors = load_tensors(directory)
        self._optimizer.restore(tensors.optimizer)
        if self._reference is not None and tensors.reference is not None:
            self._reference.restore(tensors.reference)
        if self._value is not None and tensors.value is not None:
            self._value.restore(tensors.value)

    def check(self) -> None:
        """Nothing computes for it elsewhere."""

    def close(self) -> None:
        """It ends with this process."""


def make_trainer(
    model: Any,
    loss: LossPipeline,
    config: OptimizerConfig,
    *,
    temperature: float,
    reference: ReferenceConfig | None = None,
    memory: StepMemory | None = None,
    engine: EngineMaker = LocalEngine,
    preferences: Preferences | None = None,
) -> Trainer:
    """The trainer of a model, by default in this process alone."""
    memory = memory or StepMemory()
    settings = EngineSettings(
        temperature=temperature,
        optimizer=config,
        precision=memory.precision,
        states=memory.states,
        value=loss.value,
        reference=reference,
    )
    return Trainer(engine(model, settings), loss, config, rules=memory.rules, preferences=preferences)
