"""Promotion: the newest whole copy of a standby learner becomes the run folder.

The plan is on disk before the first file moves, and each step may be done again, so a promotion that was killed goes on
when it is asked for again. Until it is done the folder cannot be trained.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError, MachineError
from p2prl.learner.following.followed import promise_quiet_start
from p2prl.learner.following.heard_heads import Heard, read_heard
from p2prl.learner.following.held_copies import HeldCopy, newest_held, pieces_lacking
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.plain_text import counted

_PROMOTING = "promoting"

_OF_THE_RUN = ("blobs/**/*", "checkpoints/**/*", "journal.db*", "*.jsonl", "noise.json")
"""What only a learner writes; anything else in the folder is the owner's, and stays."""


@dataclass(frozen=True, slots=True)
class Promotion:
    """A promotion that was begun, or may be."""

    copy: HeldCopy
    heard: Heard
    is_begun: bool

    @property
    def fault(self) -> str:
        """Why the copy is no place to go on from; empty when it is one."""
        head, heard = self.copy.head, self.heard
        missing = []
        if heard.version > head.version:
            missing.append(f"version {heard.version:,} (here: {head.version:,})")
        if heard.height > head.height:
            missing.append(f"{counted(heard.height - head.height, 'ledger entry', 'ledger entries')}")
        return " and ".join(missing)


def is_standby(paths: LearnerPaths) -> bool:
    """Whether a folder follows a learner, and has not been promoted."""
    return paths.standby.is_dir()


def refuse_standby(paths: LearnerPaths) -> None:
    """Raise `ConfigError` when a folder that follows a learner is to be trained or served."""
    if is_standby(paths):
        raise ConfigError(
            f"{paths.run} is the folder of a standby learner, which follows the run's learner",
            remedy=f"Once that machine is gone for good: p2prl promote {paths.run}",
        )


def plan_promotion(paths: LearnerPaths) -> Promotion:
    """What a promotion of this folder would go on from. Raises `ConfigError` when there is nothing to promote."""
    if not is_standby(paths):
        raise ConfigError(
            f"{paths.run} does not follow a learner",
            remedy=f"p2prl learn {paths.run} trains it. A standby learner is started with --standby beside that.",
        )
    copy = newest_held(paths)
    if copy is None:
        raise ConfigError(
            f"nothing of the run has been followed to {paths.run} yet",
            remedy="The standby learner says so once it holds a copy. Without one, only a copy of the learner's folder"
            " helps.",
        )
    is_begun = (paths.standby / _PROMOTING).exists()
    return Promotion(copy, read_heard(paths.standby / "heard.json"), is_begun)


def promote(paths: LearnerPaths, promotion: Promotion) -> None:
    """Make the copy the run folder. Raises `MachineError` when the disk has damaged it, or cannot be written."""
    copy = promotion.copy
    if not promotion.is_begun and (damaged := pieces_lacking(copy)):
        raise MachineError(
            f"the disk has damaged the copy: {damaged[0]} differs from what was followed",
            remedy="If the learner can still be started, let the standby learner follow it again; check the disk.",
        )
    try:
        replace_file(paths.standby / _PROMOTING, b"", private=True)
        _clear(paths.run, copy)
        for file in copy.listed.files:
            source, target = copy.folder / file.path, paths.run / file.path
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, target)
        promise_quiet_start(paths)
        _sync_folders(paths.run)
        # Last, and in one step: from then on the folder is a learner's.
        done = paths.run / ".standby.done"
        shutil.rmtree(done, ignore_errors=True)
        paths.standby.rename(done)
        shutil.rmtree(done, ignore_errors=True)
    except OSError as error:
        raise write_error(error, paths.run, kept="p2prl promote goes on where it was") from error


def _clear(run: Path, copy: HeldCopy) -> None:
    """Remove files of an older copy of the run folder that this one does not have: they would be taken for the
    run's."""
    listed = {file.path for file in copy.listed.files}
    for pattern in _OF_THE_RUN:
        for path in run.glob(pattern):
            if path.is_file() and path.relative_to(run).as_posix() not in listed:
                path.unlink()


def _sync_folders(run: Path) -> None:
    for folder, _, _ in os.walk(run):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
