"""Materials of a preset: rows that a run accepts, its scorer, and demonstrations of its own task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2prl.config.data_options import DataOptions, data_plans
from p2prl.config.preset_materials import HELD_OUT_ROWS, TRAINED_ROWS, Materials, distinct, materials, write_rows
from p2prl.config.presets import PRESETS
from p2prl.tasks.countdown import COUNTDOWN


def _made(preset: str, folder: Path, seed: int = 0) -> Materials:
    return materials(preset, folder, seed=seed, on_progress=lambda stage, share: None)


def _questions(path: Path) -> list[str]:
    return [json.loads(line)["question"] for line in path.read_text().splitlines()]


def test_arithmetic_gives_rows_that_init_accepts(tmp_path: Path) -> None:
    made = _made("arithmetic", tmp_path)
    (plan,) = data_plans(DataOptions(data=made.data, held_out=made.held_out, scorers=made.scorers))
    assert plan.task == "arithmetic"
    assert '"scorer":"number"' in plan.scoring
    train, held_out = _questions(tmp_path / "train.jsonl"), _questions(tmp_path / "held_out.jsonl")
    assert (len(train), len(held_out)) == (TRAINED_ROWS, HELD_OUT_ROWS)
    assert len({*train, *held_out}) == TRAINED_ROWS + HELD_OUT_ROWS
    assert "####" in made.demonstration()(0)[1]


def test_the_seed_changes_the_rows(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _made("arithmetic", tmp_path / "a", seed=1)
    _made("arithmetic", tmp_path / "b", seed=2)
    assert _questions(tmp_path / "a" / "train.jsonl") != _questions(tmp_path / "b" / "train.jsonl")


def test_countdown_is_a_procedural_task(tmp_path: Path) -> None:
    made = _made("countdown", tmp_path)
    assert made.tasks == ("countdown",)
    assert not made.data
    assert list(tmp_path.iterdir()) == []
    assert made.demonstration()(5)[0] == COUNTDOWN.task.prompt(5)


def test_every_preset_with_the_small_model_has_materials(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    made = _made("reasoning", tmp_path)
    assert made.scorers == ("reasoning-gym",)
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    held = {json.loads(line)["prompt"] for line in (tmp_path / "held_out.jsonl").read_text().splitlines()}
    assert len(rows) == TRAINED_ROWS
    assert len(held) == HELD_OUT_ROWS
    assert not held & {row["prompt"] for row in rows}
    assert {row["reasoning_gym"]["dataset"] for row in rows} == {"chain_sum", "basic_arithmetic", "leg_counting"}


def test_presets_state_what_volunteers_read() -> None:
    for name, preset in PRESETS.items():
        assert preset.goal.startswith("teach "), name
        assert preset.task
        assert preset.makes_model == (name in {"arithmetic", "countdown", "reasoning"})


def test_distinct_keeps_the_first_of_equal_prompts() -> None:
    rows = [{"prompt": "a", "n": 1}, {"prompt": "b", "n": 2}, {"prompt": "a", "n": 3}]
    assert distinct(rows) == rows[:2]


def test_rows_are_written_one_a_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{"question": "é\n?"}, {"question": "b"}])
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"question": "é\n?"},
        {"question": "b"},
    ]
