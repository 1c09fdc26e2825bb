"""Paths of the files a learner keeps in its run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LearnerPaths:
    """Paths under one run folder."""

    run: Path

    @property
    def journal(self) -> Path:
        """SQLite file of groups, batches, policy manifests and the ledger."""
        return self.run / "journal.db"

    @property
    def blobs(self) -> Path:
        """Published weights and patches."""
        return self.run / "blobs"

    @property
    def checkpoints(self) -> Path:
        """Checkpoint directories by step."""
        return self.run / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Checkpoint directory of a step."""
        return self.checkpoints / f"step-{step:08d}"

    @property
    def following(self) -> Path:
        """The copy that a standby learner fetches, and whether one keeps step."""
        return self.run / "following"

    @property
    def standby(self) -> Path:
        """On the machine of a standby learner: what it follows with, and the copies that it holds."""
        return self.run / "standby"

    @property
    def metrics(self) -> Path:
        """One JSON object per update."""
        return self.run / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One JSON object per evaluated version."""
        return self.run / "evaluations.jsonl"

    @property
    def noise_baselines(self) -> Path:
        """Measured noise of the engines that groups came from."""
        return self.run / "noise.json"

    @property
    def micro_batches(self) -> Path:
        """Micro-batch rules by step."""
        return self.run / "micro-batches.jsonl"
