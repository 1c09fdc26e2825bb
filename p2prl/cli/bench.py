"""`p2prl bench`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from p2prl.cli.console import emit, progress, say
from p2prl.cli.listed import listed
from p2prl.errors import P2PRLError

if TYPE_CHECKING:
    from p2prl.bench.comparison.benchmark import ComparisonConfig


def bench_staleness(
    *,
    methods: str,
    delays: str,
    seeds: int,
    updates: int,
    learning_rate: float,
    task: str,
    step_s: float | None,
    out: Path,
    check: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Compare losses under delay. `methods` and `delays` are separated by commas; `seed` is the first of `seeds`."""
    from p2prl.bench.staleness.benchmark import StalenessConfig, run_staleness
    from p2prl.bench.staleness.summary import as_documents, as_markdown
    from p2prl.bench.training.training_plan import TrainingPlan
    from p2prl.models.device import use_threads

    began = time.monotonic()
    config = StalenessConfig(
        methods=listed(methods),
        delays=listed(delays),
        seeds=seeds,
        first_seed=seed,
        task=task,
        step_s=step_s,
        plan=TrainingPlan(updates=updates, learning_rate=learning_rate),
        check=check,
    )
    use_threads(1)  # products this small only lose by being shared out
    with progress("benchmark", quiet=as_json) as tell:
        report = run_staleness(config, out, on_progress=tell)
    verdicts = [
        {
            "demand": verdict.criterion.text,
            "figure": verdict.criterion.figure,
            "bound": verdict.criterion.bound,
            "at_least": verdict.criterion.at_least,
            "measured": verdict.measured,
            "met": verdict.met,
        }
        for verdict in report.verdicts
    ]
    if as_json:
        emit(
            {
                "task": task,
                "updates": updates,
                "learning_rate": learning_rate,
                "seeds": list(config.seed_range),
                "results": as_documents(report.rows),
                "demands": verdicts,
                "wall_s": time.monotonic() - began,
            }
        )
    else:
        for line in as_markdown(report.rows).splitlines():
            say(line, whole=True)
        for verdict in report.verdicts:
            say(_verdict_line(verdict.criterion.text, verdict.criterion.bound, verdict.measured, verdict.met))
        say(f"written to {out}: results.jsonl, staleness.csv, staleness.md, staleness.png")
    failed = sum(verdict.met is not True for verdict in report.verdicts)
    if failed:
        raise P2PRLError(
            f"{failed} of {len(verdicts)} demands are not met or not measured",
            remedy="Demands are judged on 5 seeds or more: see docs/benchmarks/staleness.md.",
        )


def bench_rewards(
    *,
    rewards: str,
    recipe: str,
    seeds: int,
    updates: int,
    learning_rate: float,
    task: str,
    max_new_tokens: int,
    out: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Train one recipe on several rewards. `rewards` are separated by commas; `seed` is the first of `seeds`."""
    from p2prl.bench.comparison.benchmark import Case, ComparisonConfig, plan_of

    config = ComparisonConfig(
        cases=tuple(Case(recipe=recipe, reward=reward) for reward in listed(rewards)),
        seeds=seeds,
        first_seed=seed,
        task=task,
        max_new_tokens=max_new_tokens or None,
        plan=plan_of(updates, learning_rate),
    )
    _compare(config, out, name="rewards", shown=("success", "tokens", "true_steps"), as_json=as_json)


def bench_ppo(
    *,
    recipes: str,
    seeds: int,
    updates: int,
    learning_rate: float,
    task: str,
    out: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Train several recipes on success. `recipes` are separated by commas; `seed` is the first of `seeds`."""
    from p2prl.bench.comparison.benchmark import Case, ComparisonConfig, plan_of

    config = ComparisonConfig(
        cases=tuple(Case(recipe=recipe) for recipe in listed(recipes)),
        seeds=seeds,
        first_seed=seed,
        task=task,
        plan=plan_of(updates, learning_rate),
    )
    _compare(config, out, name="ppo", shown=("success", "readable"), as_json=as_json)


def _compare(config: ComparisonConfig, out: Path, *, name: str, shown: tuple[str, ...], as_json: bool) -> None:
    from p2prl.bench.comparison.benchmark import run_comparison
    from p2prl.bench.comparison.report import as_documents, as_markdown
    from p2prl.models.device import use_threads

    began = time.monotonic()
    use_threads(1)  # products this small only lose by being shared out
    with progress("benchmark", quiet=as_json) as tell:
        rows = run_comparison(config, out, name=name, shown=shown, on_progress=tell)
    if as_json:
        emit(
            {
                "task": config.task,
                "updates": config.plan.updates,
                "learning_rate": config.plan.learning_rate,
                "max_new_tokens": config.environment().max_new_tokens,
                "seeds": list(config.seed_range),
                "results": as_documents(rows),
                "wall_s": time.monotonic() - began,
            }
        )
    else:
        for line in as_markdown(rows).splitlines():
            say(line, whole=True)
        say(f"written to {out}: results.jsonl, {name}.csv, {name}.md, {name}.png")


def _verdict_line(text: str, bound: float, measured: float | None, met: bool | None) -> str:
    answer = {True: "met", False: "NOT MET", None: "not measured"}[met]
    figure = "–" if measured is None else f"{measured:.3f}"
    return f"{answer:12}  {text}: {figure} (bound {bound:g})"
