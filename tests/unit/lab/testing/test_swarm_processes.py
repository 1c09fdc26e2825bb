"""Limits on real processes: what only ends a hang has patience, a promise to users has none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p2prl_lab.testing.swarm_processes import EXACTLY, PATIENCE, SwarmProcesses, wait_until


def test_processes_that_are_left_fail_the_promise_at_its_moment(tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path)
    with swarm.running():
        lasting = swarm.start("lasting", module="http.server")
        began = time.monotonic()
        with pytest.raises(AssertionError, match=r"an end of every process: not within 0\.2 s"):
            swarm.await_end(0.2)
        assert time.monotonic() - began >= 0.2
        lasting.process.kill()
        lasting.process.wait()
        swarm.await_end(5)


def test_a_limit_that_ends_what_hangs_is_longer_on_slow_machines() -> None:
    moment = 0.0

    def later() -> bool:
        nonlocal moment
        moment += 0.5
        return moment > PATIENCE - 1.0

    assert wait_until(later, seconds=1.0, what="it", clock=lambda: moment)
    moment = 0.0
    with pytest.raises(AssertionError, match=r"it: not within 1 s"):
        wait_until(later, seconds=1.0, what="it", patience=EXACTLY, clock=lambda: moment)
