"""`p2prl bench plan`: the planner's forecasts against simulated swarms."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar

_CHOSEN_FROM = 18
"""Fleets drawn for the choice of the cheapest machines."""


def bench_plan(
    updates: Annotated[int, typer.Option("--updates", min=8, help="Learner updates of a swarm.")] = 24,
    fleets: Annotated[int, typer.Option("--fleets", min=1, help="Swarms to simulate.")] = 24,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare what p2prl plan predicts with what simulated swarms of the real roles come to."""
    from p2prl.models.hardware.device import use_threads
    from p2prl_lab.bench.plan import activation, benchmark

    began = time.monotonic()
    use_threads(1)
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        chosen = list(
            activation.run_activation_bench(
                updates=2 * updates, seed=seed, fleets=_CHOSEN_FROM, on_progress=on_progress
            )
        )
        rows = list(benchmark.run_plan_bench(updates=updates, seed=seed, fleets=fleets, on_progress=on_progress))
    if as_json:
        emit(
            {
                "fleets": [asdict(row) for row in rows],
                "activation": [asdict(row) for row in chosen],
                "seed": seed,
                "wall_s": time.monotonic() - began,
            }
        )
        return
    print_table(benchmark.as_markdown(rows))
    print_table(activation.as_markdown(chosen))


BENCHMARK = Benchmark(
    bench_plan,
    examples=("p2prl bench plan --updates 24 --seed 1",),
)
