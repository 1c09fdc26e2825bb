"""A run with a reward model in real processes: made, joined, checked by a validator, killed, ended and exported.

The classifier's marks show where it goes: neither a volunteer nor a validator gets anything of it.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from p2prl.models.rewards.reward_model_folder import reward_model_digest
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import (
    LISTEN,
    RoleProcess,
    SwarmProcesses,
    command,
    kill_tree,
    spools,
    wait_until,
)
from tests.json_shapes import breaches
from tests.unit.models.rewards.classifiers import classifier

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

UPDATES = 6


def made_run(tmp_path: Path, swarm: SwarmProcesses) -> Path:
    """A run of the small model with an ORM, by the command line."""
    classifier(tmp_path / "judge", "orm")
    base = tiny_model(seed=3)
    base.model.save_pretrained(tmp_path / "model")
    base.tokenizer.save_pretrained(tmp_path / "model")
    made = command(
        *("init", "judged", "--in", str(tmp_path), "--model", str(tmp_path / "model"), "--probe", "4", "--json"),
        *("--reward-model", str(tmp_path / "judge"), "--reward", "success+0.5*orm", "--staleness", "1024"),
        *("--set", "learner.groups_per_update=4"),
        environment=swarm.environment(tmp_path / "home"),
    )
    assert made.returncode == 0, made.stderr
    assert "stays with the learner" in made.stderr
    assert json.loads(made.stdout)["reward"] == f"success+0.5*orm@{reward_model_digest(tmp_path / 'judge')}"
    return tmp_path / "judged"


def test_a_reward_model_from_init_to_export(tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    run, homes = made_run(tmp_path, swarm), tmp_path / "homes"
    record_everything(run)

    def start(name: str, *arguments: str) -> RoleProcess:
        return swarm.start(name, *arguments, *LISTEN, home=homes / name)

    with swarm.running():
        learner = start("learner", "learn", str(run), "--updates", str(UPDATES), "--json")
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=90, what="up")
        volunteer = start("volunteer", "join", link, "--threads", "1", "--json")
        validator = start("validator", "validate", link, "--threads", "1", "--rate", "1", "--json")
        wait_until(lambda: recorded_steps(run) >= 2, seconds=240, what="two updates")
        kill_tree(learner)
        swarm.start_again(learner)
        assert learner.wait(400) == 0, learner.log[-3000:]
        for worker in (volunteer, validator):
            if worker.is_alive:
                worker.process.send_signal(signal.SIGINT)
            assert worker.wait(60) in (9, 130), worker.log[-3000:]
        swarm.await_end(15)

    assert "scores whole completions (orm)" in learner.log
    audit = audit_run(run, spools(homes / "volunteer"))
    assert (audit.updates, audit.rejected) == (UPDATES, 0)
    assert audit.policies_reproduced == audit.versions
    rewards = np.concatenate(_rewards(run))
    assert len(np.unique(np.round(rewards % 1.0, 3))) > 5, "scores are not the task's verdicts alone"
    told, checked = _document(volunteer), _document(validator)
    assert told["reward_recent"] is None
    assert (checked["verdicts_failed"], checked["rewards_agreed"], checked["rewards_disputed"]) == (0, 0, 0)
    assert checked["verdicts_passed"] > 0
    assert "you check tokens, and not rewards" in validator.log
    for document, role in ((told, "join"), (checked, "validate"), (_document(learner), "learn")):
        assert breaches(document, f"p2prl {role}") == []
    weights = (run / "reward_model" / "model.safetensors").read_bytes()
    for home in ("volunteer", "validator"):
        assert all(weights[-256:] not in path.read_bytes() for path in (homes / home).rglob("*") if path.is_file())

    environment = swarm.environment(tmp_path / "home")
    exported = command("export", str(run), "--out", str(tmp_path / "exported"), environment=environment)
    assert exported.returncode == 0, exported.stderr
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "the learner alone has it" in card
    assert not list((tmp_path / "exported").rglob("*reward*"))
    (run / "reward_model" / "model.safetensors").write_bytes(weights[:-1] + b"\x00")
    refused = command("learn", str(run), "--updates", str(UPDATES + 1), environment=environment)
    assert refused.returncode != 0
    assert "was changed" in refused.stderr
    assert "Traceback" not in refused.stderr


def _rewards(run: Path) -> list[np.ndarray[Any, Any]]:
    with closing(sqlite3.connect(f"file:{run / 'journal.db'}?mode=ro", uri=True)) as journal:
        found = journal.execute("SELECT rewards FROM groups WHERE LENGTH(rewards)").fetchall()
    return [np.frombuffer(rewards, "<f4") for (rewards,) in found]


def _document(role: RoleProcess) -> dict[str, Any]:
    return next(json.loads(line) for line in reversed(role.log.splitlines()) if line.startswith("{"))
