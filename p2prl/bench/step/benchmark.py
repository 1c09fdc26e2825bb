"""The step benchmark: the product's training step beside a plain full-batch one, on the same batch in one process.

They run in a process of their own, whose size shows nothing but the steps.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from p2prl.algorithms.loss_registry import LOSSES, build_loss
from p2prl.bench.device_time import timed
from p2prl.bench.random_batches import random_batch
from p2prl.bench.random_models import SHAPES, random_model
from p2prl.bench.step.peak_memory import held_bytes, peak_bytes_beyond
from p2prl.bench.step.plain_step import PlainStep
from p2prl.errors import require
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.memory_config import MemoryConfig, Precision, weight_dtype
from p2prl.learner.training.memory_model import TrainingSetup, memory_needs, shape_of
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup
from p2prl.models.hardware.device_choice import choose_device, use_threads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NEEDS_REFERENCE = frozenset({"dpo"})


@dataclass(frozen=True, kw_only=True)
class StepBenchConfig:
    """One benchmark."""

    losses: tuple[str, ...] = ()
    """Names of the registry; empty for all of them."""
    model: str = "29m"
    groups: int = 2
    completions: int = 4
    tokens: int = 64
    """Of the longest completion."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """As in run.toml, but micro-batches of 0 tokens stand for a quarter of the batch."""
    plain: bool = True
    """Compare with a plain step, which must fit."""
    repeats: int = 3
    threads: int = 1
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        require("model", self.model, self.model in SHAPES, f"one of {', '.join(SHAPES)}")
        for name in ("groups", "completions", "tokens", "repeats", "threads"):
            value = getattr(self, name)
            require(name, value, value >= 1, "1 or more")
        require("completions", self.completions, self.completions >= 2, "2 or more, as rewards are compared")
        for loss in self.losses:
            LOSSES.check(loss)

    @property
    def rule(self) -> MicroBatchRule:
        """The micro-batches of the product's step."""
        tokens = self.memory.micro_batch_tokens or max(1, self.groups * self.completions * self.tokens // 4)
        return MicroBatchRule(tokens=tokens, checkpointing=self.memory.checkpointing == "on")

    @property
    def precision(self) -> Precision:
        """The precision on the device."""
        return self.memory.precision_on(choose_device(self.device).type, "bfloat16")


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """Result of one loss. It has this many fields because each is a figure of the table."""

    loss: str
    model: str
    parameters: int
    batch: str
    """Groups x completions x tokens."""
    precision: str
    states: str
    checkpointing: bool
    micro_batch_tokens: int
    peak_bytes_beyond_weights: int
    """Peak beyond weights and optimizer: gradients, activations and tiles."""
    predicted_bytes_beyond_weights: int
    """The same by the memory model."""
    seconds: float
    """Processor time of a step (wall time on a GPU): the median beside a plain one, else of the one step."""
    plain_peak_bytes_beyond_weights: int | None = None
    plain_seconds: float | None = None
    time_of_plain: float | None = None
    gradient_error_max: float | None = None
    """Largest difference of an entry from the plain gradient, divided by the largest entry."""


def run_step_bench(
    config: StepBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[StepRow]:
    """One row for each loss."""
    tell = on_progress or (lambda *_: None)
    losses = config.losses or tuple(LOSSES.names())
    rows = []
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, loss in enumerate(losses):
            tell(loss, number / len(losses))
            rows.append(pool.submit(measure_loss, config, loss).result())
    return rows


def measure_loss(config: StepBenchConfig, loss: str) -> StepRow:
    """Measure one loss in this process."""
    use_threads(config.threads)
    device = choose_device(config.device)
    model = random_model(config.model, dtype=weight_dtype(config.precision), device=device, seed=config.seed)
    batch = random_batch(
        model,
        groups=config.groups,
        completions=config.completions,
        tokens=config.tokens,
        rule=config.rule,
        seed=config.seed,
    )
    trainer = _trainer(model, config, loss)
    trainer.update(_shortened(batch))  # allocates the optimizer's state
    held = held_bytes(device)
    seconds: list[float] = []
    peak = peak_bytes_beyond(
        lambda: seconds.append(timed(lambda: trainer.update(batch), device).on(device)), held=held, device=device
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    setup = TrainingSetup(precision=config.precision, states=config.memory.optimizer_states, device_type=device.type)
    needs = memory_needs(shape_of(model.config, parameters), setup, config.rule)
    row = StepRow(
        loss=loss,
        model=config.model,
        parameters=parameters,
        batch=f"{config.groups} x {config.completions} x {config.tokens}",
        precision=config.precision,
        states=config.memory.optimizer_states,
        checkpointing=config.rule.checkpointing,
        micro_batch_tokens=config.rule.tokens,
        peak_bytes_beyond_weights=peak,
        predicted_bytes_beyond_weights=needs.gradients + needs.scratch + needs.activations,
        seconds=seconds[0],
    )
    return _compared(row, trainer, batch, config) if config.plain else row


def _compared(row: StepRow, trainer: Trainer, batch: Sequence[TrainingGroup], config: StepBenchConfig) -> StepRow:
    """The row with the plain step's figures, measured in turns with the product's."""
    model = trainer.model
    device = next(model.parameters()).device
    reference = random_model(config.model, device=device, seed=config.seed) if row.loss in _NEEDS_REFERENCE else None
    plain = PlainStep(model, _pipeline(row.loss), reference=reference)
    plain.gradient(batch)
    expected = _gradients(model)
    trainer.gradient(batch)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    error = max(float((a - b).abs().max()) for a, b in zip(_gradients(model), expected, strict=True)) / largest
    del expected
    plain.update(_shortened(batch))
    held = held_bytes(device)
    plain_peak = peak_bytes_beyond(lambda: plain.update(batch), held=held, device=device)
    ours, theirs = [], []
    for _ in range(config.repeats):
        ours.append(timed(lambda: trainer.update(batch), device).on(device))
        theirs.append(timed(lambda: plain.update(batch), device).on(device))
    return replace(
        row,
        seconds=statistics.median(ours),
        plain_peak_bytes_beyond_weights=plain_peak,
        plain_seconds=statistics.median(theirs),
        time_of_plain=statistics.median(ours) / statistics.median(theirs),
        gradient_error_max=error,
    )


def _trainer(model: PreTrainedModel, config: StepBenchConfig, loss: str) -> Trainer:
    rules = MicroBatchLog()
    rules.change(config.rule, from_step=0)
    return make_trainer(
        model,
        _pipeline(loss),
        OptimizerConfig(learning_rate=1e-6),
        temperature=1.0,
        reference=ReferenceConfig() if loss in _NEEDS_REFERENCE else None,
        memory=StepMemory(precision=config.precision, states=config.memory.optimizer_states, rules=rules),
    )


def _pipeline(loss: str) -> LossPipeline:
    return LossPipeline.plain(build_loss(loss, max_completion_tokens=1024))


def _shortened(batch: Sequence[TrainingGroup]) -> list[TrainingGroup]:
    """The first group with one token for each completion."""
    first = batch[0]
    return [
        replace(
            first,
            completions=tuple(ids[:1] for ids in first.completions),
            behavior_logprobs=tuple(values[:1] for values in first.behavior_logprobs),
        )
    ]


def _gradients(model: PreTrainedModel) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]
