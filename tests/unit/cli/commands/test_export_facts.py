"""Facts of the model card: rewards up to the exported step, and the loss settings that someone changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.cli.commands.export_facts import loss_settings, newest_evaluation, reward_change
from p2prl.config.loss_config import LossConfig, ReferenceTable
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run


def write(path: Path, rewards: list[float], *, unfinished: str = "") -> None:
    lines = [json.dumps({"step": i, "reward": r, "time": 100.0 + i}) + "\n" for i, r in enumerate(rewards, start=1)]
    path.write_text("".join(lines) + unfinished)


def test_means_of_the_first_and_last_updates(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", [i / 100 for i in range(1, 101)], unfinished='{"step": 101, "rew')
    change = reward_change(tmp_path / "metrics.jsonl", until_step=90)
    assert change is not None
    assert change.first == pytest.approx(sum(range(1, 21)) / 2_000)
    assert change.last == pytest.approx(sum(range(71, 91)) / 2_000)
    assert (change.updates, change.began_ms, change.ended_ms) == (20, 101_000, 190_000)


def test_short_runs_compare_halves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert reward_change(path, until_step=9) is None
    write(path, [0.5])
    assert reward_change(path, until_step=9) is None
    write(path, [0.25, 0.75])
    two = reward_change(path, until_step=9)
    assert two is not None
    assert (two.first, two.last, two.updates) == (0.25, 0.75, 1)
    write(path, [0.0, 0.2, 0.6, 1.0, 0.9])
    change = reward_change(path, until_step=9)
    assert change is not None
    assert (change.first, change.last) == pytest.approx((0.1, 0.95))
    assert change.updates == 2


def test_loss_settings_leave_out_defaults() -> None:
    assert loss_settings(LossConfig()) == {"name": "topr"}
    loss = LossConfig(
        name="grpo",
        options={"beta": 0.1},
        guards=GuardConfig(negative_tail=2.0),
        reference=ReferenceTable(kind="ema", beta=0.01),
    )
    assert loss_settings(loss) == {
        "name": "grpo",
        "options": {"beta": 0.1},
        "guards": {"negative_tail": 2.0},
        "reference": {"kind": "ema", "beta": 0.01},
    }


def test_the_newest_evaluation_is_of_a_version_up_to_the_step() -> None:
    rate = {"rate": 0.5, "low": 0.4, "high": 0.6}
    report = {
        "split": "fresh", "prompts": 8, "samples": 0, "greedy_pass": rate, "pass_at": {}, "score_mean": None,
        "entropy_per_token": None, "completion_tokens_mean": 1.0, "truncated_share": 0.0,
    }  # fmt: skip
    lines = tuple({"version": v, "step": 2 * v, "time": 0.0, "tasks": {"chain4": report}} for v in (1, 10, 20))
    snapshot = replace(MemorySource(sample_run(0, steps=2)).snapshot(), evaluations=lines)
    newest = [newest_evaluation(snapshot, until_step=step) for step in (1, 2, 39, 40, 99)]
    assert [None if each is None else each.version for each in newest] == [None, 1, 10, 20, 20]
