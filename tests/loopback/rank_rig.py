"""Two ranks for tests: this process and one follower, which loads models from directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from p2prl.learner.training.local_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.learner.training.weight_optimizer import OptimizerConfig
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.ranks import commands
from p2prl.ranks.processes import RankProcesses
from p2prl.ranks.sharded_engine import ShardedEngine

CPU = torch.device("cpu")
CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_updates=3)


def saved(model: Any, directory: Path) -> Path:
    """The directory of a model, with a tokenizer."""
    model.save_pretrained(directory)
    tiny_model().tokenizer.save_pretrained(directory)
    return directory


def batch_of(seed: int, model: Any, *, rewards: Sequence[Sequence[float]] = ()) -> list[TrainingGroup]:
    """Three groups of four completions of many lengths, sampled by policies near the model's."""
    generator = np.random.default_rng(seed)
    vocabulary = model.config.vocab_size
    groups = []
    for number in range(3):
        prompt = generator.integers(0, vocabulary, generator.integers(2, 9)).tolist()
        completions = [generator.integers(0, vocabulary, generator.integers(1, 12)).tolist() for _ in range(4)]
        with torch.no_grad():
            logprobs, _ = completion_logprobs(model, [prompt] * 4, completions, 1.0)
        near = (logprobs.numpy() + 0.1 * generator.standard_normal(logprobs.shape)).clip(max=-1e-3)
        behavior = [near[row, : len(ids)].tolist() for row, ids in enumerate(completions)]
        given = rewards[number] if rewards else (generator.integers(0, 3, 4) / 2).tolist()
        groups.append(training_group(prompt, completions, behavior, given, int(generator.integers(0, 4))))
    return groups


def trainer_of(model: Any, loss: LossPipeline, **options: Any) -> Trainer:
    """A trainer of one process."""
    return make_trainer(model, loss, options.pop("config", CONFIG), temperature=1.0, **_memory(options))


def single(
    directory: Path, loss: LossPipeline, *, first: Path | None = None, lora: LoraSpec | None = None, **options: Any
) -> Trainer:
    """A trainer of one process, from a directory."""
    model = load_policy(directory, first or directory, lora, device=CPU, dtype="float32").model
    return trainer_of(model, loss, **options)


def sharded(
    ranks: RankProcesses,
    directory: Path,
    loss: LossPipeline,
    *,
    zero: int = 2,
    first: Path | None = None,
    lora: LoraSpec | None = None,
    **options: Any,
) -> Trainer:
    """A trainer over ranks."""
    model = load_policy(directory, first or directory, lora, device=CPU, dtype="float32").model

    def engine(model: Any, settings: EngineSettings) -> ShardedEngine:
        load = commands.Load(
            weights=str(directory),
            first=str(first or directory),
            lora=lora,
            dtype="float32",
            attention="sdpa",
            zero=zero,
            settings=settings,
        )
        return ShardedEngine(model, ranks, load)

    return trainer_of(model, loss, engine=engine, **options)


def _memory(options: dict[str, Any]) -> dict[str, Any]:
    """Micro-batches of few tokens, so that a batch has several on each rank."""
    rules = MicroBatchLog()
    rules.change(
        MicroBatchRule(tokens=options.pop("tokens", 40), checkpointing=options.pop("remat", False)), from_step=0
    )
    return {"memory": StepMemory(rules=rules), "reference": options.pop("reference", None), **options}
