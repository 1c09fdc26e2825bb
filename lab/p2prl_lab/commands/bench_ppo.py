"""`p2prl bench ppo`: the key factors of PPO compared, with DPO for reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed
from p2prl.cli.options import AsJson, Seed
from p2prl_lab.commands.recipe_comparison import compare_recipes


def bench_ppo(
    recipes: Annotated[
        str, typer.Option("--recipes", help="Recipes to compare, each `loss[:option=value…]`; see docs/cli.md.")
    ] = "ppo, ppo:normalise=off, ppo:prompts=4, ppo:reference=start, ppo:reference=ema, "
    "dpo, dpo:reference=start, dpo:reference=ema, dpo:samples=start, grpo, ppo:prompts=32",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per recipe.")] = 5,
    updates: Annotated[int, typer.Option("--updates", min=30, help="Batches per run, a multiple of 10.")] = 80,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    task: Annotated[str, typer.Option("--task", help="chain4 or walk12.")] = "chain4",
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the results; a rerun resumes where it stopped.")
    ] = Path("runs/bench-ppo"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare PPO's key factors, with DPO for reference: table, curves and JSON."""
    from p2prl_lab.bench.comparison.benchmark import Case, ComparisonConfig, plan_of

    config = ComparisonConfig(
        cases=tuple(Case(recipe=recipe) for recipe in listed(recipes)),
        seeds=seeds,
        first_seed=seed,
        task=task,
        plan=plan_of(updates, learning_rate),
    )
    compare_recipes(config, out, name="ppo", shown=("success", "readable"), as_json=as_json)


BENCHMARK = Benchmark(
    bench_ppo,
    examples=("p2prl bench ppo --recipes 'ppo, ppo:normalise=off' --seeds 1",),
)
