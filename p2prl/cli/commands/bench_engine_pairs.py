"""`p2prl bench engine --pairs`: the groups of each engine replayed by each other one."""

from __future__ import annotations

import time

from p2prl.cli.commands.bench_results import print_table
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError


def pairs_command(*, groups: int, device: str, check: bool, seed: int, as_json: bool) -> None:
    """Sample with one engine and replay with another: honest groups must pass, an edited token must be found."""
    from p2prl.bench.engine_pairs.benchmark import PairsConfig, run_pairs_bench
    from p2prl.models.hardware.device import choose_device, device_class, use_threads

    began = time.monotonic()
    chosen = choose_device(device)
    use_threads(1)
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        results = run_pairs_bench(PairsConfig(groups=groups, device=chosen, seed=seed), on_progress=on_progress)
    if as_json:
        rows = [vars(result) | {"met": result.met} for result in results]
        met, name = all(result.met for result in results), device_class(chosen)
        emit({"rows": rows, "device": name, "met": met, "wall_s": time.monotonic() - began})
    else:
        lines = [
            "| sampler | scorer | dtype | T | spread | groups | rejected | off | worst | edits found | least | miss |",
            "|---|---|---|---:|---:|---:|---:|---:|---:|---|---:|---:|",
        ]
        lines += [
            f"| {r.sampler} | {r.scorer} | {r.dtype} | {r.temperature:g} | {r.spread:g} | {r.groups} | {r.rejected}"
            f" | {r.mismatched / r.tokens:.2%} | {r.worst_margin:.3f} | {'all' if r.edited_found else 'NOT ALL'} of"
            f" {r.edited} | {r.smallest_edit:.2f} | {r.largest_missed:.2f} |"
            for r in results
        ]
        print_table("\n".join(lines))
    if check and not all(result.met for result in results):
        raise P2PRLError("a pair of engines misses its demand", remedy="See the rows with rejected or missed groups.")
