"""Training steps: take a batch from the buffer, record it, train on it, log its metrics, and write checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from p2prl.learner.checkpoints import prune_checkpoints
from p2prl.learner.intake.staleness_buffer import RolloutBuffer
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.learning_watch import GroupSignal, LearningWatch
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.training.metrics_log import MetricsLog
from p2prl.learner.training.optimizer_step import Trainer, TrainingGroup
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training_stage import TrainingStage
from p2prl.learner.training_time import Activity

UpdateResult = tuple[dict[str, Any], tuple[str, ...]]
"""Metrics of an update, and its notices."""


class Training:
    """Takes groups from the buffer, trains on them behind a stage, and records it in the journal.

    Only jobs on the stage touch the trainer. Everything else runs in the main thread, which owns journal and buffer.
    """

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
        stage: TrainingStage,
    ) -> None:
        self._trainer = trainer
        self._tokenizer = tokenizer
        self._probation = probation
        self._storage = storage
        self._buffer = buffer
        self._log = log
        self._config = config
        self._stage = stage
        self._step = trainer.step
        self._watch = LearningWatch()

    @property
    def step(self) -> int:
        """Updates done and logged."""
        return self._step

    @property
    def busy(self) -> bool:
        """Whether a job runs on the training stage."""
        return self._stage.busy

    @property
    def model(self) -> Any:
        """The model, at the current step; only while the stage is not busy."""
        assert not self.busy
        return self._trainer.model

    def resume_at(self, step: int) -> None:
        """The trainer was restored to a checkpoint's step."""
        self._step = step

    def begin_update(self, figures: Mapping[str, Any], *, then: Callable[[list[VerifiedGroup], float], None]) -> None:
        """Train on groups of the buffer, if enough are fresh. `then` gets them and the seconds of the update.

        `figures` are the metrics of the other parts of the learner, logged with those of the update.
        """
        journal = self._storage.journal
        with journal.transaction():
            for stale in self._buffer.drop_stale(self.step):
                journal.groups.mark_unused(stale.digest)
            if len(self._buffer) < self._config.groups_per_update:
                return
            batch = self._buffer.take(self._config.groups_per_update, step=self.step)
            journal.batches.begin(self.step, [group.digest for group in batch])

        def done(result: UpdateResult) -> None:
            self._log_update(batch, result, {**figures, **self._stage.take_shares()})
            then(batch, self._stage.job_s)

        self._stage.run(Activity.UPDATE, self.update_of(batch), done)

    def train(self, batch: Sequence[VerifiedGroup], figures: Mapping[str, Any]) -> None:
        """Compute the update of a recorded batch at once and log it, after a start."""
        self._log_update(batch, self.update_of(batch)(), figures)

    def update_of(self, batch: Sequence[VerifiedGroup]) -> Callable[[], UpdateResult]:
        """The job that computes the update of a batch."""
        trainer, step = self._trainer, self.step
        trust = {peer: self._trust(peer) for peer in {group.peer for group in batch}}

        def update() -> UpdateResult:
            groups = [_training_group(group, step=step, trust=trust[group.peer]) for group in batch]
            metrics = trainer.update(groups)
            return metrics | {"staleness": sorted(group.staleness for group in groups)}, trainer.notices

        return update

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint every `checkpoint_every` updates."""
        if self.step % self._config.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write a checkpoint of this step unless there is one, then drop data needed only for earlier replays."""
        paths = self._storage.paths
        target = paths.checkpoint(self.step)
        if target.exists():
            return
        paths.checkpoints.mkdir(parents=True, exist_ok=True)

        def done(_: None) -> None:
            oldest_kept = prune_checkpoints(paths.checkpoints)
            with self._storage.journal.transaction():
                self._storage.journal.batches.forget_before(oldest_kept)

        self._stage.run(Activity.CHECKPOINT, lambda: self._trainer.save(target, self._tokenizer), done)

    def run_with_model(self, activity: Activity, work: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        """Run `work` on the model between two updates, on the training stage; `then` gets its result."""
        self._stage.run(activity, lambda: work(self._trainer.model), then)

    def waits_for(self, activity: Activity) -> None:
        """The reason why no job runs, for the metrics."""
        if not self.busy:
            self._stage.switch(activity)

    def finish(self, *, wait: bool = False) -> None:
        """Complete the jobs that have ended; with `wait`, all that were begun."""
        while self._stage.finish(wait=wait):
            pass

    def close(self) -> None:
        """Free the stage."""
        self._stage.close()

    def _log_update(self, batch: Sequence[VerifiedGroup], result: UpdateResult, figures: Mapping[str, Any]) -> None:
        self._step += 1
        metrics, notices = result
        signals = [_signal(group) for group in batch]
        warnings = self._watch.observe(signals, scorer_failures=int(figures.get("scorer_failures", 0)))
        document = metrics | {
            "groups": len(batch),
            "version": self._storage.version,
            "peers": len({group.peer for group in batch}),
            "ready_groups": len(self._buffer),
            **self._watch.figures,
            **self._buffer.figures,
            **figures,
        }
        self._log.add(self.step, document, (*notices, *warnings))

    def _trust(self, peer: bytes) -> float:
        """Trust of a peer at this step, 0 to 1, from how many of its groups were trained on before."""
        trained = self._storage.journal.batches.groups_trained(
            peer, before_step=self.step, most=self._probation.probation_groups
        )
        return self._probation.trust(trained)


def _signal(verified: VerifiedGroup) -> GroupSignal:
    rewards = np.frombuffer(verified.rewards, dtype="<f4").tolist()
    return GroupSignal(tuple(rewards), sum(not completion.finished for completion in verified.group.completions))


def _training_group(verified: VerifiedGroup, *, step: int, trust: float) -> TrainingGroup:
    """The group as the trainer reads it, for the update that starts at `step`."""
    completions = tuple(tuple(np.frombuffer(c.tokens, dtype="<u4").tolist()) for c in verified.group.completions)
    steps = _of_tokens(verified.step_rewards, completions) if verified.step_rewards else ()
    return TrainingGroup(
        prompt_ids=tuple(np.frombuffer(verified.group.prompt, dtype="<u4").tolist()),
        completions=completions,
        behavior_logprobs=_of_tokens(verified.behavior, completions),
        rewards=tuple(np.frombuffer(verified.rewards, dtype="<f4").tolist()),
        staleness=verified.staleness(step),
        trust=trust,
        step_rewards=steps,
    )


def _of_tokens(packed: bytes, completions: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
    """Packed float32 numbers of a group's tokens, by completion."""
    ends = np.cumsum([len(ids) for ids in completions])[:-1]
    return tuple(tuple(part.tolist()) for part in np.split(np.frombuffer(packed, dtype="<f4"), ends))
