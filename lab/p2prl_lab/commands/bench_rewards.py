"""`p2prl bench rewards`: rewards compared on one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed
from p2prl.cli.options import AsJson, Seed
from p2prl_lab.commands.recipe_comparison import compare_recipes

_REWARDS = (
    "success, success+0.2*process, success+0.2*process:clip, success+0.2*process:delta, success+0.2*process:clip+delta"
)


def bench_rewards(
    rewards: Annotated[
        str, typer.Option("--rewards", help="Rewards to compare, e.g. success, success+0.2*process:clip+delta.")
    ] = _REWARDS,
    recipe: Annotated[str, typer.Option("--recipe", help="How the policy is trained; see `p2prl bench ppo`.")] = "ppo",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per reward.")] = 5,
    updates: Annotated[int, typer.Option("--updates", min=30, help="Batches per run, a multiple of 10.")] = 80,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    task: Annotated[str, typer.Option("--task", help="chain4 or walk12.")] = "chain4",
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=0, help="Longest completion; 0 is the task's own.")
    ] = 16,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a rerun resumes where it stopped.")
    ] = Path("runs/bench-rewards"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Show how a process reward is hacked and what prevents it: table, curves and JSON."""
    from p2prl_lab.bench.comparison.benchmark import Case, ComparisonConfig, plan_of

    config = ComparisonConfig(
        cases=tuple(Case(recipe=recipe, reward=reward) for reward in listed(rewards)),
        seeds=seeds,
        first_seed=seed,
        task=task,
        max_new_tokens=max_new_tokens or None,
        plan=plan_of(updates, learning_rate),
    )
    compare_recipes(config, out, name="rewards", shown=("success", "tokens", "true_steps"), as_json=as_json)


BENCHMARK = Benchmark(
    bench_rewards,
    examples=("p2prl bench rewards --rewards 'success, success+0.2*process:clip+delta' --seeds 1",),
)
