"""The lab of home networks on this machine: real TCP between homes behind its routers, and nothing left behind.

Skipped, with the lab's own reason, where the system permits no namespaces.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from p2prl_lab.testing.swarm_processes import MARK, SwarmProcesses, wait_until

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

_LAB = (sys.executable, "-m", "p2prl_lab.nat_lab")
_PROGRAM = (*_LAB, "--case", "meeting")


def lab_report(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([*_LAB, *arguments, "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    if not report["permitted"]:
        pytest.skip(report["reason"])
    assert report["nat"] == "kernel"
    return report


def test_homes_meet_as_their_routers_permit() -> None:
    report = lab_report("--case", "meeting")
    assert len(report["pairs"]) == 14
    for pair in report["pairs"]:
        kinds = pair["kind_a"], pair["kind_b"]
        # Two homes behind one carrier meet only where it turns packets back: the first one here does not.
        assert pair["direct"] is ("symmetric" not in kinds and kinds != ("carrier", "neighbor")), pair


def test_homes_behind_routers_that_track_connections_link_directly() -> None:
    """The whole way: directory, introduction, request, invitations, dials, the daemons' handshakes, and frames. One
    home's line loses packets above 1,280 bytes, and says so to nobody."""
    options = ("--public", "0", "--disturb", "", "--join-s", "120", "--steady-s", "0", "--weights-mb", "1")
    report = lab_report("--case", "network", "--homes", "small,rejecting", "--leave-early", *options)
    assert [pair["direct"] for pair in report["pairs"]] == [True]
    assert report["untranslated"] == {}, "no packet that a router took for invalid"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_lab_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    lab = SwarmProcesses(tmp_path, mark=secrets.token_hex(8))
    environment = {**os.environ, MARK: lab.mark, "TMPDIR": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as output, lab.running():
        process = subprocess.Popen(_PROGRAM, env=environment, stdout=output, stderr=output)
        wait_until(lambda: _routers(lab) or process.poll() is not None, seconds=30, what="the lab's router")
        if process.poll() is not None and b'"permitted": false' in log.read_bytes():
            pytest.skip(json.loads(log.read_text())["reason"])
        process.send_signal(number)
        assert process.wait(20) == (130 if number == signal.SIGINT else -number), log.read_text()
        lab.await_end(10)
    if number == signal.SIGINT:
        assert not list(tmp_path.glob("nat-lab-*"))


def _routers(lab: SwarmProcesses) -> list[psutil.Process]:
    """The lab, its space, the process in it and the router: four at least."""
    return lab.survivors() if len(lab.survivors()) >= 4 else []
