"""`p2prl bench plan`: the planner's forecasts against simulated swarms."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import require

_PARTS = ("fleets", "activation", "plans", "live")

_CHOSEN_FROM = 18
"""Fleets drawn for the choice of the cheapest machines."""


def bench_plan(
    updates: Annotated[int, typer.Option("--updates", min=8, help="Learner updates of a swarm.")] = 96,
    fleets: Annotated[int, typer.Option("--fleets", min=1, help="Swarms to simulate.")] = 24,
    parts: Annotated[
        str, typer.Option("--parts", help="Comma-separated: fleets, activation, plans, live.")
    ] = "fleets,activation,plans,live",
    live_updates: Annotated[
        int, typer.Option("--live-updates", min=64, help="Learner updates of each swarm over sockets.")
    ] = 128,
    share: Annotated[
        float, typer.Option("--share", min=0.05, max=1.0, help="Share of the time that its volunteers compute.")
    ] = 0.15,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare what p2prl plan predicts with what simulated swarms of the real roles come to, and the plan of ranks that
    --plan auto chooses with all plans measured; then a swarm over sockets, with and without volunteers on standby."""
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl_lab import plan_live
    from p2prl_lab.bench.plan import activation, benchmark, host_plans

    began = time.monotonic()
    wanted = listed(parts)
    for part in wanted:
        require("parts", part, part in _PARTS, f"of {', '.join(_PARTS)}")
    fleet_rows: list[benchmark.PlanRow] = []
    chosen: list[activation.ActivationRow] = []
    plans: list[host_plans.HostPlanRow] = []
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        if "plans" in wanted:
            plans = list(host_plans.run_host_plan_bench(on_progress))
        live = (
            plan_live.run_live_bench(updates=live_updates, share=share, on_progress=on_progress)
            if "live" in wanted
            else None
        )
        use_threads(1)
        if "activation" in wanted:
            chosen = list(
                activation.run_activation_bench(
                    updates=max(8, updates // 2), seed=seed, fleets=_CHOSEN_FROM, on_progress=on_progress
                )
            )
        if "fleets" in wanted:
            fleet_rows = list(
                benchmark.run_plan_bench(updates=updates, seed=seed, fleets=fleets, on_progress=on_progress)
            )
    if as_json:
        emit(
            {
                "fleets": [asdict(row) for row in fleet_rows],
                "activation": [asdict(row) for row in chosen],
                "plans": [asdict(row) for row in plans],
                "live": {} if live is None else asdict(live),
                "seed": seed,
                "wall_s": time.monotonic() - began,
            }
        )
        return
    for table in (
        benchmark.as_markdown(fleet_rows) if fleet_rows else "",
        activation.as_markdown(chosen) if chosen else "",
        host_plans.as_markdown(plans) if plans else "",
        plan_live.as_markdown(live) if live is not None else "",
    ):
        if table:
            print_table(table)


BENCHMARK = Benchmark(
    bench_plan,
    examples=("p2prl bench plan --updates 96 --seed 1",),
)
