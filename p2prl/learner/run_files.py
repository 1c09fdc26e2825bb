"""A learner's files: where they lie, which checkpoints are whole, how far the metrics reach."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

_CHECKPOINTS_KEPT = 2
"""Checkpoints on disk: the newest, and the one before in case the disk fails while the newest is written."""


@dataclass(frozen=True, slots=True)
class LearnerPaths:
    """Where a run lives."""

    run: Path

    @property
    def journal(self) -> Path:
        """Groups, batches, manifests and ledger."""
        return self.run / "journal.db"

    @property
    def blobs(self) -> Path:
        """Published weights."""
        return self.run / "blobs"

    @property
    def checkpoints(self) -> Path:
        """Model directories by step."""
        return self.run / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The model directory of a step."""
        return self.checkpoints / f"step-{step:08d}"

    @property
    def metrics(self) -> Path:
        """One JSON object per update."""
        return self.run / "metrics.jsonl"


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    found = complete_checkpoints(checkpoints)
    return found[-1] if found else None


def complete_checkpoints(checkpoints: Path) -> list[Path]:
    """Checkpoints of a run, oldest first, without one that a crash left unfinished."""
    return sorted(path for path in checkpoints.glob("step-*") if path.suffix != ".new")


def prune_checkpoints(checkpoints: Path) -> int:
    """Remove all but the newest checkpoints; the step of the oldest one kept."""
    found = complete_checkpoints(checkpoints)
    for old in found[:-_CHECKPOINTS_KEPT]:
        shutil.rmtree(old)
    return int(found[-_CHECKPOINTS_KEPT:][0].name.removeprefix("step-"))


def last_logged_step(metrics: Path) -> int:
    """The last update in a metrics file, after cutting off a line that a crash left unfinished."""
    if not metrics.exists():
        return 0
    data = metrics.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        metrics.write_bytes(whole)
    lines = whole.splitlines()
    return int(json.loads(lines[-1])["step"]) if lines else 0
