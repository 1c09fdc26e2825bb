"""`p2prl bench replay`: the cost of checking groups, and how busy it leaves the learner's training thread."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, numbers, print_table, verdict_line
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError


def bench_replay(
    models: Annotated[str, typer.Option("--models", help="Models, comma-separated: 29m, 123m.")] = "29m,123m",
    batches: Annotated[str, typer.Option("--batches", help="Rows decoded at once, comma-separated.")] = "16",
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each completion.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", help="Measurements of each; the median counts.")] = 3,
    updates: Annotated[int, typer.Option("--updates", help="Updates of the learner's run; 0 leaves it out.")] = 4,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a demand is missed.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure replay against generating the same groups, and a learner that two volunteers outrun."""
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl_lab.bench.replay.outrun_learner import BUSY_BOUND, OutrunConfig, measure_outrun_learner
    from p2prl_lab.bench.replay.replay_cost import REPLAY_BOUND, ReplayCostConfig, measure_replay_cost

    began = time.monotonic()
    use_threads(1)
    config = ReplayCostConfig(
        models=tuple(name.strip() for name in models.split(",") if name.strip()),
        batches=numbers(batches, int, "--batches"),
        new_tokens=tokens,
        repeats=repeats,
        seed=seed,
    )
    outrun = None
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        costs = measure_replay_cost(config, on_progress)
        if updates:
            on_progress("a learner and two volunteers", 0.9)
            outrun = measure_outrun_learner(OutrunConfig(updates=updates, seed=seed))
    met = all(cost.met for cost in costs if cost.is_demanded) and (outrun is None or outrun.met)
    if as_json:
        learner = {} if outrun is None else vars(outrun) | {"met": outrun.met}
        rows = [vars(cost) | {"met": cost.met} for cost in costs]
        emit({"rows": rows, "learner": learner, "met": met, "seed": seed, "wall_s": time.monotonic() - began})
    else:
        lines = ["| model | batch | generating, s | replay, s | of generating |", "|---|---:|---:|---:|---:|"]
        lines += [
            f"| {cost.model} | {cost.batch} | {cost.generating_s:.2f} | {cost.replaying_s:.2f}"
            f" | {cost.of_generating:.2f} |"
            for cost in costs
        ]
        print_table("\n".join(lines))
        for cost in filter(lambda cost: cost.is_demanded, costs):
            name = f"replay of generating, {cost.model}, batch {cost.batch}"
            say(verdict_line(name, REPLAY_BOUND, cost.of_generating, cost.met))
        if outrun is not None:
            say(verdict_line("training thread busy", BUSY_BOUND, outrun.busy, outrun.met))
            say(
                f"publishing {outrun.publishing:.1%}, checkpoints {outrun.checkpoint:.1%}, waiting for groups"
                f" {outrun.waiting_groups:.1%}, for replay {outrun.waiting_replay:.1%}"
            )
            say(
                f"{outrun.seconds_per_update:.1f} s an update; {outrun.groups_settled} of {outrun.groups_stored} stored"
                " groups settled"
            )
    if check and not met:
        raise P2PRLError("replay misses a demand", remedy="Rerun it while nothing else is running.")


BENCHMARK = Benchmark(
    bench_replay,
    examples=("p2prl bench replay --models 29m",),
)
