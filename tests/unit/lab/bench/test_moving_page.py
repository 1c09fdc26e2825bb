"""docs/benchmarks/staleness_moving.md and the settings of its plan, computed again from the curves beside them."""

from __future__ import annotations

import json
import math
import re
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest

from tests.unit.house.source_tree import ROOT

BENCHMARKS = ROOT / "docs" / "benchmarks"
PAGE = (BENCHMARKS / "staleness_moving.md").read_text()
NAMES = {"topr:sharpness=1": "default", "topr": "TOPR", "gspo": "GSPO", "grpo": "GRPO"}
REPORTING, TUNING = set(range(20, 30)), (100, 101, 102)
T_95 = {4: 2.132, 9: 1.833}
"""Student's t of .95, by degrees of freedom."""

Curves = dict[int, list[dict[str, float]]]


@pytest.fixture(scope="module")
def runs() -> dict[tuple[str, float, str], Curves]:
    """Curves by seed, of each method's name, learning rate and law."""
    summary = json.loads((BENCHMARKS / "staleness_moving.json").read_text())
    found = {}
    for run in summary["runs"]:
        assert (run["task"], run["updates"]) == ("arrive8:32", 192)
        loss, addition, rate = run["method"].split("+")
        assert addition == "amsgrad"
        curves = [[dict(zip(summary["point"], point, strict=True)) for point in curve] for curve in run["curves"]]
        key = NAMES[loss], float(rate.removeprefix("lr=")), run["law"]
        found[key] = dict(zip(run["seeds"], curves, strict=True))
    return found


def area(curve: list[dict[str, float]], law: str) -> float:
    """Mean height of greedy reward from the law's K on, on a grid of single updates."""
    start = int(law.split(":")[1])
    grid = np.arange(start, curve[-1]["update"] + 1)
    heights = np.interp(grid, [each["update"] for each in curve], [each["greedy"] for each in curve])
    return float(np.trapezoid(heights, grid) / (grid[-1] - grid[0]))


def table(text: str, heading: str) -> list[list[str]]:
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return lines[1:]


def short(figure: float, digits: int = 3) -> str:
    return f"{figure:.{digits}f}".replace("0.", ".", 1) if abs(figure) < 1 else f"{figure:.{digits}f}"


def test_settings_of_the_plan_are_the_best_on_tuning_seeds(runs: Any) -> None:
    plan = (BENCHMARKS / "staleness_plan.md").read_text()
    for name, *cells in table(plan, "Settings"):
        known = {
            rate: mean(area(curves[seed], law) for seed in TUNING)
            for (method, rate, law), curves in runs.items()
            if (method, law) == (name, "block:32")
        }
        best = max(known, key=lambda rate: known[rate])
        assert cells == [
            "–" if rate not in known else f"**{short(known[rate])}**" if rate == best else short(known[rate])
            for rate in (2.5e-4, 5e-4, 1e-3, 2e-3)
        ]
        # Nothing else was reported.
        reported = {rate for (method, rate, _), curves in runs.items() if method == name and set(curves) & REPORTING}
        assert reported <= {best}


def ends_of(curves: Curves) -> list[str]:
    """Greedy reward, pass@8 and entropy: means of seeds, each of its last three evaluations."""
    return [
        short(mean(mean(point[each] for point in curve[-3:]) for curve in curves.values()))
        for each in ("greedy", "pass_at_8", "entropy")
    ]


def distance_of(curves: Curves, law: str) -> str:
    start = int(law.split(":")[1])
    return short(mean(point["kl"] for curve in curves.values() for point in curve if point["update"] > start), 2)


def test_tuned_settings_are_shown_on_the_seeds_that_chose_them(runs: Any) -> None:
    shown = table(PAGE, "Tuned")
    assert {row[0] for row in shown} == set(NAMES.values())
    for name, *cells in shown:
        tuned = {
            rate: {seed: curves[seed] for seed in TUNING}
            for (method, rate, law), curves in runs.items()
            if (method, law) == (name, "block:32")
        }
        heights = {rate: mean(area(curve, "block:32") for curve in curves.values()) for rate, curves in tuned.items()}
        best = max(heights, key=lambda rate: heights[rate])
        curves = tuned[best]
        assert cells == [
            f"{best:g}".replace("0.001", "1e-3").replace("0.0005", "5e-4"),
            short(heights[best]),
            *ends_of(curves),
            distance_of(curves, "block:32"),
        ]


def test_the_table_is_that_of_the_curves(runs: Any) -> None:
    reported = {
        (law, name): {seed: curve for seed, curve in curves.items() if seed in REPORTING}
        for (name, _, law), curves in runs.items()
    }
    shown = table(PAGE, "Figures")
    assert {(row[0].strip("`"), row[1]) for row in shown} == {
        key for key, curves in reported.items() if curves and key[0] != "const:0"
    }
    for row in shown:
        law, name = row[0].strip("`"), row[1]
        curves, fresh, default = reported[law, name], reported["const:0", name], reported[law, "default"]
        seeds = sorted(curves)
        areas = [area(curves[seed], law) for seed in seeds]
        own = [area(fresh[seed], law) for seed in seeds]
        ahead = [area(default[seed], law) - height for seed, height in zip(seeds, areas, strict=True)]
        lost = [1 - height / base for height, base in zip(areas, own, strict=True)]
        assert row[2:] == [
            str(len(seeds)),
            short(mean(own)),
            short(mean(areas)),
            interval([100 * share for share in lost], 100 * (1 - sum(areas) / sum(own))),
            "–" if name == "default" else interval([100 * each for each in ahead], 100 * mean(ahead)),
            *ends_of(curves),
            distance_of(curves, law),
        ]


def interval(values: list[float], middle: float) -> str:
    """The figure, and the interval of 90 % around the mean of its seeds."""
    half = T_95[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return f"{middle:.1f} ({mean(values) - half:.1f} … {mean(values) + half:.1f})".replace("-", "−")


def test_no_evaluation_is_counted_twice(runs: Any) -> None:
    for curves in runs.values():
        assert all([point["update"] for point in curve] == list(range(0, 193, 16)) for curve in curves.values())


def test_the_page_names_every_cell_that_was_not_run() -> None:
    """Of the plan's nine methods and its laws."""
    left = PAGE.split("## What is left\n")[1]
    for loss in ("tis", "gepo", "asympo", "gepo_paper", "m2po_clip"):
        assert f"`{loss}`" in left
    for law in ("block:32", "stage:64", "start", "const:256"):
        assert re.search(rf"`{law}`", left)
