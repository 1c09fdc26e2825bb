"""`p2prl bench step`: a training step against one plain full-batch step."""

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
    BenchDevice,
    Checkpointing,
    MicroBatchTokens,
    Seed,
)
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar


def bench_step(
    losses: Annotated[str, typer.Option("--losses", help="Comma-separated. Default: every loss there is.")] = "",
    model: Annotated[
        str, typer.Option("--model", help="29m, 123m, 494m, 1544m or 7615m parameters, vocabulary 151,936.")
    ] = "29m",
    groups: BatchGroups = 2,
    completions: BatchCompletions = 4,
    tokens: BatchTokens = 64,
    micro_batch_tokens: MicroBatchTokens = 0,
    precision: Annotated[
        str, typer.Option("--precision", help="As in run.toml: auto, fp32, bf16, bf16_stochastic or bf16_kahan.")
    ] = "fp32",
    states: Annotated[str, typer.Option("--optimizer-states", help="full or 8bit.")] = "full",
    checkpointing: Checkpointing = False,
    plain: Annotated[bool, typer.Option(help="Compare with a plain step, which must fit.")] = True,
    repeats: Annotated[int, typer.Option("--repeats", help="Steps of each kind; the median counts.")] = 3,
    threads: Annotated[int, typer.Option("--threads", help="CPU threads.")] = 1,
    device: BenchDevice = "cpu",
    cards: Annotated[bool, typer.Option("--cards", help="Only predict what fits on cards of 8 to 141 GB.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare the learner's training step with a plain full-batch step: time, peak memory and gradients, by loss."""
    from p2prl.bench.step.benchmark import StepBenchConfig, run_step_bench
    from p2prl.config.toml_tables import parse
    from p2prl.learner.training.memory_config import MemoryConfig

    if cards:
        from p2prl.bench.step.cards import cards_table

        print_table(cards_table())
        return
    began = time.monotonic()
    memory = {
        "precision": precision,
        "optimizer_states": states,
        "checkpointing": "on" if checkpointing else "off",
        "micro_batch_tokens": micro_batch_tokens,
    }
    config = StepBenchConfig(
        losses=listed(losses),
        model=model,
        groups=groups,
        completions=completions,
        tokens=tokens,
        memory=parse(MemoryConfig, memory, where="bench step"),
        plain=plain,
        repeats=repeats,
        threads=threads,
        device=device,
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = [asdict(row) for row in run_step_bench(config, on_progress=on_progress)]
    if as_json:
        emit({"rows": rows, "device": device, "threads": threads, "seed": seed, "wall_s": time.monotonic() - began})
    else:
        print_table(_table(rows))


_COLUMNS = (
    "loss",
    "model",
    "batch",
    "micro-batch tokens",
    "peak beyond weights, GB",
    "predicted, GB",
    "plain peak, GB",
    "step, s",
    "time of plain",
    "largest gradient error",
)


def _table(rows: list[dict[str, object]]) -> str:
    """The rows as a Markdown table."""
    return "\n".join([f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|", *(_line(row) for row in rows)])


def _line(row: dict[str, Any]) -> str:
    cells = (
        row["loss"],
        row["model"],
        row["batch"],
        f"{row['micro_batch_tokens']:,}",
        f"{row['peak_bytes_beyond_weights'] / 1e9:.2f}",
        f"{row['predicted_bytes_beyond_weights'] / 1e9:.2f}",
        _figure(row["plain_peak_bytes_beyond_weights"], 1e9, ".2f"),
        f"{row['seconds']:.1f}",
        _figure(row["time_of_plain"], 1, ".2f"),
        _figure(row["gradient_error_max"], 1, ".1e"),
    )
    return f"| {' | '.join(cells)} |"


def _figure(value: float | None, unit: float, digits: str) -> str:
    return "–" if value is None else f"{value / unit:{digits}}"


BENCHMARK = Benchmark(
    bench_step,
    examples=("p2prl bench step --losses gepo_t,dpo --model 29m --tokens 128",),
)
