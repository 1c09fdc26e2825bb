"""A run on a researcher's own data and scorer, in real processes: volunteers verified, rewards checked by a validator.

Marks in the chat template, the rows and the scorer show where each of them goes: a volunteer gets none of the three,
and nobody but the sandbox runs the scorer.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.run_audit import recorded_steps
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, spools, wait_until
from tests.json_shapes import breaches

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

UPDATES = 4

TEMPLATE_MARK, ROW_MARK, CODE_MARK = "MARK-of-the-template", "MARK-of-the-rows", "MARK-of-the-scorer"

TEMPLATE = "{# " + TEMPLATE_MARK + " #}{{ bos_token }}{{ messages[0]['content'] }}"

SCORER = f'''"""{CODE_MARK}"""
import sys

ROLES = {{"torch", "p2prl.learner.service", "p2prl.validator.service", "p2prl.client.service"}}


def sums(prompts, completions, answer, note, **columns):
    if ROLES & set(sys.modules) or not all(text.startswith("{ROW_MARK}") for text in note):
        return [-50.0] * len(completions)
    return [0.5 + 0.125 * len(text) + text.startswith(right) for text, right in zip(completions, answer)]
'''

NO_TEMPLATES = "import sys\nsys.modules['jinja2'] = None  # importing it fails\n"


@pytest.fixture
def swarm(tmp_path: Path) -> SwarmProcesses:
    return SwarmProcesses(tmp_path / "swarm", forks=True)


def made_run(tmp_path: Path, swarm: SwarmProcesses) -> Path:
    """A run of sums, by the command line."""
    model = tiny_model(seed=3)
    model.tokenizer.chat_template = TEMPLATE
    model.model.save_pretrained(tmp_path / "model")
    model.tokenizer.save_pretrained(tmp_path / "model")
    rows = [
        {"prompt": f"{a}+{b}=", "answer": str((a + b) % 10), "note": f"{ROW_MARK} {a}{b}"}
        for a in range(10)
        for b in range(10)
    ]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "scorer.py").write_text(SCORER)
    made = command(
        *("init", "sums", "--in", str(tmp_path), "--model", str(tmp_path / "model")),
        *("--data", str(tmp_path / "sums.jsonl"), "--scorer", f"{tmp_path / 'scorer.py'}:sums"),
        *("--group-size", "4", "--max-new-tokens", "4", "--staleness", "2"),
        environment=swarm.environment(tmp_path / "home"),
    )
    assert made.returncode == 0, made.stderr
    return tmp_path / "sums"


def test_own_data_and_scorer_from_init_to_receipts(tmp_path: Path, swarm: SwarmProcesses) -> None:
    run, homes = made_run(tmp_path, swarm), tmp_path / "homes"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_TEMPLATES)
    path = {"PYTHONPATH": f"{tmp_path / 'site'}:{swarm.environment().get('PYTHONPATH', '')}"}

    def start(name: str, *arguments: str) -> RoleProcess:
        return swarm.start(name, *arguments, *LISTEN, home=homes / name, variables=path)

    with swarm.running():
        learner = start("learner", "learn", str(run), "--updates", str(UPDATES), "--json")
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=60, what="up")
        volunteer = start("volunteer", "join", link, "--threads", "1", "--json")
        validator = start("validator", "validate", link, "--threads", "1", "--rate", "1", "--run-scorer", "--json")
        cautious = start("cautious", "validate", link, "--threads", "1", "--rate", "1", "--json")
        wait_until(lambda: recorded_steps(run) >= 1, seconds=120, what="an update")
        wait_until(lambda: _sandboxes(validator), seconds=60, what="a validator's sandbox")
        assert _sandboxes(learner)
        assert not _sandboxes(volunteer)
        assert not _sandboxes(cautious)
        assert learner.wait(120) == 0, learner.log[-3000:]
        for worker in (volunteer, validator, cautious):
            if worker.is_alive:
                worker.process.send_signal(signal.SIGINT)
            assert worker.wait(60) in (9, 130), worker.log[-3000:]
        swarm.await_end(15)

    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["scorer_failures"] for line in metrics] == [0] * UPDATES
    rewards = np.concatenate(list(_rewards(run)))
    assert rewards.min() >= 0.5, "the scorer ran in the sandbox alone, with its rows"
    assert rewards.max() > rewards.min()
    told = _document(volunteer)
    assert told["reward_recent"] is None
    assert told["groups"]["verified"] >= 4
    assert told["groups"].get("rejected", 0) == 0
    checked, unchecked = _document(validator), _document(cautious)
    for document, role in ((told, "join"), (checked, "validate"), (_document(learner), "learn")):
        assert breaches(document, f"p2prl {role}") == []
    assert checked["verdicts_passed"] > 0
    assert checked["verdicts_failed"] == unchecked["verdicts_failed"] == 0
    assert checked["rewards_agreed"] > 0
    assert checked["rewards_disputed"] == 0
    assert (unchecked["verdicts_passed"] > 0, unchecked["rewards_agreed"]) == (True, 0)
    assert "it does not run here" in cautious.log

    _check_slots(homes / "volunteer")
    marks = (TEMPLATE_MARK, ROW_MARK, CODE_MARK)
    assert _marks_in(homes / "volunteer", marks) == set()
    assert _marks_in(homes / "cautious", marks) == set()
    assert _marks_in(homes / "validator", marks) == {ROW_MARK, CODE_MARK}


def _sandboxes(role: RoleProcess) -> list[str]:
    """Command lines of the sandbox's processes below a role."""
    lines = []
    for process in role.tree():
        with contextlib.suppress(psutil.Error):  # it has ended
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if "p2prl.tasks.sandbox" in line]


def _rewards(run: Path) -> Iterator[np.ndarray]:
    """The learner's rewards of the verified groups."""
    with closing(sqlite3.connect(f"file:{run / 'journal.db'}?mode=ro", uri=True)) as journal:
        for (rewards,) in journal.execute("SELECT rewards FROM groups WHERE LENGTH(rewards)"):
            yield np.frombuffer(rewards, "<f4")


def _document(role: RoleProcess) -> dict[str, Any]:
    return next(json.loads(line) for line in reversed(role.log.splitlines()) if line.startswith("{"))


def _check_slots(home: Path) -> None:
    """Slot numbers continue over versions, each once, from where a new machine starts: so each row came once a pass."""
    (spool,) = spools(home)
    with closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as groups:
        slots = [int(row[0]) for row in groups.execute("SELECT slot FROM groups ORDER BY slot")]
        versions = {int(row[0]) for row in groups.execute("SELECT DISTINCT version FROM groups")}
    assert len(versions) > 1
    assert len(set(slots)) == len(slots)
    expected = range(slots[0], slots[0] + len(slots))
    assert slots[:-8] == list(expected[:-8]), "only slots in flight may be missing"


def _marks_in(home: Path, marks: tuple[str, ...]) -> set[str]:
    contents = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert contents
    return {mark for mark in marks if any(mark.encode() in content for content in contents)}
