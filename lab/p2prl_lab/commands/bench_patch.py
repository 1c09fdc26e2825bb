"""`p2prl bench patch`: weight patches against other layouts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, numbers, print_table, verdict_line
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError


def bench_patch(
    words: Annotated[int, typer.Option("--words", help="Words of a simulated segment.")] = 1 << 22,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measurements of each speed; the best counts.")] = 3,
    run: Annotated[
        Path | None,
        typer.Option("--run", help="A run folder whose published versions are also measured. Default: none."),
    ] = None,
    train: Annotated[
        str,
        typer.Option(
            "--train", help="An environment, such as chain4@240x6, whose policy is trained and measured. Default: none."
        ),
    ] = "",
    bands: Annotated[
        str, typer.Option("--bands", help="Dead bands, ulp of bfloat16, comma-separated. Default: none.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="Folder for the table, the plot and the JSON.")] = Path(
        "runs/bench-patch"
    ),
    check: Annotated[bool, typer.Option("--check", help="Also check the acceptance criteria.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare weight patches with other layouts: bits per changed word, ratio, speed."""
    from p2prl_lab.bench.patch.benchmark import PatchBenchConfig, run_patch_bench
    from p2prl_lab.bench.patch.dead_bands import bands_as_markdown
    from p2prl_lab.bench.patch.history_gain import history_as_markdown
    from p2prl_lab.bench.patch.report import as_document, as_markdown

    began = time.monotonic()
    config = PatchBenchConfig(
        words=words, repeats=repeats, run=run, train=train, bands=numbers(bands, int, "--bands"), seed=seed
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        report = run_patch_bench(config, out, on_progress=on_progress)
    demands = report.demands()
    if as_json:
        emit({**as_document(report, seed=config.seed, words=config.words), "wall_s": time.monotonic() - began})
    else:
        print_table(as_markdown(report))
        say(f"16 versions in one patch: {report.merged_over_chain:.3f} of the chain")
        if report.bands:
            print_table(bands_as_markdown(report.bands))
        if report.history:
            print_table(history_as_markdown(report.history))
        for demand in demands if check else ():
            say(verdict_line(demand.text, demand.bound, demand.measured, demand.met))
        tables = ", ".join(
            ["patches-table.md", *["bands-table.md"] * bool(report.bands), *["history-table.md"] * bool(report.history)]
        )
        say(f"written to {out}: patches.json, {tables}, patches.png")
    failed = sum(not demand.met for demand in demands)
    if check and failed:
        raise P2PRLError(
            f"{failed} of {len(demands)} criteria are not met",
            remedy="Speeds depend on the machine: rerun it while nothing else is running.",
        )


BENCHMARK = Benchmark(
    bench_patch,
    examples=(
        "p2prl bench patch --words 65536",
        "p2prl bench patch --run runs/demo",
        "p2prl bench patch --train chain4@96x2",
    ),
)
