"""docs/benchmarks/staleness_moving.md and the settings of its plan, computed again from the curves beside them."""

from __future__ import annotations

import json
import math
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import pytest

from tests.unit.house.source_tree import ROOT

BENCHMARKS = ROOT / "docs" / "benchmarks"
PAGE = (BENCHMARKS / "staleness_moving.md").read_text()
NAMES = {
    "topr:sharpness=1": "TOPR/NLL",
    "topr": "TOPR",
    "gspo": "GSPO",
    "grpo": "GRPO",
    "tis": "TIS",
    "gepo": "GEPO, the paper's equation",
    "gepo_paper": "GEPO, as released",
    "asympo": "ASymPO",
    "m2po_clip": "M2PO",
}
OWN = {  # (option, of which the setting's figure is, its value unless given)
    "TOPR/NLL": ("negative_high", 1.0),
    "TOPR": ("negative_high", 1.0),
    "TOPR, .25": ("negative_high", 1.0),
    "GSPO": ("clip_high", 0.2),
    "GRPO": ("clip_high", 0.2),
    "TIS": ("cap", 2.0),
    "GEPO, the paper's equation": ("clip", math.inf),
    "GEPO, as released": ("clip_high", 0.2),
    "ASymPO": ("nll_floor", 0.01),
    "M2PO": ("budget", 0.04),
}
REPORTING, TUNING = set(range(30, 40)), (100, 101, 102)
HEADINGS = {
    ("arrive8:32", 192): "Figures",
    ("rows8:32", 192): "Figures of rows8",
    ("arrive40:32", 192): "Figures of arrive40",
    ("arrive8:32@192x3", 192): "Figures of a second size",
    ("arrive8:64", 384): "Figures at ages of 256",
    ("rows8:64", 384): "Figures of rows8 at ages of 256",
}
"""Where the page shows a task and its updates."""
T_95 = {2: 2.920, 4: 2.132, 9: 1.833}
"""Student's t of .95, by degrees of freedom."""

Curves = dict[int, list[dict[str, float]]]


class Ran(NamedTuple):
    """What was run under a law: a method, the value of its own option, and its learning rate."""

    name: str
    own: float
    rate: float
    law: str


@pytest.fixture(scope="module")
def tasks() -> dict[str, dict[Ran, Curves]]:
    """Curves by seed, of each task."""
    summary = json.loads((BENCHMARKS / "staleness_moving.json").read_text())
    found: dict[str, dict[Ran, Curves]] = {}
    for run in summary["runs"]:
        assert (run["task"], run["updates"]) in HEADINGS
        body, addition, rate = run["method"].split("+")
        assert addition == "amsgrad"
        loss, *options = body.split(":")
        if "sharpness=1" in options:
            loss += ":sharpness=1"
        name = "TOPR, .25" if body == "topr:negative_high=0.25" else NAMES[loss]  # what a run does
        option, usual = OWN[name]
        given = dict(each.split("=") for each in options)
        if name == NAMES["gepo"] and option not in given and run["task"] == "arrive40:32":
            name = "GEPO without a clip"  # reported beside the one with a clip
        curves = [[dict(zip(run["point"], point, strict=True)) for point in curve] for curve in run["curves"]]
        assert all(
            [point["update"] for point in curve] == list(range(0, run["updates"] + 1, 16)) for curve in curves
        ), "no evaluation is counted twice"
        key = Ran(name, float(given.get(option, usual)), float(rate.removeprefix("lr=")), run["law"])
        assert key not in found.get(run["task"], {})
        found.setdefault(run["task"], {})[key] = dict(zip(run["seeds"], curves, strict=True))
    return found


@pytest.fixture(scope="module")
def runs(tasks: dict[str, dict[Ran, Curves]]) -> dict[Ran, Curves]:
    """Those of the first task."""
    return tasks["arrive8:32"]


def tuned(runs: dict[Ran, Curves], name: str) -> dict[tuple[float, float], float]:
    """Areas of a method's settings on the seeds that choose, by (rate, own)."""
    return {
        (run.rate, run.own): mean(area(curves[seed], run.law) for seed in TUNING)
        for run, curves in runs.items()
        if (run.name, run.law) == (name, "block:32") and set(TUNING) <= set(curves)
    }


def begin_of(law: str) -> int:
    """The law's K; offline, where delays never settle, the whole run counts."""
    return 0 if law == "start" else int(law.split(":")[1])


def area(curve: list[dict[str, float]], law: str) -> float:
    """Mean height of greedy reward from the law's K on, on a grid of single updates."""
    start = begin_of(law)
    grid = np.arange(start, curve[-1]["update"] + 1)
    heights = np.interp(grid, [each["update"] for each in curve], [each["greedy"] for each in curve])
    return float(np.trapezoid(heights, grid) / (grid[-1] - grid[0]))


def table(text: str, heading: str) -> list[list[str]]:
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return lines[1:]


def short(figure: float, digits: int = 3) -> str:
    return f"{figure:.{digits}f}".replace("0.", ".", 1) if abs(figure) < 1 else f"{figure:.{digits}f}"


