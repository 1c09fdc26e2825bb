"""`p2prl bench swarm`: processor seconds to a reward, of a swarm on one machine and of TRL's trainer alone."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import asdict
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, numbers, print_table
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import ConfigError


def bench_swarm(
    presets: Annotated[
        str, typer.Option("--presets", help="Comma-separated presets of p2prl init that make their own model.")
    ] = "chain4",
    volunteers: Annotated[
        str, typer.Option("--volunteers", help="Comma-separated: volunteers of each swarm, all on this machine.")
    ] = "1,4",
    target: Annotated[
        float, typer.Option("--target", min=0.0, max=1.0, help="Reward to reach, mean of the last 8 updates.")
    ] = 0.85,
    updates: Annotated[int, typer.Option("--updates", min=8, help="Updates at most.")] = 200,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what a swarm costs: processor seconds to the reward of TRL's GRPOTrainer alone, and where they go."""
    if importlib.util.find_spec("trl") is None or importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "TRL is not installed, which the swarm is held against",
            remedy="pip install --no-deps -c constraints.txt trl datasets pandas pyarrow dill multiprocess xxhash",
        )
    from p2prl_lab import swarm_price

    began = time.monotonic()
    config = swarm_price.PriceConfig(
        presets=listed(presets),
        volunteers=numbers(volunteers, int, "--volunteers"),
        target=target,
        updates=updates,
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = list(swarm_price.run_price_bench(config, on_progress))
    if as_json:
        emit({"rows": [asdict(row) for row in rows], "seed": seed, "wall_s": time.monotonic() - began})
        return
    for table in swarm_price.as_markdown(rows).split("\n\n"):
        print_table(table)


BENCHMARK = Benchmark(
    bench_swarm,
    examples=("p2prl bench swarm --presets chain4 --volunteers 1,4 --target 0.85",),
)
