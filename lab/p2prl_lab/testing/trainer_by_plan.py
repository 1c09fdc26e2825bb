"""The trainer of a run for an audit of it: by the recorded plan of ranks of every update, as the learner had it.

Where a run went on under another plan, so does the trainer, through a checkpoint as a learner that starts again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from p2prl.config.new_run import RunFolder
from p2prl.learner.training.local_update_engine import LocalEngine, make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.memory_config import weight_dtype
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.optimizer_step import StepMemory, Trainer
from p2prl.learner.training.update_engine import EngineMaker, EngineSettings
from p2prl.models.base_model.local_base import load_policy

_CPU = torch.device("cpu")


class TrainerByPlan:
    """Trains a run's batches again. Ends with `close`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._rules = MicroBatchLog(folder.paths.micro_batches)
        memory = folder.settings.learner.memory
        self._precision = memory.precision_on("cpu", folder.manifest.engine_dtype)
        self._scratch = tempfile.TemporaryDirectory(prefix="p2prl-audit-")
        self._close_ranks: Callable[[], None] = lambda: None
        self._plan = self._rules.at(0).plan
        first = folder.directory / "model"
        self._tokenizer = load_policy(first, first, folder.manifest.lora, device=_CPU, dtype="float32").tokenizer
        self.trainer = self._made(first)
        """At the current step."""

    def at(self, step: int) -> Trainer:
        """The trainer for an update, which must be the next one."""
        assert self.trainer.step == step
        if (plan := self._rules.at(step).plan) != self._plan:
            checkpoint = Path(self._scratch.name) / f"step-{step}"
            self.trainer.save(checkpoint, self._tokenizer)
            self._close_ranks()
            self._plan = plan
            self.trainer = self._made(checkpoint)
            self.trainer.restore(checkpoint)
        return self.trainer

    def close(self) -> None:
        """End other ranks, and remove checkpoints."""
        self._close_ranks()
        self._scratch.cleanup()

    def _made(self, weights: Path) -> Trainer:
        folder, held_in = self._folder, weight_dtype(self._precision)
        lora = folder.manifest.lora
        loaded = load_policy(weights, folder.directory / "model", lora, device=_CPU, dtype=held_in)
        return make_trainer(
            loaded.model,
            LossPipeline(folder.loss_config()),
            folder.settings.learner.optimizer,
            temperature=folder.manifest.sampling.temperature,
            reference=folder.settings.loss.reference_config(),
            memory=StepMemory(
                precision=self._precision, states=folder.settings.learner.memory.optimizer_states, rules=self._rules
            ),
            engine=self._engine(weights, held_in),
        )

    def _engine(self, weights: Path, held_in: str) -> EngineMaker:
        parallel = replace(self._folder.settings.learner.parallel, plan=self._plan)
        if parallel.ranks == 1:
            self._close_ranks = lambda: None
            return LocalEngine
        from p2prl.ranks import commands  # here: most audited runs trained in one process
        from p2prl.ranks.processes import RankProcesses, meeting_folder
        from p2prl.ranks.sharded_engine import ShardedEngine

        ranks = RankProcesses(commands.Meeting(ranks=parallel.ranks, folder=str(meeting_folder()), threads=1))

        def close() -> None:
            ranks.group.close()
            ranks.close()

        self._close_ranks = close

        def engine(model: Any, settings: EngineSettings) -> ShardedEngine:
            load = commands.Load(
                weights=str(weights),
                first=str(self._folder.directory / "model"),
                lora=self._folder.manifest.lora,
                dtype=held_in,
                attention=self._folder.settings.learner.memory.attention,
                parallel=parallel,
                settings=settings,
            )
            return ShardedEngine(model, ranks, load)

        return engine


@contextmanager
def trainer_by_plan(folder: RunFolder) -> Iterator[TrainerByPlan]:
    """The trainer of a run until the end of the block, with one CPU thread in each process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = TrainerByPlan(folder)
    try:
        yield found
    finally:
        found.close()
        torch.set_num_threads(threads)
