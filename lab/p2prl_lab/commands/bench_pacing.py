"""`p2prl bench pacing`: orders of replay compared where hard prompts are slow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar


def bench_pacing(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds per order.")] = 3,
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates of a run.")] = 300,
    staleness: Annotated[int, typer.Option("--staleness", min=1, help="Largest staleness, in updates.")] = 32,
    slow: Annotated[
        float, typer.Option("--slow", help="Seconds of an easy group on a slow machine; an update takes one.")
    ] = 12.0,
    learning_rate: Annotated[float, typer.Option("--lr", help="AdamW's learning rate.")] = 5e-4,
    out: Annotated[Path, typer.Option("--out", help="Folder where warm starts are kept.")] = Path("runs/bench-pacing"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare dropping what is too stale with keeping turns and pacing, on slow machines with hard prompts."""
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl_lab.bench.pacing.benchmark import PacingConfig, as_documents, as_markdown, run_pacing
    from p2prl_lab.bench.pacing.slow_swarm import SlowSwarm

    began = time.monotonic()
    use_threads(1)  # matrix products this small are slower on more threads
    config = PacingConfig(
        swarm=SlowSwarm(updates=updates, staleness_bound=staleness, slow_s=slow),
        seeds=seeds,
        first_seed=seed,
        learning_rate=learning_rate,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = run_pacing(config, out, on_progress=on_progress)
    if as_json:
        emit({"rows": as_documents(rows), "seeds": seeds, "seed": seed, "wall_s": time.monotonic() - began})
        return
    print_table(as_markdown(rows))


BENCHMARK = Benchmark(
    bench_pacing,
    examples=("p2prl bench pacing --seeds 1 --updates 100",),
)
