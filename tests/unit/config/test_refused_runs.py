"""Removal of refused runs: nothing of the stranger's stays, and all of this machine's work does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from p2prl.client.spool import Spool, SpoolConfig
from p2prl.config.machine_limits import held_bytes
from p2prl.config.refused_runs import forgetting_refused
from p2prl.errors import ConfigError, MachineError, RefusedRunError


def fill(directory: Path, *, accepted: bool, groups: int = 0) -> None:
    (directory / "blobs" / "groups").mkdir(parents=True)
    (directory / "blobs" / ("ab" * 32 + ".part")).write_bytes(bytes(5_000))
    (directory / "status.json").write_text("{}")
    if accepted:
        (directory / "run.manifest").write_bytes(bytes(9))
    spool = Spool(directory / "spool.db", SpoolConfig())
    for slot in range(groups):
        spool.add(bytes([slot]) * 32, b"group", version=0, slot=slot, tokens=3, reward=0.0, now=1.0)
    spool.close()


def end(directory: Path, error: Exception | None) -> None:
    with forgetting_refused(directory):
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [ConfigError("cap"), MachineError("disk"), RefusedRunError("run"), None])
def test_a_run_that_was_never_accepted_leaves_nothing(tmp_path: Path, error: Exception | None) -> None:
    fill(tmp_path / "run", accepted=False)
    if error is None:
        end(tmp_path / "run", None)
    else:
        with pytest.raises(type(error)):
            end(tmp_path / "run", error)
    assert list(tmp_path.iterdir()) == []


def test_a_run_refused_later_leaves_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "run", accepted=True)
    with pytest.raises(RefusedRunError):
        end(tmp_path / "run", RefusedRunError("its learner broke a rule"))
    assert held_bytes(tmp_path) == 0


def test_other_errors_keep_an_accepted_run(tmp_path: Path) -> None:
    fill(tmp_path / "run", accepted=True)
    before = held_bytes(tmp_path)
    with pytest.raises(MachineError):
        end(tmp_path / "run", MachineError("the disk is full"))
    end(tmp_path / "run", None)
    assert held_bytes(tmp_path) == before


def test_finished_work_outlives_a_refused_run(tmp_path: Path) -> None:
    fill(tmp_path / "run", accepted=True, groups=2)
    with pytest.raises(RefusedRunError):
        end(tmp_path / "run", RefusedRunError("its learner broke a rule"))
    assert not (tmp_path / "run" / "blobs").exists()
    assert not (tmp_path / "run" / "run.manifest").exists()
    with sqlite3.connect(tmp_path / "run" / "spool.db") as spool:
        assert spool.execute("SELECT COUNT(*) FROM groups").fetchone() == (2,)
