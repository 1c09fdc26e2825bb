"""Checkpoint directories on disk: the newest complete one, and removal of old ones. Needs no torch."""

from __future__ import annotations

import shutil
from pathlib import Path

_CHECKPOINTS_KEPT = 2
"""Checkpoints kept on disk: the newest, and the one before in case writing the newest fails."""


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    found = complete_checkpoints(checkpoints)
    return found[-1] if found else None


def newest_checkpoint_step(checkpoints: Path) -> int:
    """Step of the newest complete checkpoint; 0 before the first."""
    newest = newest_checkpoint(checkpoints)
    return 0 if newest is None else _step(newest)


def complete_checkpoints(checkpoints: Path) -> list[Path]:
    """Checkpoints of a run, oldest first, without one that a crash left unfinished."""
    return sorted(path for path in checkpoints.glob("step-*") if path.suffix != ".new")


def prune_checkpoints(checkpoints: Path) -> int:
    """Remove all but the newest checkpoints; returns the step of the oldest one kept."""
    found = complete_checkpoints(checkpoints)
    for old in found[:-_CHECKPOINTS_KEPT]:
        shutil.rmtree(old)
    return _step(found[-_CHECKPOINTS_KEPT:][0])


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))
