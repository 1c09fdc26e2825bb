"""The life of an update: `Training.update` has it from the buffer to the checkpoint, in order.

The optimizer step itself is `Trainer.update`. After a crash the recorded batches are computed again (`resume`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from p2prl.learner.intake.intake import TURNED_AWAY, turned_away_figures
from p2prl.learner.intake.rollout_buffer import RolloutBuffer
from p2prl.learner.intake.verdict_checks import FIGURES
from p2prl.learner.intake.verified_group import VerifiedGroup, read_verified
from p2prl.learner.journal.kept_rollouts import KEPT_ROLLOUT_BYTES
from p2prl.learner.learner_config import LearnerConfig
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.training_stage import Activity, TrainingStage, Work
from p2prl.learner.training.checkpoints import newest_checkpoint, prune_checkpoints
from p2prl.learner.training.learning_watch import GroupSignal, LearningWatch
from p2prl.learner.training.metrics_log import MetricsLog
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.training_group import TrainingGroup
from p2prl.learner.training.update_engine import UpdateEngine
from p2prl.models.rewards.run_reward import Parts

UpdateResult = tuple[dict[str, object], tuple[str, ...]]
"""Metrics of an update, and its notices."""


class Training:
    """The trainer with what surrounds it: buffer, journal, metrics log and checkpoints.

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
        self._step = trainer.step
        self._watch = LearningWatch()
        self.stage = stage
        """Where the trainer computes."""

    @property
    def step(self) -> int:
        """Updates done and logged."""
        return self._step

    @property
    def model(self) -> Any:
        """The model, at the current step; only while the stage is not busy."""
        assert not self.stage.busy
        return self._trainer.model

    @property
    def engine(self) -> UpdateEngine:
        """Its weights, at the current step; only while the stage is not busy."""
        assert not self.stage.busy
        return self._trainer.engine

    def check(self) -> None:
        """Raise `ProcessLostError` if a process that the updates need has ended, also while the stage is busy."""
        self._trainer.engine.check()

    def close(self) -> None:
        """Free the thread and end those processes."""
        self.stage.close()
        self._trainer.engine.close()

    def update(
        self,
        figures: Mapping[str, object],
        *,
        on_updated: Callable[[list[VerifiedGroup], float, Mapping[str, float]], None],
    ) -> Work:
        """One update, if enough groups are fresh. At each `yield` the training thread computes, and the main thread
        answers messages and checks groups meanwhile.

        `figures` are the metrics of the other parts of the learner, logged with those of the update. `on_updated` gets
        the batch, the seconds of the step, and where the training thread's time since the last update went: the next
        update, the next replays and standby follow from them.
        """
        journal, count = self._storage.journal, self._config.groups_per_update
        with journal.transaction():
            # Groups that have grown too stale leave the buffer. They are credited all the same.
            for stale in self._buffer.drop_stale(self.step):
                journal.groups.mark_unused(stale.digest)
            if len(self._buffer) < count:
                return
            # The batch is on disk before it is trained on: a crash from here on repeats this very update.
            batch = self._buffer.take(count, step=self.step)
            journal.batches.begin(self.step, [group.digest for group in batch])

        # One optimizer step: log-probs, advantages, loss, gradient, clipping, AdamW.
        result = yield Activity.UPDATE, self.step_of(batch)
        seconds = self.stage.job_s

        # One line in metrics.jsonl, and warnings about runs that learn nothing.
        shares = self.stage.take_shares()
        self._log_update(batch, result, {**figures, **shares})
        on_updated(batch, seconds, shares)

        # The weights and the optimizer's state every `checkpoint_every` updates. Until then a crash costs time alone.
        # A version is published from here by the next turn, when the schedule says so (`Learner.turn`).
        if self.step % self._config.checkpoint_every == 0:
            yield from self.checkpoint()

    def checkpoint(self) -> Work:
        """Write a checkpoint of this step unless there is one, then drop groups that neither a restart nor
        `p2prl rollouts` needs."""
        paths = self._storage.paths
        target = paths.checkpoint(self.step)
        if target.exists():
            return
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        yield Activity.CHECKPOINT, partial(self._trainer.save, target, self._tokenizer)
        oldest_kept = prune_checkpoints(paths.checkpoints)
        with self._storage.journal.transaction():
            self._storage.journal.batches.forget_before(oldest_kept, keep_bytes=KEPT_ROLLOUT_BYTES)

    def resume(self, on_notice: Callable[[str], None]) -> None:
        """Bring the trainer to the exact step the run had reached, and load the policy versions of the window: restore
        the newest checkpoint, then compute the batches recorded after it again.

        The trainer's model must already hold the weights of the newest checkpoint.
        """
        storage, trainer = self._storage, self._trainer
        if (checkpoint := newest_checkpoint(storage.paths.checkpoints)) is not None:
            trainer.restore(checkpoint)
            self._step = trainer.step
        if lost := storage.restore_published(trainer.step):
            on_notice(
                f"the weights of {len(lost)} of the versions {lost[0]} to {lost[-1]} are missing or damaged on this"
                " disk: groups sampled with them count as too stale"
            )
        figures = turned_away_figures(dict.fromkeys(TURNED_AWAY, 0)) | dict.fromkeys(FIGURES, 0)
        figures |= {"publish_every": storage.manifest.publish_every, "pause_s": 0.0}
        replayed = 0
        while (digests := storage.journal.batches.at_step(trainer.step)) is not None:
            found = [read_verified(stored, storage.published) for stored in storage.journal.groups.by_digest(digests)]
            batch = [group for group in found if group is not None]
            assert len(batch) == len(found), "a batch holds only groups of published policies"
            self._log_update(batch, self.step_of(batch)(), figures)
            replayed += 1
        if trainer.step:
            since = f"replayed {replayed} updates since the last checkpoint: " if replayed else ""
            on_notice(f"{since}resuming at step {trainer.step}")

    def step_of(self, batch: Sequence[VerifiedGroup]) -> Callable[[], UpdateResult]:
        """The job that takes the optimizer step of a batch. What it needs of the journal is read now."""
        trainer, step = self._trainer, self.step
        trust = {peer: self._trust(peer) for peer in {group.peer for group in batch}}

        def update() -> UpdateResult:
            groups = [_training_group(group, step=step, trust=trust[group.peer]) for group in batch]
            metrics = trainer.update(groups)
            return metrics | {"staleness": sorted(group.staleness for group in groups)}, trainer.notices

        return update

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
            **rewards_by_task((group.group.task, signal.rewards) for group, signal in zip(batch, signals, strict=True)),
            **rewards_by_part((group.group.task, parts) for group in batch for parts in group.parts),
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


