"""The ranks benchmark: every plan trains one model on one batch, each in processes of its own, one after the other."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from p2prl.algorithms.loss_registry import LOSSES
from p2prl.bench.random_batches import random_batch
from p2prl.bench.random_models import SHAPES, VOCABULARY, random_model
from p2prl.bench.ranks.measurement import Job, Measured, largest_error, measure, within
from p2prl.errors import require
from p2prl.learner.training.memory_model import ModelShape, TrainingSetup, memory_needs, shape_of
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ONE_PROCESS, ParallelConfig
from p2prl.learner.training.policy_gradient import row_tokens
from p2prl.learner.training.training_group import TrainingGroup
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.small_models.tiny_models import character_tokenizer

_CLOSE = 1e-5
"""Distance within which words of two trainings are counted as equal."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class RanksBenchConfig:
    """One benchmark. It has this many fields because each is an option."""

    plans: tuple[str, ...] = ("dp2", "pp2")
    """Beside one process, which always runs first."""
    zero: int = 2
    model: str = "29m"
    vocabulary: int = VOCABULARY
    loss: str = "topr"
    groups: int = 4
    completions: int = 4
    tokens: int = 64
    micro_batch_tokens: int = 0
    """0 takes a quarter of the batch."""
    shares_micro_batches: bool = False
    """Whether each rank's micro-batches have its share of these tokens, so that all ranks together have as many at once
    as one process."""
    checkpointing: bool = False
    updates: int = 3
    threads: int = 1
    """Of each rank."""
    compares: bool = True
    """Compare gradients and weights, and train twice; takes memory and disk for a few models."""
    seed: int = 0

    def __post_init__(self) -> None:
        require("model", self.model, self.model in SHAPES, f"one of {', '.join(SHAPES)}")
        for name in ("vocabulary", "groups", "tokens", "updates", "threads"):
            require(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        require("completions", self.completions, self.completions >= 2, "2 or more, as rewards are compared")
        LOSSES.check(self.loss)
        _ = self.parallel

    @property
    def parallel(self) -> list[ParallelConfig]:
        """The plans, one process first."""
        names = [ONE_PROCESS, *(name for name in self.plans if name != ONE_PROCESS)]
        return [ParallelConfig(plan=name, zero=self.zero) for name in names]  # type: ignore[arg-type]

    def rule(self, parallel: ParallelConfig) -> MicroBatchRule:
        """The micro-batches of a plan."""
        tokens = self.micro_batch_tokens or self.groups * self.completions * self.tokens // 4
        shared = tokens // parallel.ranks if self.shares_micro_batches else tokens
        return MicroBatchRule(tokens=max(1, shared), checkpointing=self.checkpointing, plan=parallel.name)


@dataclass(frozen=True, kw_only=True)
class RanksRow:
    """Result of one plan. It has this many fields because each is a figure of the table."""

    plan: str
    zero: int
    model: str
    parameters: int
    loss: str
    batch: str
    """Groups x completions x tokens."""
    updates: int
    gradient_error_max: float | None
    """Largest difference of an entry from one process's gradient, divided by the largest entry."""
    words_within_1e5: float | None
    """Share of the weights that end within 1e-5 of one process's."""
    same_bytes: bool | None
    """Whether training a second time gave the same weights."""
    cpu_s: float
    """Processor seconds of rank 0 for an update."""
    cpu_s_of_single: float
    """The same as a share of one process's."""
    wall_s: float
    bytes_predicted: int
    """Of each rank, by the memory model."""
    bytes_counted: int
    """Peak of the rank that held most."""
    bytes_of_single: float
    """The same as a share of one process's."""


def run_ranks_bench(
    config: RanksBenchConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[RanksRow]:
    """One row for each plan."""
    tell = on_progress or (lambda *_: None)
    rows: list[RanksRow] = []
    with tempfile.TemporaryDirectory(prefix="p2prl-bench-") as folder:
        tell("a model and a batch", 0.0)
        shape, batch = _alone(_prepared, config, Path(folder) / "model")
        single: Measured | None = None
        for number, parallel in enumerate(config.parallel):
            tell(parallel.name, (number + 1) / (len(config.parallel) + 1))
            job = Job(
                parallel=parallel,
                model=Path(folder) / "model",
                batch=batch,
                loss=config.loss,
                rule=config.rule(parallel),
                updates=config.updates,
                threads=config.threads,
                compares=config.compares,
                results=Path(folder),
            )
            found = _alone(measure, job)
            single = single or found
            rows.append(_row(config, job, shape, found, single))
    return rows


def _row(config: RanksBenchConfig, job: Job, shape: ModelShape, found: Measured, single: Measured) -> RanksRow:
    error = close = None
    if found.gradient and found.weights and single.gradient and single.weights:
        error = largest_error(found.gradient, single.gradient)
        close = within(found.weights, single.weights, distance=_CLOSE)
    setup = TrainingSetup(replay_bytes=0, published_bytes=0, parallel=job.parallel)
    return RanksRow(
        plan=job.parallel.name,
        zero=job.parallel.zero,
        model=config.model,
        parameters=shape.parameters,
        loss=config.loss,
        batch=f"{config.groups} x {config.completions} x {config.tokens}",
        updates=config.updates,
        gradient_error_max=error,
        words_within_1e5=close,
        same_bytes=found.same_bytes,
        cpu_s=found.spent.cpu_s,
        cpu_s_of_single=found.spent.cpu_s / single.spent.cpu_s,
        wall_s=found.spent.wall_s,
        bytes_predicted=memory_needs(shape, setup, replace(job.rule, tokens=_largest_part(job))).total,
        bytes_counted=found.bytes_counted,
        bytes_of_single=found.bytes_counted / single.bytes_counted,
    )


def _largest_part(job: Job) -> int:
    """Tokens, padding included, of the largest micro-batch that the plan makes of the batch."""
    from p2prl.ranks.shares import split  # here, as all that ranks need

    lengths = [row_tokens((group.prompt_ids, ids)) for group in job.batch for ids in group.completions]
    parallel = job.parallel
    parts = split(lengths, tokens=job.rule.tokens, ranks=parallel.data, stages=parallel.pipeline)
    return max(len(part) * max(lengths[i] for i in part) for dealt in parts for part in dealt if part)


def _prepared(config: RanksBenchConfig, directory: Path) -> tuple[ModelShape, Sequence[TrainingGroup]]:
    """A batch, and the shape of a model that is written to a directory."""
    use_threads(config.threads)
    model = random_model(config.model, vocabulary=config.vocabulary, seed=config.seed)
    batch = random_batch(
        model,
        groups=config.groups,
        completions=config.completions,
        tokens=config.tokens,
        rule=config.rule(ParallelConfig()),
        seed=config.seed,
    )
    model.save_pretrained(directory)
    character_tokenizer("01").save_pretrained(directory)  # ranks load a model as a learner does
    return shape_of(model.config, sum(each.numel() for each in model.parameters())), batch


def _alone(work: Callable[..., _Result], *arguments: Any) -> _Result:
    """The result of a function in a process of its own, whose size and time are those of its work."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()
