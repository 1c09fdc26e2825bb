"""Metrics log: one line per update, written once, also after a crash."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import MachineError
from p2prl.learner.timing.next_update import Action
from tests.unit.learner.scripted_swarm import UPDATES, ScriptedSwarm, fresh_runs, metrics_lines, run_through
from tests.unit.learner.small_run import SmallRun


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def test_truncated_line_is_written_again(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    while swarm.learner.step < 2:
        swarm.turn()
    path = small_run.directory / "metrics.jsonl"
    complete = path.read_text()
    path.write_text(complete[:-20])
    swarm.restart()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["loss"] == json.loads(complete.splitlines()[1])["loss"]
    swarm.learner.close()


def test_full_disk_loses_nothing(fresh: Callable[[str], SmallRun], monkeypatch: pytest.MonkeyPatch) -> None:
    straight, _, _ = run_through(fresh("straight"), None)
    small_run = fresh("full")
    swarm = ScriptedSwarm(small_run)
    while swarm.learner.step < 2:
        swarm.turn()
    honest = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return honest(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(MachineError, match="No space left") as caught:
            list(iter(swarm.turn, Action.FINISH))
    assert "Free some space" in caught.value.remedy
    swarm.restart()
    while swarm.turn() is not Action.FINISH:
        pass
    assert swarm.weights() == straight
    lines = metrics_lines(small_run)
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    swarm.learner.close()
