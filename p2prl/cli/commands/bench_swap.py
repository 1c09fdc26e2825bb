"""`p2prl bench swap`: the time a policy swap stops sampling."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2prl.cli.commands.bench_results import verdict_line
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError


def bench_swap(
    swaps: Annotated[int, typer.Option("--swaps", min=1, help="Number of policy swaps.")] = 10,
    dtype: Annotated[str, typer.Option("--dtype", help="Type of the weights: bfloat16, float16, float32.")] = (
        "bfloat16"
    ),
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a swap stalls for more than .3 s.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how long a policy swap stops sampling, with 30 million parameters and a transfer running."""
    from p2prl.bench.hot_swap.benchmark import STALL_BOUND_S, SwapBenchConfig, run_swap_bench
    from p2prl.models.device import use_threads

    began = time.monotonic()
    use_threads(1)  # leaves a core for the transfer and the preparation
    config = SwapBenchConfig(swaps=swaps, dtype=dtype, seed=seed)
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        report = run_swap_bench(config, on_progress=on_progress)
    if as_json:
        emit({**vars(report), "met": report.met, "seed": seed, "wall_s": time.monotonic() - began})
    else:
        longest = max(report.stalls_s)
        say(f"{report.parameters:,} parameters in {dtype}, a patch of {report.patch_bytes:,} bytes, {swaps} swaps")
        say(f"a token takes {report.step_s:.3f} s alone, {report.busy_step_s:.3f} s during transfer and preparation")
        say(f"preparing takes {report.prepare_s:.2f} s beside a transfer of {report.transfer_mb_s:.0f} MB/s")
        say(verdict_line("longest gap between two tokens at a swap, s", STALL_BOUND_S, longest, report.met))
    if check and not report.met:
        raise P2PRLError("a swap stalls sampling for too long", remedy="Rerun it while nothing else is running.")
