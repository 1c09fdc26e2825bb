"""`p2prl bench draw`: the cost of drawing a token."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, numbers, print_table
from p2prl.cli.options import AsJson, BenchDevice, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar


def bench_draw(
    vocabulary: Annotated[int, typer.Option("--vocabulary", min=1, help="Tokens to draw from.")] = 151_936,
    batches: Annotated[str, typer.Option("--batches", help="Rows drawn at once, comma-separated.")] = "8,32",
    device: BenchDevice = "cpu",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measurements of each; the median counts.")] = 15,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure a row's seeded draw against its definition: processor time on one CPU thread, or wall time on a GPU."""
    from p2prl.models.hardware.device_choice import choose_device, device_class, use_threads
    from p2prl_lab.bench.draw_cost.benchmark import DrawBenchConfig, run_draw_bench

    began = time.monotonic()
    chosen = choose_device(device)
    use_threads(1)
    config = DrawBenchConfig(
        vocabulary=vocabulary,
        batches=numbers(batches, int, "--batches"),
        repeats=repeats,
        device=chosen,
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        costs = run_draw_bench(config, on_progress=on_progress)
    if as_json:
        rows, name = [vars(cost) for cost in costs], device_class(chosen)
        emit({"rows": rows, "device": name, "seed": seed, "wall_s": time.monotonic() - began})
        return
    lines = ["| way | rows | ms a row | with log-probs | same tokens |", "|---|---:|---:|---:|---:|"]
    for cost in costs:
        spent = f"{cost.ms_per_row:.3f} | {cost.ms_per_row_with_logprobs:.3f}"
        lines.append(f"| {cost.way} | {cost.batch} | {spent} | {cost.same_tokens} of {cost.batch} |")
    print_table("\n".join(lines))


BENCHMARK = Benchmark(
    bench_draw,
    examples=("p2prl bench draw --batches 8",),
)
