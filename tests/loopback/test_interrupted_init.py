"""`p2prl init` that is ended in the middle, by Ctrl-C, a service or a closed terminal, leaves nothing behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from p2prl_lab.testing.swarm_processes import SwarmProcesses, wait_until

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(300)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_init_that_is_ended_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    runs, temporary = tmp_path / "runs", tmp_path / "temporary"
    temporary.mkdir()
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    with swarm.running():
        own = {"TMPDIR": str(temporary)}
        role = swarm.start("init", "init", "mine", "--preset", "chain4", "--in", str(runs), variables=own)
        wait_until(lambda: list(runs.glob(".mine.new-*")), seconds=60, what="a run in the making")
        assert list(temporary.glob("p2prl-init-*"))
        role.process.send_signal(number)
        assert role.wait(60) == 130, role.log
    assert "Traceback" not in role.log
    assert not list(temporary.iterdir())
    assert not runs.exists()
