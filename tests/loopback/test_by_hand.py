"""The commands of a run by hand, as forks: init, learn, two joins from one home, board, Ctrl-C."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import RoleProcess, SwarmProcesses, lasting, rows, spools, wait_until
from tests.command_doc import json_keys
from tests.loopback.program import UNHURRIED

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

PLANNED = 400
"""Updates of the first start: more than are done before its Ctrl-C, however fast the machine is."""

AFTERWARDS = 8


def test_a_run_by_hand_with_ctrl_c_in_the_middle(warm_run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "terminals", forks=True)
    home, run = tmp_path / "home", shutil.copytree(warm_run, tmp_path / "runs" / "mine")
    record_everything(run)
    with swarm.running():
        learner = swarm.start("learner", "learn", str(run), "--updates", str(PLANNED), "--json", home=home)
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")
        wait_until(lambda: link.strip() in learner.log, seconds=30, what="the link in the terminal")
        first, second = (swarm.start(f"join-{n}", "join", link.strip(), *UNHURRIED, home=home) for n in (1, 2))
        port = _free_port()
        board = swarm.start("board", "board", str(run), "--port", str(port), home=home)
        wait_until(lambda: recorded_steps(run) >= 3, seconds=120, what="three updates")
        wait_until(lambda: _contributors(port) == 2, seconds=60, what="two people on the board")

        _ctrl_c(first, expected=130)
        assert "Ending after the current groups" in first.log
        swarm.start_again(first)
        _ctrl_c(learner, expected=130)
        at = recorded_steps(run)
        assert f"Stopped at step {at}." in learner.log
        assert 3 <= at < PLANNED
        _ctrl_c(second, expected=130, times=2)
        swarm.start_again(second)
        wait_until(lambda: {first.process.pid, second.process.pid} <= _at_work(home), seconds=60, what="two workers")
        more = ("--updates", str(at + AFTERWARDS), "--json")
        learner = swarm.start("learner-again", "learn", str(run), *more, home=home)

        assert learner.wait(180) == 0, learner.log[-2000:]
        document = next(json.loads(line) for line in reversed(learner.log.splitlines()) if line.startswith("{"))
        newest = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        assert json_keys("p2prl learn") <= set(document) == {"run", "target_updates", "finished", *newest}
        assert document["step"] == at + AFTERWARDS
        assert first.wait(60) == 9, first.log[-2000:]
        assert second.wait(60) == 9, second.log[-2000:]
        assert lasting((run / "link").read_text()) == lasting(link)
        assert _contributors(port) == 2
        _ctrl_c(board, expected=0)
        swarm.await_end(15)
    files = spools(home)
    assert len(files) == 2, "two workers under one home take two seats"
    account = audit_run(run, files)
    assert account.updates == at + AFTERWARDS
    assert account.rejected == 0
    assert account.policies_reproduced == account.versions
    states = {state for file in files for (state,) in rows(file, "SELECT DISTINCT state FROM groups")}
    # Groups in transit at the run's end stay undelivered; every delivered group has a final state.
    assert {"verified"} <= states <= {"verified", "generated"}, states


def _ctrl_c(role: RoleProcess, *, expected: int, times: int = 1) -> None:
    for _ in range(times):
        role.process.send_signal(signal.SIGINT)
    assert role.wait(60) == expected, role.log[-2000:]


def _at_work(home: Path) -> set[int]:
    """Processes that have written a status file in any worker folder."""
    return {int(json.loads(path.read_text())["pid"]) for path in home.glob("*/*/status.json")}


def _contributors(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/leaderboard", timeout=20) as answer:
        return int(json.load(answer)["total"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
