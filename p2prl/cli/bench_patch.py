"""`p2prl bench patch` and `p2prl bench swap`."""

from __future__ import annotations

import time
from pathlib import Path

from p2prl.cli.console import emit, progress, say
from p2prl.cli.listed import numbers
from p2prl.errors import P2PRLError


def bench_patch(
    *, words: int, repeats: int, run: Path | None, bands: str, out: Path, check: bool, seed: int, as_json: bool
) -> None:
    """Weight patches beside other layouts."""
    from p2prl.bench.patch.benchmark import PatchBenchConfig, as_document, as_markdown, run_patch_bench
    from p2prl.bench.patch.dead_bands import bands_as_markdown

    began = time.monotonic()
    config = PatchBenchConfig(words=words, repeats=repeats, run=run, bands=numbers(bands, int, "--bands"), seed=seed)
    with progress("benchmark", quiet=as_json) as tell:
        report = run_patch_bench(config, out, on_progress=tell)
    demands = report.demands()
    if as_json:
        emit({**as_document(config, report), "wall_s": time.monotonic() - began})
    else:
        for line in as_markdown(report).splitlines():
            say(line, whole=True)
        say(f"16 versions in one patch: {report.merged_over_chain:.3f} of the chain")
        for line in bands_as_markdown(report.bands).splitlines() if report.bands else ():
            say(line, whole=True)
        for demand in demands if check else ():
            say(_line(demand.text, demand.bound, demand.measured, met=demand.met))
        tables = "patches-table.md, bands-table.md" if report.bands else "patches-table.md"
        say(f"written to {out}: patches.json, {tables}, patches.png")
    failed = sum(not demand.met for demand in demands)
    if check and failed:
        raise P2PRLError(
            f"{failed} of {len(demands)} demands are not met",
            remedy="Speeds are the machine's: run it when nothing else does.",
        )


def bench_swap(*, swaps: int, dtype: str, check: bool, seed: int, as_json: bool) -> None:
    """How long sampling stands still at a swap."""
    from p2prl.bench.hot_swap.benchmark import STALL_BOUND_S, SwapBenchConfig, run_swap_bench
    from p2prl.models.device import use_threads

    began = time.monotonic()
    use_threads(1)  # the other core is for the transfer and the preparation
    config = SwapBenchConfig(swaps=swaps, dtype=dtype, seed=seed)
    with progress("benchmark", quiet=as_json) as tell:
        report = run_swap_bench(config, on_progress=tell)
    if as_json:
        emit({**vars(report), "met": report.met, "seed": seed, "wall_s": time.monotonic() - began})
    else:
        longest = max(report.stalls_s)
        say(f"{report.parameters:,} parameters in {dtype}, a patch of {report.patch_bytes:,} bytes, {swaps} swaps")
        say(f"a token takes {report.step_s:.3f} s alone, {report.busy_step_s:.3f} s during transfer and preparation")
        say(f"preparing takes {report.prepare_s:.2f} s beside a transfer of {report.transfer_mb_s:.0f} MB/s")
        say(_line("longest gap between two tokens at a swap, s", STALL_BOUND_S, longest, met=report.met))
    if check and not report.met:
        raise P2PRLError("a swap stalls sampling for too long", remedy="Run it when nothing else does.")


def _line(text: str, bound: float, measured: float, *, met: bool) -> str:
    return f"{'met' if met else 'NOT MET':12}  {text}: {measured:.3f} (bound {bound:g})"
