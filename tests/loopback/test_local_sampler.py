"""`p2prl learn --sample --replayers`: a learner that nobody joins trains on what this machine samples and replays
beside it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import psutil
import pytest

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, wait_until

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tiny_model("chain4", seed=1)
    made.model.save_pretrained(tmp_path / "base")
    made.tokenizer.save_pretrained(tmp_path / "base")
    options = ("--preset", "chain4", "--in", str(tmp_path), "--model", str(tmp_path / "base"), "--probe", "off")
    result = command("init", "run", *options, environment=SwarmProcesses(tmp_path).environment())
    assert result.returncode == 0, result.stderr
    settings = tmp_path / "run" / "run.toml"
    text = settings.read_text()
    assert "\ngroups_per_update = 16 " in text
    settings.write_text(text.replace("\ngroups_per_update = 16 ", "\ngroups_per_update = 4 "))
    return tmp_path / "run"


def started_with(word: str, learner: RoleProcess) -> list[psutil.Process]:
    """Processes below the learner with this word in their command line."""
    found = []
    for each in learner.tree():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found += [each] if word in each.cmdline() else []
    return found


def sampler_of(learner: RoleProcess) -> psutil.Process | None:
    """The volunteer beside the learner."""
    return next(iter(started_with("join", learner)), None)


def steps(run: Path) -> int:
    """Updates in the metrics log."""
    log = run / "metrics.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_a_learner_trains_alone_though_its_sampler_and_a_replayer_are_killed(run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    with swarm.running():
        options = ("--updates", "1", "--sample", "cpu", "--replayers", "2", "--json")
        learner = swarm.start("learner", "learn", str(run), *options, *LISTEN)
        sampler = wait_until(lambda: sampler_of(learner), seconds=120, what="a sampler")
        assert sampler.nice() > psutil.Process(learner.process.pid).nice()
        wait_until(lambda: listeners(sampler), seconds=120, what="the sampler's network")
        assert set(listeners(sampler)) == {"127.0.0.1"}
        replayers = started_with("p2prl.replayers.replayer_process", learner)
        assert len(replayers) == 2
        replayers[0].kill()
        sampler.kill()
        wait_until(lambda: "local sampler starts again" in learner.log, seconds=60, what="word of a new start")
        assert learner.wait(240) == 0, learner.log
        swarm.await_end(15.0)
    assert "was ended by signal 9 before it had a policy; 1 replayer left" in learner.log.replace("\n ", "")
    assert steps(run) == 1
    document = json.loads(next(line for line in reversed(learner.log.splitlines()) if line.startswith("{")))
    assert (document["step"], document["replay/replayers"]) == (1, 2)
    assert document["groups"] == 4
    homes = list((tmp_path / "swarm" / "home").glob("seat-*/*/status.json"))
    assert len(homes) == 1, "a new start takes the seat of the one before"


def test_a_killed_learner_takes_its_sampler_and_replayers_along(run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    with swarm.running():
        options = ("--updates", "0", "--sample", "cpu", "--replayers", "1")
        learner = swarm.start("learner", "learn", str(run), *options, *LISTEN)
        wait_until(lambda: sampler_of(learner), seconds=120, what="a sampler")
        psutil.Process(learner.process.pid).kill()
        swarm.await_end(15.0)


def listeners(process: psutil.Process) -> list[str]:
    """Addresses of the listening internet sockets of a process and what it has started."""
    found = []
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a tokenizer's process ends when its answer is there
            found += [one.laddr.ip for one in each.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN]
    return found
