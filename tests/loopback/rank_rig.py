"""Ranks for tests: this process and followers, which load models from directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.ranks import commands, processes
from p2prl.ranks.processes import RankProcesses, meeting_folder
from p2prl.ranks.sharded_engine import ShardedEngine
from p2prl_lab.testing.forked_roles import FORKING

CPU = torch.device("cpu")
TWO_RANKS = ParallelConfig(plan="dp2")
CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_updates=3)


@contextmanager
def started(count: int) -> Iterator[RankProcesses]:
    """This process and others, which are forks, with one thread each, until the end of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "subprocess", FORKING)
        met = RankProcesses(commands.Meeting(ranks=count, folder=str(meeting_folder()), threads=1))
    try:
        yield met
    finally:
        met.group.close()
        met.close()
        torch.set_num_threads(before)


def pipeline(loss: str = "gepo_t", **parts: Any) -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss(loss, max_completion_tokens=12), **parts))


def weights(of: Trainer, like: Any) -> NDArray[np.float32]:
    return np.frombuffer(bytes(of.engine.copy_weights(layout_of(like, "float32"))), dtype="<f4")


def gradient(of: Trainer) -> NDArray[np.float32]:
    """Of the batch pushed last, all weights one after the other."""
    engine = of.engine
    if isinstance(engine, ShardedEngine):
        parts = list(engine.gradients().values())
    else:
        parts = [parameter.grad for parameter in of.model.parameters()]
    return np.concatenate([part.numpy().reshape(-1) for part in parts])


def assert_close(found: NDArray[np.float32], wanted: NDArray[np.float32], *, updates: int) -> None:
    """Equal up to the order of sums, which Adam magnifies where a gradient is rounding noise."""
    off = np.abs(found - wanted)
    assert np.mean(off > 1e-5) <= 1e-4
    assert off.max() <= 0.1 * CONFIG.learning_rate * updates
    assert np.abs(wanted).max() > 0.01


def assert_gradients_agree(one: Trainer, two: Trainer, model: Any, *, losses: Sequence[str]) -> None:
    """For each of these losses."""
    rules = MicroBatchLog()
    rules.change(MicroBatchRule(tokens=40), from_step=0)
    batch = batch_of(3, model)
    for loss in losses:
        found = []
        for trainer in (one, two):
            this = Trainer(trainer.engine, pipeline(loss), CONFIG, rules=rules)
            estimate = this.gradient(batch)[2]
            found.append((gradient(trainer), float(estimate.loss.detach())))
            trainer.engine.forget()
        (wanted, loss_of_one), (got, loss_of_two) = found
        assert np.abs(got - wanted).max() <= 5e-6 * np.abs(wanted).max(), loss
        assert np.abs(wanted).max() > 0.0, loss
        assert loss_of_two == pytest.approx(loss_of_one, rel=1e-4, abs=1e-6), loss


def names_in(checkpoint: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    """Tensors of a checkpoint's files, with their shapes."""
    return {
        str(path.relative_to(checkpoint)): {name: tensor.shape for name, tensor in load_file(path).items()}
        for path in sorted(checkpoint.rglob("*.safetensors"))
    }


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
    dtype = weight_dtype(options.get("precision", "fp32"))
    model = load_policy(directory, first or directory, lora, device=CPU, dtype=dtype).model
    return trainer_of(model, loss, **options)


def sharded(
    ranks: RankProcesses,
    directory: Path,
    loss: LossPipeline,
    *,
    parallel: ParallelConfig = TWO_RANKS,
    first: Path | None = None,
    lora: LoraSpec | None = None,
    **options: Any,
) -> Trainer:
    """A trainer over ranks."""
    dtype = weight_dtype(options.get("precision", "fp32"))
    model = load_policy(directory, first or directory, lora, device=CPU, dtype=dtype).model

    def engine(model: Any, settings: EngineSettings) -> ShardedEngine:
        load = commands.Load(
            weights=str(directory),
            first=str(first or directory),
            lora=lora,
            dtype=dtype,
            attention="sdpa",
            parallel=parallel,
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
    precision = options.pop("precision", "fp32")
    return {
        "memory": StepMemory(precision=precision, rules=rules),
        "reference": options.pop("reference", None),
        **options,
    }