def test_settings_of_the_plan_are_the_best_on_tuning_seeds(runs: dict[Ran, Curves]) -> None:
    plan = (BENCHMARKS / "staleness_plan.md").read_text()
    rates, owns = table(plan, "Settings")[: len(NAMES)], table(plan, "Settings")[len(NAMES) + 1 :]
    assert [row[0] for row in rates] == [row[0] for row in owns] == list(NAMES.values())
    for (name, *cells), (_, tried) in zip(rates, owns, strict=True):
        usual, areas = OWN[name][1], tuned(runs, name)
        of_rates = {rate: height for (rate, own), height in areas.items() if own == usual}
        rate = max(of_rates, key=lambda each: of_rates[each])
        assert cells == [
            "–" if each not in of_rates else f"**{short(of_rates[each])}**" if each == rate else short(of_rates[each])
            for each in (2.5e-4, 5e-4, 1e-3, 2e-3)
        ]
        of_owns = {own: height for (each, own), height in areas.items() if each == rate}
        best = max(of_owns, key=lambda own: of_owns[own])
        assert min(of_owns) < best < max(of_owns), "the choice is inside"
        said = [each.strip("* ").split(": ") for each in tried.split(", ")]
        assert [short(of_owns[own]) for own in sorted(of_owns)] == [figure.strip("*") for _, figure in said]
        bold = [each for each in tried.split(", ") if "**" in each]
        assert bold[0].strip("*").endswith(short(of_owns[best]))
        # Nothing else is reported.
        reported = {(run.rate, run.own) for run, curves in runs.items() if run.name == name and set(curves) & REPORTING}
        assert reported <= {(rate, best)}


def test_settings_of_rows8_are_the_best_on_tuning_seeds(tasks: dict[str, dict[Ran, Curves]]) -> None:
    runs = tasks["rows8:32"]
    shown = table((BENCHMARKS / "staleness_plan.md").read_text(), "Settings of rows8")
    assert [row[0] for row in shown] == list(NAMES.values())
    for name, *cells, tried in shown:
        usual, areas = OWN[name][1], tuned(runs, name)
        of_rates = {rate: height for (rate, own), height in areas.items() if own == usual}
        assert cells == ["–" if rate not in of_rates else short(of_rates[rate]) for rate in (2.5e-4, 5e-4, 1e-3, 2e-3)]
        rate = max(of_rates, key=lambda each: of_rates[each])
        of_owns = {own: height for (each, own), height in areas.items() if each == rate}
        best = max(of_owns, key=lambda own: of_owns[own])
        assert [each.strip("* ").split(": ")[1] for each in tried.split(", ")] == [
            short(of_owns[own]) for own in sorted(of_owns)
        ]
        (bold,) = (each for each in tried.split(", ") if "**" in each)
        assert bold.strip("*").endswith(short(of_owns[best]))
        reported = {(run.rate, run.own) for run, curves in runs.items() if run.name == name and set(curves) & REPORTING}
        assert reported == {(rate, best)}


def ends_of(curves: Curves) -> list[str]:
    """Greedy reward, pass@8 and entropy: means of seeds, each of its last three evaluations."""
    return [
        short(mean(mean(point[each] for point in curve[-3:]) for curve in curves.values()))
        for each in ("greedy", "pass_at_8", "entropy")
    ]


def distance_of(curves: Curves, law: str) -> str:
    start = begin_of(law)
    return short(mean(point["kl"] for curve in curves.values() for point in curve if point["update"] > start), 2)


def test_tuned_settings_are_shown_on_the_seeds_that_chose_them(runs: dict[Ran, Curves]) -> None:
    shown = table(PAGE, "Tuned")
    assert {row[0] for row in shown} == set(NAMES.values())
    for name, setting, *cells in shown:
        areas = tuned(runs, name)
        rate, own = max(areas, key=lambda each: areas[each])
        curves = {seed: runs[Ran(name, own, rate, "block:32")][seed] for seed in TUNING}
        assert setting == f"{own:g} at {rate:g}".replace("0.001", "1e-3").replace("0.0005", "5e-4").replace("0.", ".")
        assert cells == [short(areas[rate, own]), *ends_of(curves), distance_of(curves, "block:32")]


@pytest.mark.parametrize(("task", "heading"), [(task, heading) for (task, _), heading in HEADINGS.items()])
def test_the_table_is_that_of_the_curves(tasks: dict[str, dict[Ran, Curves]], task: str, heading: str) -> None:
    reported = {
        (run.law, run.name): {seed: curve for seed, curve in curves.items() if seed in REPORTING}
        for run, curves in tasks[task].items()
        if set(curves) & REPORTING
    }
    shown = table(PAGE, heading)
    assert {(row[0].strip("`"), row[1]) for row in shown} == {key for key in reported if key[0] != "const:0"}
    for row in shown:
        law, name = row[0].strip("`"), row[1]
        curves, fresh = reported[law, name], reported.get(("const:0", name))
        base = "TOPR" if (law, "TOPR") in reported else "TOPR, .25"
        seeds = sorted(curves)
        areas = [area(curves[seed], law) for seed in seeds]
        own = [area(fresh[seed], law) for seed in seeds] if fresh else []
        ahead = [area(reported[law, base][seed], law) - height for seed, height in zip(seeds, areas, strict=True)]
        lost = [100 * (1 - height / base) for height, base in zip(areas, own, strict=bool(own))]
        assert row[2:] == [
            str(len(seeds)),
            short(mean(own)) if own else "–",
            short(mean(areas)),
            interval(lost, 100 * (1 - sum(areas) / sum(own))) if own else "–",
            "–" if name == base else interval([100 * each for each in ahead], 100 * mean(ahead)),
            *ends_of(curves),
            distance_of(curves, law),
        ]


def interval(values: list[float], middle: float) -> str:
    """The figure, and the interval of 90 % around the mean of its seeds."""
    half = T_95[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return f"{middle:.1f} ({mean(values) - half:.1f} … {mean(values) + half:.1f})".replace("-", "−")


def test_the_page_names_every_law_that_was_not_run(runs: dict[Ran, Curves]) -> None:
    left = PAGE.split("## What is left\n")[1]
    ran = {run.law for run, curves in runs.items() if set(curves) >= REPORTING}
    for law in {"const:64", "const:128", "block:32", "stage:64", "start", "const:256"} - ran:
        assert f"`{law}`" in left
