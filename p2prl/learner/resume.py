"""Resume a run after a start: restore the newest checkpoint, then replay the batches recorded after it."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.learner.checkpoints import newest_checkpoint
from p2prl.learner.intake.intake import TURNED_AWAY, turned_away_figures
from p2prl.learner.intake.verdict_checks import FIGURES
from p2prl.learner.intake.verified_group import read_verified
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training_steps import Training


def resume(storage: LearnerStorage, trainer: Trainer, training: Training, on_notice: Callable[[str], None]) -> None:
    """Bring the trainer to the exact step the run had reached, and load the policy versions of the window.

    The trainer's model must already hold the weights of the newest checkpoint.
    """
    checkpoint = newest_checkpoint(storage.paths.checkpoints)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        training.resume_at(trainer.step)
    if lost := storage.restore_published(trainer.step):
        on_notice(
            f"the weights of {len(lost)} of the versions {lost[0]} to {lost[-1]} are missing or damaged on this disk:"
            " groups sampled with them count as too stale"
        )
    figures = turned_away_figures(dict.fromkeys(TURNED_AWAY, 0)) | dict.fromkeys(FIGURES, 0)
    figures |= {"publish_every": storage.manifest.publish_every, "pause_s": 0.0}
    replayed = 0
    while (digests := storage.journal.batches.at_step(trainer.step)) is not None:
        batch = [read_verified(stored, storage.published) for stored in storage.journal.groups.by_digest(digests)]
        policies_known = [group for group in batch if group is not None]
        assert len(policies_known) == len(batch), "a batch holds only groups of published policies"
        training.train(policies_known, figures)
        replayed += 1
    if trainer.step:
        since = f"replayed {replayed} updates since the last checkpoint: " if replayed else ""
        on_notice(f"{since}resuming at step {trainer.step}")
