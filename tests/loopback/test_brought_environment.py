"""A run that brings its environment, in real processes: confined workers interpret it and agree with the learner."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("wasmtime", reason="needs the extra agents")

from p2prl.models.small_models.tiny_models import shaped_model
from p2prl.protocol.signed_group import read_group
from p2prl.tasks.task_spec import SmallModel
from p2prl_lab.testing.run_audit import recorded_steps
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, wait_until
from tests.json_shapes import breaches

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

UPDATES = 4
SYMBOLS = "01ab"

TEXTS = (*SYMBOLS, "<b>", "<e>", "<p>")
"""Of each token: special ones are written out."""

# It talks for five turns, `a` after an even number of ones and `b` after an odd one, and likes to hear ones.
TALK = """(module
  (memory (export "memory") 1)
  (data (i32.const 0) "01ab")
  (global $turns (mut i32) (i32.const 0))
  (global $ones (mut i32) (i32.const 0))
  (global $said (mut i32) (i32.const 0))
  (func (export "alloc") (param i32) (result i32) (i32.const 64))
  (func (export "reset") (param $seed i64) (result i64)
    (i64.or (i64.shl (i64.and (local.get $seed) (i64.const 1)) (i64.const 32)) (i64.const 1)))
  (func (export "step") (param $turn i32) (param $size i32) (result i64) (local $end i32)
    (global.set $said (i32.add (global.get $said) (local.get $size)))
    (global.set $turns (i32.add (global.get $turns) (i32.const 1)))
    (local.set $end (i32.add (local.get $turn) (local.get $size)))
    (block $done (loop $next
      (br_if $done (i32.eq (local.get $turn) (local.get $end)))
      (global.set $ones (i32.add (global.get $ones) (i32.eq (i32.load8_u (local.get $turn)) (i32.const 49))))
      (local.set $turn (i32.add (local.get $turn) (i32.const 1))) (br $next)))
    (if (i32.eq (global.get $turns) (i32.const 5)) (then (return (i64.const 0))))
    (i64.or (i64.shl (i64.extend_i32_u (i32.add (i32.const 2) (i32.and (global.get $ones) (i32.const 1))))
      (i64.const 32)) (i64.const 1)))
  (func (export "reward") (param $finished i32) (result f64)
    (if (i32.eqz (local.get $finished)) (then (return (f64.const 0))))
    (f64.div (f64.convert_i32_u (global.get $ones)) (f64.convert_i32_u
      (select (global.get $said) (i32.const 8) (i32.gt_u (global.get $said) (i32.const 8)))))))"""


def reward_of(tokens: list[int], stop: int) -> float:
    """The reward of a transcript, by the rules above; AssertionError where a message is not the environment's."""
    turns, rest, ones, said = 0, list(tokens), 0, 0
    while stop in rest:
        turn, rest = rest[: rest.index(stop)], rest[rest.index(stop) + 1 :]
        text = "".join(TEXTS[token] for token in turn)
        turns, ones, said = turns + 1, ones + text.count("1"), said + len(text)
        if turns == 5:
            assert not rest
            return ones / max(8, said)
        if rest:
            assert rest.pop(0) == SYMBOLS.index("ab"[ones % 2])
    return 0.0


def made_run(folder: Path, swarm: SwarmProcesses) -> tuple[Path, int]:
    """A run whose model types at random, and the model's stop token."""
    model = shaped_model(SmallModel(symbols=SYMBOLS, context=48), seed=3)
    model.model.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    (folder / "talk.wat").write_text(TALK)
    made = command(
        *("init", "talk", "--in", str(folder), "--model", str(folder / "model")),
        *("--environment", str(folder / "talk.wat"), "--group-size", "4", "--max-new-tokens", "40", "--staleness", "2"),
        environment=swarm.environment(folder / "home"),
        timeout_s=300,
    )
    assert made.returncode == 0, made.stderr
    assert "Environment talk: " in made.stderr
    return folder / "talk", int(model.tokenizer.eos_token_id)


def test_workers_interpret_what_the_run_brings(tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    run, stop = made_run(tmp_path, swarm)
    with swarm.running():
        learner = swarm.start("learner", "learn", str(run), "--updates", str(UPDATES), *LISTEN, "--json")
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=60, what="up")
        options = ("--threads", "1", *LISTEN, "--json")
        volunteer = swarm.start("volunteer", "join", link, *options, home=tmp_path / "volunteer")
        validator = swarm.start("validator", "validate", link, "--rate", "1", *options, home=tmp_path / "validator")
        wait_until(lambda: recorded_steps(run) >= 1, seconds=120, what="an update")
        assert learner.wait(180) == 0, learner.log[-3000:]
        for worker in (volunteer, validator):
            if worker.is_alive:
                worker.process.send_signal(signal.SIGINT)
            assert worker.wait(60) in (9, 130), worker.log[-3000:]
        swarm.await_end(15)

    told, checked = document(volunteer), document(validator)
    for each, role in ((told, "join"), (checked, "validate"), (document(learner), "learn")):
        assert breaches(each, f"p2prl {role}") == []
    assert told["groups"]["verified"] >= 4
    assert told["groups"].get("rejected", 0) == 0
    assert checked["verdicts_passed"] > 0
    assert checked["verdicts_failed"] == 0
    for worker in (volunteer, validator):
        assert "Programs  talk" in worker.log
        assert "No other code comes to your machine." in worker.log
    finished = 0
    for tokens, reward, declared in completions(run):
        assert reward == declared == pytest.approx(reward_of(tokens, stop), abs=1e-6)
        finished += reward > 0
    assert finished > 0, "some episodes came to their end"


def completions(run: Path) -> Iterator[tuple[list[int], float, float]]:
    """Tokens of verified completions, with the rewards that learner and volunteer computed."""
    with closing(sqlite3.connect(f"file:{run / 'journal.db'}?mode=ro", uri=True)) as journal:
        for raw, rewards in journal.execute("SELECT raw, rewards FROM groups WHERE LENGTH(rewards) AND LENGTH(raw)"):
            group = read_group(raw).group
            for completion, reward in zip(group.completions, np.frombuffer(rewards, "<f4").tolist(), strict=True):
                tokens = np.frombuffer(completion.tokens, "<u4").tolist()
                yield tokens, reward, float(np.float32(completion.reward))


def document(role: RoleProcess) -> dict[str, Any]:
    found: dict[str, Any] = next(json.loads(line) for line in reversed(role.log.splitlines()) if line.startswith("{"))
    return found
