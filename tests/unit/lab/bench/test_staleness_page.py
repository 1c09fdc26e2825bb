"""docs/benchmarks/staleness.md: what a delay costs, computed again from the rows beside it."""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

import pytest

from tests.unit.house.source_tree import ROOT

BENCHMARKS = ROOT / "docs" / "benchmarks"
TASKS, DELAYS = ("split4", "strict8", "chain4"), (128, 256, 512)
UPDATES = {128: 640, 256: 1280, 512: 2560}
LAST = 5

Runs = dict[tuple[str, str, int], list[list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Evaluations of the default on reporting seeds in their order, by task, law and updates."""
    summary = json.loads((BENCHMARKS / "staleness_delay_cost.json").read_text())
    return {
        (run["task"], run["law"], run["updates"]): [
            [dict(zip(summary["point"], point, strict=True)) for point in seed] for seed in run["seeds"]
        ]
        for run in summary["runs"]
    }


def test_table_of_what_a_delay_costs(runs: Runs) -> None:
    text = (BENCHMARKS / "staleness.md").read_text().split("## What a delay costs")[1].split("\n## ")[0]
    shown = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert shown == [row(runs, task, delay) for task in TASKS for delay in DELAYS]


def row(runs: Runs, task: str, delay: int) -> list[str]:
    """The table's row."""
    delayed = runs[task, f"const:{delay}", UPDATES[delay]]
    fresh = runs[task, "const:0", UPDATES[delay]]
    ends = [mean(each["greedy"] for each in run[-LAST:]) for run in fresh]
    starts = [run[0]["greedy"] for run in delayed]
    at_k = [[each for each in run if each["update"] <= delay][-1]["greedy"] for run in delayed]
    gained = mean(mean(each["greedy"] for each in run[-LAST:]) for run in delayed) - mean(starts)
    distances = [mean(each["kl"] for each in at_once) for at_once in zip(*delayed, strict=True)]
    return [
        f"`{task}`, `const:{delay}`",
        *(f"{mean(map(reached, runs_, ends)):g}" for runs_ in (fresh, delayed)),
        f"{(mean(at_k) - mean(starts)) / gained:.0%}".replace("%", " %"),
        f"{max(distances):.2f}".lstrip("0"),
        f"{mean(distances[-LAST:]):.4f}".lstrip("0"),
    ]


def reached(run: list[dict[str, Any]], end: float) -> int:
    """The first update with 98 % of an end."""
    return next(int(each["update"]) for each in run if each["greedy"] >= 0.98 * end)
