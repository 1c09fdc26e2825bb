"""A learner that calls one volunteer's right groups wrong, as processes over sockets: the victim leaves with proof."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from p2prl.exit_codes import WORK_REFUSED
from p2prl_lab.testing.run_audit import settled_groups
from p2prl_lab.testing.swarm_processes import LISTEN, SwarmProcesses, command, wait_until

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]


def test_a_victim_of_a_lying_learner_stops_with_signed_proof_and_the_others_go_on(
    warm_run: Path, tmp_path: Path
) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    run, home = shutil.copytree(warm_run, tmp_path / "run"), tmp_path / "homes"
    with swarm.running():
        options = ("--victims", "1", "--updates", "0", *LISTEN)
        swarm.start("learner", str(run), *options, module="p2prl_lab.testing.lying_learner")
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=60, what="a link")
        victim = swarm.start("victim", "join", link, "--threads", "1", *LISTEN, home=home / "victim")
        wait_until(lambda: settled_groups(run)[1] > 0, seconds=60, what="a rejected group")
        other = swarm.start("other", "join", link, "--threads", "1", *LISTEN, home=home / "other")
        assert victim.wait(60) == WORK_REFUSED, victim.log[-2000:]
        wait_until(lambda: settled_groups(run)[0] > 0, seconds=60, what="a verified group")
        assert other.is_alive, other.log[-2000:]
    (proof,) = (home / "victim").glob("*/*/refused.evidence")
    shown = command("receipts", "evidence", str(proof), "--json", environment=swarm.environment())
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["refused"] >= 8
    assert [group["replay"] for group in document["groups"]].count("right") >= 2
