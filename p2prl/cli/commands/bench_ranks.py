"""`p2prl bench ranks`: plans of ranks beside one process."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from p2prl.cli.benchmark import Benchmark, listed, print_table
from p2prl.cli.options import (
    AsJson,
    BatchCompletions,
    BatchGroups,
    BatchTokens,
    Checkpointing,
    MicroBatchTokens,
    Seed,
)
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar


def bench_ranks(
    plans: Annotated[str, typer.Option("--plans", help="Comma-separated, beside one process.")] = "dp2,pp2",
    zero: Annotated[int, typer.Option("--zero", help="2 or 3, as in run.toml.")] = 2,
    model: Annotated[str, typer.Option("--model", help="29m, 123m, 494m, 1544m or 7615m parameters.")] = "29m",
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="Words of the model.")] = 151_936,
    loss: Annotated[str, typer.Option("--loss", help="The loss.")] = "topr",
    groups: BatchGroups = 4,
    completions: BatchCompletions = 4,
    tokens: BatchTokens = 64,
    micro_batch_tokens: MicroBatchTokens = 0,
    share_micro_batches: Annotated[
        bool, typer.Option("--share-micro-batches", help="Ranks have as many tokens at once as one process.")
    ] = False,
    checkpointing: Checkpointing = False,
    updates: Annotated[int, typer.Option("--updates", help="Updates of each plan; the median time counts.")] = 3,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads of each rank.")] = 1,
    compare: Annotated[
        bool, typer.Option(help="Compare gradients and weights, and train twice; takes disk for a few models.")
    ] = True,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train by plans of ranks and in one process: gradients, weights, processor time and memory of each rank."""
    from p2prl.bench.ranks.benchmark import RanksBenchConfig, run_ranks_bench

    began = time.monotonic()
    config = RanksBenchConfig(
        plans=listed(plans),
        zero=zero,
        model=model,
        vocabulary=vocabulary,
        loss=loss,
        groups=groups,
        completions=completions,
        tokens=tokens,
        micro_batch_tokens=micro_batch_tokens,
        shares_micro_batches=share_micro_batches,
        checkpointing=checkpointing,
        updates=updates,
        threads=threads,
        compares=compare,
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = [asdict(row) for row in run_ranks_bench(config, on_progress=on_progress)]
    if as_json:
        emit({"rows": rows, "threads": threads, "seed": seed, "wall_s": time.monotonic() - began})
    else:
        print_table(_table(rows))


_COLUMNS = (
    "plan",
    "model",
    "batch",
    "largest gradient error",
    "words within 1e-5",
    "same bytes",
    "CPU s of rank 0",
    "of single",
    "predicted, GB",
    "counted, GB",
    "of single",
)


def _table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return "\n".join([f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|", *(_line(row) for row in rows)])


def _line(row: dict[str, Any]) -> str:
    error, close, same = row["gradient_error_max"], row["words_within_1e5"], row["same_bytes"]
    cells = (
        f"{row['plan']}, zero {row['zero']}" if "dp" in row["plan"] else row["plan"],
        row["model"],
        row["batch"],
        "–" if error is None else f"{error:.1e}",
        "–" if close is None else f"{close:.4%}",
        "–" if same is None else ("yes" if same else "no"),
        f"{row['cpu_s']:.2f}",
        f"{row['cpu_s_of_single']:.2f}",
        f"{row['bytes_predicted'] / 1e9:.2f}",
        f"{row['bytes_counted'] / 1e9:.2f}",
        f"{row['bytes_of_single']:.2f}",
    )
    return f"| {' | '.join(cells)} |"


BENCHMARK = Benchmark(
    bench_ranks,
    examples=(
        "p2prl bench ranks --plans dp2,pp2 --model 29m",
        "p2prl bench ranks --plans pp2 --model 494m --no-compare --share-micro-batches",
    ),
)
