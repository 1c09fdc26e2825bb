"""One plan's measurement, in a process of its own that is rank 0: its gradient, its weights, its time and memory."""

from __future__ import annotations

import gc
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from p2prl.algorithms.loss_registry import build_loss
from p2prl.bench.device_time import CPU, Spent, timed
from p2prl.learner.training.local_update_engine import LocalEngine, make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.training_group import TrainingGroup
from p2prl.learner.training.update_engine import EngineSettings, UpdateEngine
from p2prl.models.base_model.local_base import load_policy
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.weights.layout import layout_of

if TYPE_CHECKING:
    from p2prl.ranks.processes import RankProcesses

LEARNING_RATE = 1e-4
"""Large enough for weights to move by more than the difference that is counted."""

_POLL_S = 0.005


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process measures."""

    parallel: ParallelConfig
    model: Path
    """A directory."""
    batch: Sequence[TrainingGroup]
    loss: str
    rule: MicroBatchRule
    updates: int
    threads: int
    compares: bool
    """Also keep gradient and weights, and train a second time."""
    results: Path
    """A directory for gradient and weights."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Figures of a plan."""

    spent: Spent
    """Of rank 0 for an update, the median."""
    bytes_counted: int
    """Peak of the rank that held most, beyond what it held before it loaded the model."""
    same_bytes: bool | None
    """Whether two trainings had the same weights; None unless it compared."""
    gradient: Path | None
    weights: Path | None


def measure(job: Job) -> Measured:
    """Train by a plan, in this process and those it starts."""
    use_threads(job.threads)
    if job.parallel.ranks == 1:
        return _measured(job, None)
    from p2prl.ranks import commands  # here: a process alone needs no collectives
    from p2prl.ranks.processes import RankProcesses, meeting_folder

    folder = str(meeting_folder())
    ranks = RankProcesses(commands.Meeting(ranks=job.parallel.ranks, folder=folder, threads=job.threads))
    try:
        return _measured(job, ranks)
    finally:
        ranks.close()


def _measured(job: Job, ranks: RankProcesses | None) -> Measured:
    with _peak() as peak:
        trainer = _trainer(job, ranks)
        gradient = weights = None
        if job.compares:
            trainer.gradient(job.batch)
            gradient = _kept(_gradient(trainer), job, "gradient")
            trainer.engine.forget()
        trainer.update(_first_group(job))
        spent = [timed(lambda: trainer.update(job.batch), CPU) for _ in range(job.updates)]
    same = None
    if job.compares:
        found = _weights(trainer)
        weights = _kept(found, job, "weights")
        del trainer
        again = _trainer(job, ranks)
        again.update(_first_group(job))
        for _ in range(job.updates):
            again.update(job.batch)
        same = np.array_equal(_weights(again), found)
    return Measured(
        spent=Spent(
            cpu_s=statistics.median(each.cpu_s for each in spent),
            wall_s=statistics.median(each.wall_s for each in spent),
        ),
        bytes_counted=max(peak),
        same_bytes=same,
        gradient=gradient,
        weights=weights,
    )


def _first_group(job: Job) -> Sequence[TrainingGroup]:
    """A first, short update: the optimizer's state begins with it, and is part of every later peak."""
    return job.batch[:1]


def _trainer(job: Job, ranks: RankProcesses | None) -> Trainer:
    rules = MicroBatchLog()
    rules.change(job.rule, from_step=0)

    def engine(model: Any, settings: EngineSettings) -> UpdateEngine:
        if ranks is None:
            return LocalEngine(model, settings)
        from p2prl.ranks import commands
        from p2prl.ranks.sharded_engine import ShardedEngine

        load = commands.Load(
            weights=str(job.model),
            first=str(job.model),
            lora=None,
            dtype="float32",
            attention="sdpa",
            parallel=job.parallel,
            settings=settings,
        )
        return ShardedEngine(model, ranks, load)

    return make_trainer(
        load_policy(job.model, job.model, None, device=CPU, dtype="float32").model,
        LossPipeline.plain(build_loss(job.loss, max_completion_tokens=1024)),
        OptimizerConfig(learning_rate=LEARNING_RATE, warmup_updates=0),
        temperature=1.0,
        memory=StepMemory(rules=rules),
        engine=engine,
    )


def _gradient(trainer: Trainer) -> NDArray[np.float32]:
    engine = trainer.engine
    if isinstance(engine, LocalEngine):
        parts = [parameter.grad for parameter in trainer.model.parameters()]
    else:
        parts = list(engine.gradients().values())  # type: ignore[attr-defined]
    return np.concatenate([part.numpy().reshape(-1) for part in parts])


def _weights(trainer: Trainer) -> NDArray[np.float32]:
    layout = layout_of(trainer.model, "float32")
    return np.frombuffer(trainer.engine.copy_weights(layout), dtype="<f4")


def _kept(values: NDArray[np.float32], job: Job, name: str) -> Path:
    path = job.results / f"{job.parallel.name}-{job.parallel.zero}-{name}.npy"
    np.save(path, values)
    return path


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Most bytes that this process and each it has started hold within the block, beyond those held now."""
    gc.collect()
    this = psutil.Process()
    processes = [this, *this.children()]
    before = [process.memory_info().rss for process in processes]
    most = [0] * len(processes)
    done = threading.Event()

    def poll() -> None:
        while not done.wait(_POLL_S):
            for number, process in enumerate(processes):
                most[number] = max(most[number], process.memory_info().rss - before[number])

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield most
    finally:
        done.set()
        poller.join()


def within(found: Path, wanted: Path, *, distance: float) -> float:
    """Share of words that are within a distance."""
    off = np.abs(np.load(found, mmap_mode="r") - np.load(wanted, mmap_mode="r"))
    return float(np.mean(off <= distance))


def largest_error(found: Path, wanted: Path) -> float:
    """Largest difference of two gradients, divided by the largest entry of the one wanted."""
    reference = np.load(wanted, mmap_mode="r")
    return float(np.abs(np.load(found, mmap_mode="r") - reference).max() / np.abs(reference).max())
