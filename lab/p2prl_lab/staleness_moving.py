"""The experiment with a policy that moves, as far as its rows go: tables, curves, and the summary kept beside its page.

    python -m p2prl_lab.staleness_moving OUT --summary docs/benchmarks/staleness_moving.json

OUT is a folder of `p2prl bench staleness`. Nothing is run; a cell that has no rows is left out. The summary has the
curves of all seeds, development seeds too, rounded, and the digest of the rows they come from.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from p2prl_lab.bench.staleness.charts import plot_curves
from p2prl_lab.bench.staleness.comparisons import as_markdown as comparisons_as_markdown
from p2prl_lab.bench.staleness.comparisons import comparisons_of
from p2prl_lab.bench.staleness.results import ResultFile, Setting
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.staleness.summary import as_markdown, rows_of
from p2prl_lab.bench.staleness.sweep import DEVELOPMENT_SEEDS
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import TrainingPlan

REPORTING = range(30, 40)
"""Seeds that are reported, seen by no choice of a setting."""

DEFAULT = "topr:negative_high=0.25+amsgrad"
"""Begins the method that others are compared with."""

POINT = ("update", "greedy", "pass_at_8", "entropy", "kl")
"""What the summary keeps of an evaluation; of methods that are neither reported nor named, `TRIED_POINT`."""

TRIED_POINT = POINT[:2]
"""What a choice is made by."""


def main() -> None:
    """Print the tables, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of `p2prl bench staleness`")
    parser.add_argument("--task", default="arrive8:32")
    parser.add_argument("--updates", type=int, default=192)
    parser.add_argument("--methods", default="", help="comma-separated; those that these seeds were run with")
    parser.add_argument("--seed", type=int, default=REPORTING.start, help="the first seed")
    parser.add_argument("--seeds", type=int, default=len(REPORTING))
    parser.add_argument("--summary", type=Path, help="JSON file to write")
    parser.add_argument("--chart", type=Path, help="PNG file to write")
    options = parser.parse_args()
    rows, plan = ResultFile(options.out / "results.jsonl"), plan_of(options.task, options.updates)
    mine = [each for each in rows.settings() if each == Setting.of(options.task, each.method, each.delay, plan)]
    named = options.methods.split(",") if options.methods else []
    if options.summary is not None:
        digest = hashlib.sha256((options.out / "results.jsonl").read_bytes()).hexdigest()
        options.summary.write_text(as_text(summary_of(rows, mine, digest, named)), encoding="utf-8")
    seeds = range(options.seed, options.seed + options.seeds)
    shown = [each for each in mine if rows.of(each, seeds)]
    methods = named or methods_of(shown)
    laws = list(dict.fromkeys(each.delay for each in shown))
    print(as_markdown(rows_of(rows, options.task, methods, laws, plan, seeds)))
    print(comparisons_as_markdown(comparisons_of(rows, options.task, methods, laws, plan, seeds)))
    if options.chart is not None:
        plot_curves(rows, options.task, methods, dict.fromkeys(laws, plan), seeds, options.chart)


def plan_of(task: str, updates: int) -> TrainingPlan:
    """The plan of a task's runs, by whose results they are found."""
    environment = environment_by_name(task)
    usual, final = environment.evaluated_prompts
    return TrainingPlan(
        updates=updates,
        evaluate_every=environment.evaluate_every,
        evaluation_prompts=usual,
        final_prompts=final,
    )


def methods_of(shown: Iterable[Setting]) -> list[str]:
    """The methods, the default first."""
    return sorted({each.method for each in shown}, key=lambda method: (not method.startswith(DEFAULT), method))


def summary_of(rows: ResultFile, settings: Sequence[Setting], digest: str, named: Sequence[str]) -> dict[str, Any]:
    """Curves of every seed of these settings, to five digits; whole ones of `named` methods and of reported ones."""
    chosen = {setting.method for setting in settings if rows.of(setting, REPORTING)} | set(named)
    found = ((setting, rows.of(setting, [*DEVELOPMENT_SEEDS, *REPORTING])) for setting in settings)
    return {
        "rows_sha256": digest,
        "runs": [
            _run(setting, results, POINT if setting.method in chosen else TRIED_POINT)
            for setting, results in found
            if results
        ],
    }


def _run(setting: Setting, found: Sequence[SeedResult], point: Sequence[str]) -> dict[str, Any]:
    return {
        "task": setting.task,
        "method": setting.method,
        "law": setting.delay,
        "updates": setting.updates,
        "torch": sorted({each.torch for each in found}),
        "seeds": [each.seed for each in found],
        "point": list(point),
        "curves": [[[_rounded(getattr(e, name)) for name in point] for e in each.evaluations] for each in found],
    }


def as_text(summary: dict[str, Any]) -> str:
    """JSON with a line for each run."""
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in summary.items() if key != "runs")
    lines = ",\n".join("  " + json.dumps(run, separators=(",", ":")) for run in summary["runs"])
    return f'{{\n{head} "runs": [\n{lines}\n ]\n}}\n'


def _rounded(figure: float) -> float:
    return float(f"{figure:.5g}")


if __name__ == "__main__":
    main()