def rewards_by_task(groups: Iterable[tuple[str, Sequence[float]]]) -> dict[str, float]:
    """Mean and standard deviation of the rewards of each task's completions, as keys of the metrics log."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for task, rewards in groups:
        found[task].extend(rewards)
    figures: dict[str, float] = {}
    for task, rewards in found.items():
        figures |= {f"reward/{task}/mean": fmean(rewards), f"reward/{task}/std": pstdev(rewards)}
        figures[f"reward/{task}/completions"] = len(rewards)
    return figures


def rewards_by_part(completions: Iterable[tuple[str, Parts]]) -> dict[str, float]:
    """Mean and standard deviation of what each part added to the rewards of a task, where it has several parts."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for task, parts in completions:
        if len(parts) > 1:
            for name, value in parts.items():
                if value is not None:
                    found[task, name].append(value)
    figures: dict[str, float] = {}
    for (task, name), values in found.items():
        figures |= {f"reward/{task}/{name}/mean": fmean(values), f"reward/{task}/{name}/std": pstdev(values)}
    return figures


def _signal(verified: VerifiedGroup) -> GroupSignal:
    rewards = np.frombuffer(verified.rewards, dtype="<f4").tolist()
    return GroupSignal(tuple(rewards), sum(not completion.finished for completion in verified.group.completions))


def _training_group(verified: VerifiedGroup, *, step: int, trust: float) -> TrainingGroup:
    """The group as the trainer reads it, for the update that starts at `step`: views of its bytes."""
    completions = tuple(np.frombuffer(completion.tokens, dtype="<u4") for completion in verified.group.completions)
    ends = np.cumsum([len(ids) for ids in completions])
    steps = verified.step_rewards
    return TrainingGroup(
        prompt_ids=np.frombuffer(verified.group.prompt, dtype="<u4"),
        completions=completions,
        behavior_logprobs=tuple(np.split(np.frombuffer(verified.behavior, dtype="<f4"), ends[:-1])),
        rewards=np.frombuffer(verified.rewards, dtype="<f4"),
        staleness=verified.staleness(step),
        trust=trust,
        step_rewards=tuple(np.split(np.frombuffer(steps, dtype="<f4"), ends[:-1])) if steps else (),
        cut_off=tuple(not completion.finished for completion in verified.group.completions),
    )
