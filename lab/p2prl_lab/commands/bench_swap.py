"""`p2prl bench swap`: the time a policy swap stops sampling."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, verdict_line
from p2prl.cli.options import AsJson, BenchDevice, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError

if TYPE_CHECKING:
    from p2prl_lab.bench.hot_swap.part_costs import PartCosts


def bench_swap(
    swaps: Annotated[int, typer.Option("--swaps", min=1, help="Number of policy swaps.")] = 10,
    dtype: Annotated[str, typer.Option("--dtype", help="Type of the weights: bfloat16, float16, float32.")] = (
        "bfloat16"
    ),
    device: BenchDevice = "cpu",
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a swap stalls for more than .3 s.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how long a policy swap stops sampling, with 30 million parameters and a transfer, and its parts alone."""
    from p2prl.models.hardware.device_choice import choose_device, device_class, use_threads
    from p2prl_lab.bench.hot_swap.benchmark import STALL_BOUND_S, SwapBenchConfig, run_swap_bench

    began = time.monotonic()
    chosen = choose_device(device)
    use_threads(1)  # leaves a core for the transfer and the preparation
    config = SwapBenchConfig(swaps=swaps, dtype=dtype, device=chosen, seed=seed)
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        report = run_swap_bench(config, on_progress=on_progress)
    if as_json:
        beside = {"met": report.met, "device": device_class(chosen), "seed": seed, "wall_s": time.monotonic() - began}
        emit({**asdict(report), **beside})
    else:
        longest = max(report.stalls_s)
        say(f"{report.parameters:,} parameters in {dtype}, a patch of {report.patch_bytes:,} bytes, {swaps} swaps")
        say(f"a token takes {report.step_s:.3f} s alone, {report.busy_step_s:.3f} s during transfer and preparation")
        say(f"preparing takes {report.prepare_s:.2f} s beside a transfer of {report.transfer_mb_s:.0f} MB/s")
        say(verdict_line("longest gap between two tokens at a swap, s", STALL_BOUND_S, longest, report.met))
        _say_parts(report.parts, "processor" if chosen.type == "cpu" else "wall")
    if check and not report.met:
        raise P2PRLError("a swap stalls sampling for too long", remedy="Rerun it while nothing else is running.")


def _say_parts(parts: PartCosts, clock: str) -> None:
    say(f"parts of a swap alone, ms of {clock} time:")
    for each in parts.writes:
        say(f"  write what changes and look at it, {each.changed_share:.1%} of the words: {each.write_s * 1e3:.2f}")
    say(f"  copy and hash all weights: {parts.copy_s * 1e3:.2f}")
    say(f"  forward pass of four tokens: {parts.forward_s * 1e3:.2f}")
    say(f"  stage, in the thread: {parts.stage_s * 1e3:.2f}; without comparing: {parts.check_s * 1e3:.2f}")


BENCHMARK = Benchmark(
    bench_swap,
    examples=("p2prl bench swap --swaps 3",),
)
