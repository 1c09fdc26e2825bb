"""Training steps: take a batch from the buffer, record it, train on it, log its metrics, and write checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from p2prl.learner.checkpoints import prune_checkpoints
from p2prl.learner.intake.staleness_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.training.metrics_log import MetricsLog
from p2prl.learner.training.optimizer_step import Trainer, TrainingGroup
from p2prl.learner.training.probation import ProbationConfig


class Training:
    """Takes groups from the buffer, trains on them and records it in the journal."""

    def __init__(
        self,
        *,
        trainer: Trainer,
        tokenizer: Any,
        probation: ProbationConfig,
        storage: LearnerStorage,
        buffer: RolloutBuffer,
        log: MetricsLog,
        config: LearnerConfig,
    ) -> None:
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._probation = probation
        self._storage = storage
        self._buffer = buffer
        self._log = log
        self._config = config

    @property
    def step(self) -> int:
        """Updates done."""
        return self._trainer.step

    @property
    def model(self) -> Any:
        """The model, at the current step."""
        return self._trainer.model

    def take_step(self, figures: Mapping[str, Any]) -> list[VerifiedGroup]:
        """Train on the oldest groups in the buffer; returns them, or nothing when too few are fresh enough.

        `figures` are the metrics of the other parts of the learner, logged with those of the update.
        """
        journal = self._storage.journal
        with journal.transaction():
            for stale in self._buffer.drop_stale(self.step):
                journal.groups.mark_unused(stale.digest)
            if len(self._buffer) < self._config.groups_per_update:
                return []
            batch = self._buffer.take(self._config.groups_per_update)
            journal.batches.begin(self.step, [group.digest for group in batch])
        self.train(batch, figures)
        return batch

    def train(self, batch: Sequence[VerifiedGroup], figures: Mapping[str, Any]) -> None:
        """Compute the update of a recorded batch and log it."""
        groups = [_training_group(group, step=self.step, trust=self._trust(group.peer)) for group in batch]
        metrics = self._trainer.update(groups) | {
            "groups": len(batch),
            "version": self._storage.version,
            "peers": len({group.peer for group in batch}),
            "ready_groups": len(self._buffer),
            "staleness": sorted(group.staleness for group in groups),
            **figures,
        }
        self._log.add(self.step, metrics, self._trainer.notices)

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint every `checkpoint_every` updates."""
        if self.step % self._config.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of this step unless there is one, and drop data needed only for earlier replays."""
        paths = self._storage.paths
        target = paths.checkpoint(self.step)
        if target.exists():
            return
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        self._trainer.save(target, self._tokenizer)
        oldest_kept = prune_checkpoints(paths.checkpoints)
        with self._storage.journal.transaction():
            self._storage.journal.batches.forget_before(oldest_kept)

    def _trust(self, peer: bytes) -> float:
        """Trust of a peer at this step, 0 to 1, from how many of its groups were trained on before."""
        trained = self._storage.journal.batches.groups_trained(
            peer, before_step=self.step, most=self._probation.probation_groups
        )
        return self._probation.trust(trained)


def _training_group(verified: VerifiedGroup, *, step: int, trust: float) -> TrainingGroup:
    """The group as the trainer reads it, for the update that starts at `step`."""
    completions = tuple(tuple(np.frombuffer(c.tokens, dtype="<u4").tolist()) for c in verified.group.completions)
    behavior = np.frombuffer(verified.behavior, dtype="<f4")
    splits = np.split(behavior, np.cumsum([len(ids) for ids in completions])[:-1])
    return TrainingGroup(
        prompt_ids=tuple(np.frombuffer(verified.group.prompt, dtype="<u4").tolist()),
        completions=completions,
        behavior_logprobs=tuple(tuple(part.tolist()) for part in splits),
        rewards=tuple(np.frombuffer(verified.rewards, dtype="<f4").tolist()),
        staleness=verified.staleness(step),
        trust=trust,
    )
