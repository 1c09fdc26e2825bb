"""`p2prl learn --ranks 2` with a volunteer: nothing listens beyond loopback, and a killed rank ends it in seconds.

The run goes on by another plan, and then in one process.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, wait_until
from tests.loopback.program import UNHURRIED

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

UPDATES = 24
"""More than are done before a rank is killed."""

_ENDS_WITHIN_S = 10.0
"""What users are promised once a rank is gone."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of an untrained model with small updates, and a checkpoint after every five."""
    made = tiny_model("chain4", seed=1)
    made.model.save_pretrained(tmp_path / "base")
    made.tokenizer.save_pretrained(tmp_path / "base")
    options = ("--preset", "chain4", "--in", str(tmp_path), "--model", str(tmp_path / "base"), "--probe", "off")
    result = command("init", "run", *options, environment=SwarmProcesses(tmp_path).environment())
    assert result.returncode == 0, result.stderr
    settings = tmp_path / "run" / "run.toml"
    text = settings.read_text()
    for before, after in (
        ("checkpoint_every = 10 ", "checkpoint_every = 5 "),
        ("groups_per_update = 16 ", "groups_per_update = 4 "),
    ):
        assert f"\n{before}" in text
        text = text.replace(f"\n{before}", f"\n{after}")
    settings.write_text(text)
    return tmp_path / "run"


def steps(run: Path) -> list[int]:
    """Updates in the metrics log."""
    log = run / "metrics.jsonl"
    return [int(json.loads(line)["step"]) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The roles' temporary folder: ranks of tests beside this one meet elsewhere."""
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def meeting_folders(temporary: Path) -> list[Path]:
    """Folders that the run's ranks meet in."""
    return list(temporary.glob("p2prl-ranks-*"))


def follower(learner: RoleProcess) -> psutil.Process | None:
    """The learner's other rank."""
    return next((p for p in learner.tree() if "p2prl.ranks.follower_process" in p.cmdline()), None)


def test_two_ranks_train_a_run_and_survive_kills(run: Path, temporary: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    own = {"TMPDIR": str(temporary)}
    with swarm.running():
        learner = swarm.start(
            "learner", "learn", str(run), "--updates", str(UPDATES), "--ranks", "2", *LISTEN, variables=own
        )
        link = wait_until(
            lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=120, what="a link"
        )
        home = tmp_path / "home"
        swarm.start("volunteer", "join", link, *UNHURRIED, *LISTEN, home=home)
        wait_until(lambda: len(steps(run)) >= 7, seconds=240, what="seven updates")

        other = follower(learner)
        assert other is not None
        assert len(meeting_folders(temporary)) == 1
        for process in (psutil.Process(learner.process.pid), other):
            open_to = {each.laddr.ip for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
            assert open_to <= {"127.0.0.1", "::1"}

        other.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        assert learner.wait(_ENDS_WITHIN_S) == 75
        assert time.monotonic() - killed_at < _ENDS_WITHIN_S
        assert "rank 1 of the learner was ended by signal 9" in learner.log
        assert "Traceback" not in learner.log
        assert not meeting_folders(temporary)

        # The next start goes on by another plan, and the one after that alone.
        learner = swarm.start(
            "staged", "learn", str(run), "--updates", str(UPDATES), "--plan", "pp2", *LISTEN, variables=own
        )
        wait_until(lambda: follower(learner), seconds=120, what="a second rank")
        reached = len(steps(run))
        wait_until(lambda: len(steps(run)) > reached, seconds=240, what="an update after the kill")
        orphan = follower(learner)
        assert orphan is not None
        learner.process.kill()
        learner.process.wait()
        wait_until(
            lambda: not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE, seconds=10, what="its end"
        )

        wait_until(lambda: not meeting_folders(temporary), seconds=10, what="an empty temporary folder")

        alone = swarm.start("alone", "learn", str(run), "--updates", str(UPDATES), *LISTEN)
        assert alone.wait(240) == 0
        assert "another plan of ranks than before" in alone.log
    assert steps(run) == list(range(1, UPDATES + 1))
