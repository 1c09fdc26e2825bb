"""The experiment with skills that arrive in a swarm: its rows, its measure, its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p2prl_lab.staleness_swarm import Point, Result, Setting, table, write_rows


def result(seed: int, heights: list[float]) -> Result:
    curve = tuple(Point(update=16 * number, greedy=height, pass_at_8=1.0) for number, height in enumerate(heights))
    return Result(seed=seed, curve=curve, kl=0.1, staleness_p50=68, staleness_max=80, peers=3)


def test_rows_to_train_on_and_to_hold_out_share_no_prompt(tmp_path: Path) -> None:
    train, held_out = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in write_rows("U", tmp_path)
    )
    assert len({row["prompt"] for row in train}) == len(train) == 1024
    assert len({row["prompt"] for row in held_out}) > 120
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in held_out}
    for row in train + held_out:
        value, letters, maps = int(row["prompt"][0]), row["prompt"][1:-1], {"a": (1, 1), "U": (3, 4), "b": (1, 3)}
        for letter, digit in zip(letters, row["answer"], strict=True):
            assert letter not in "VWXYZ"
            if letter in maps:
                factor, added = maps[letter]
                assert int(digit) == (factor * value + added) % 10
            value = int(digit)


def test_area_is_the_mean_height_after_the_delay() -> None:
    assert result(0, [0.0, 0.0, 0.5, 1.0]).area(16) == pytest.approx(0.5)
    assert result(0, [0.0, 0.0, 0.5, 1.0]).area(32) == pytest.approx(0.75)


def test_the_table_compares_each_method_with_the_first_by_seed() -> None:
    setting = Setting(method="topr", delay="const:16", period=8, updates=48, learning_rate=1e-3, volunteers=3)
    first = [result(seed, [0, 0.5, 0.5, 0.5 + 0.1 * seed]) for seed in range(3)]
    behind = [result(seed, [0, 0.25, 0.25, 0.25 + 0.1 * seed]) for seed in range(3)]
    lines = table([(setting, first), (setting, behind)]).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["0", "1", "2"] * 2
    assert lines[-1].rstrip(" |").endswith("25.0 | 0")
    assert all(line.endswith("| | |") for line in lines[:-1])
