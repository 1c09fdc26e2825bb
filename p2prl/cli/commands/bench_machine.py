"""`p2prl bench machine`: what this machine would give to a run, before any key exists."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, print_table
from p2prl.cli.options import AsJson, Device, Seed, Threads
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.quantity_text import credit, size_text

_HEADING = "| model | parameters | tokens/s | tokens a day | credit a day |\n|---|---:|---:|---:|---:|"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2prl.bench.machine.benchmark import FitRow, SpeedRow


def bench_machine(
    models: Annotated[
        str, typer.Option("--models", help="29m, 123m, 494m, 1544m and 7615m, comma-separated.")
    ] = "29m,123m",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Completions at once.")] = 16,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of a completion.")] = 64,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: Device = "auto",
    threads: Threads = 0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure tokens a second by model size, and tell which sizes fit. Makes no key and contacts nobody."""
    from p2prl.bench.machine.benchmark import MachineBenchConfig, fit_rows, free_memory, run_machine_bench
    from p2prl.models.hardware.device_choice import choose_device, device_class, use_threads

    began = time.monotonic()
    chosen = choose_device(device)
    use_threads(threads)
    memory = free_memory(chosen)
    config = MachineBenchConfig(
        models=listed(models), device=chosen, dtype=dtype, batch=batch, tokens=tokens, seed=seed
    )
    fits = fit_rows(memory, dtype)
    name = device_class(chosen)
    rows: list[SpeedRow] = []
    if not as_json:
        say(f"{name}, {size_text(memory)} of memory free, {dtype}")
        print_table(_HEADING)
    try:
        with progress_bar("measuring", quiet=as_json) as on_progress:
            for row in run_machine_bench(config, on_progress=on_progress):
                rows.append(row)
                if not as_json:
                    print_table(speed_line(row))
    finally:  # also of what an interrupted measurement has found
        if as_json and rows:
            emit(
                {
                    "device": name,
                    "memory_bytes": memory,
                    "speed": [asdict(row) for row in rows],
                    "fits": [asdict(row) for row in fits],
                    "seed": seed,
                    "wall_s": time.monotonic() - began,
                }
            )
    if as_json:
        return
    say(fit_sentence(fits))
    say("Upload is measured once you join, and 80 % of it is used: p2prl join LINK --upload-mbit 5 sets less.")


def fit_sentence(fits: Sequence[FitRow]) -> str:
    """The largest size that fits."""
    most = max((row for row in fits if row.fits), key=lambda row: row.parameters, default=None)
    if most is None:
        least = min(fits, key=lambda row: row.parameters)
        return f"Models of {least.parameters / 1e9:g} billion parameters and more do not fit; smaller ones may."
    return f"Models of up to {most.parameters / 1e9:g} billion parameters fit, with {size_text(most.needs_bytes)}."


def speed_line(row: SpeedRow) -> str:
    """A row of the table; credit as the board writes it."""
    day = f"{row.tokens_per_s * 86_400 / 1e6:,.1f} M"
    return f"| {row.model} | {row.parameters:,} | {row.tokens_per_s:,.0f} | {day} | {credit(row.credit_per_day)} |"


BENCHMARK = Benchmark(
    bench_machine,
    examples=(
        "p2prl bench machine",
        "p2prl bench machine --models 494m --dtype bfloat16",
    ),
)
