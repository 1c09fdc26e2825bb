"""Learner watch of a run folder's board: the lock decides, the last report dates."""

from __future__ import annotations

from pathlib import Path

from p2prl.cli.commands.open_ledger import LearnerWatch
from p2prl.config.worker_folder import try_lock, write_status


def test_a_learner_is_offline_when_nothing_holds_its_lock(tmp_path: Path) -> None:
    lock = try_lock(tmp_path)
    assert lock is not None
    write_status(tmp_path / "status.json", {"time": 4e9})
    assert LearnerWatch(tmp_path)() is None
    lock.close()  # as the end of a process does, also after SIGKILL
    assert LearnerWatch(tmp_path)() == 4e9


def test_before_its_first_report_the_start_is_the_last_sign_of_life(tmp_path: Path) -> None:
    lock = try_lock(tmp_path)
    assert lock is not None
    lock.close()
    assert LearnerWatch(tmp_path)() == (tmp_path / "lock").stat().st_mtime
