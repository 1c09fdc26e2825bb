"""`p2prl bench publish`: what a new version costs a learner."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from p2prl.cli.benchmark import Benchmark, verdict_line
from p2prl.cli.options import AsJson, BenchDevice, Seed
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError


def bench_publish(
    model: Annotated[str, typer.Option("--model", help="Size of the model: 29m, 123m, 494m, 1544m or 7615m.")] = "123m",
    versions: Annotated[int, typer.Option("--versions", min=2, help="Number of versions to publish.")] = 9,
    dtype: Annotated[str, typer.Option("--dtype", help="Type of the weights: bfloat16, float16, float32.")] = (
        "bfloat16"
    ),
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", help="Of the simulated updates; 1e-6 changes 1 % of bf16 words.")
    ] = 1e-6,
    device: BenchDevice = "cpu",
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a demand is not met.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure how long training waits for a new version, and what it costs until its head is sent."""
    from p2prl.bench.publish.benchmark import (
        BLOCKED_BOUND_S,
        HEAD_BOUND_S,
        REBUILD_BOUND_CPU_S,
        SILENT_BOUND_S,
        SWITCH_BOUND_S,
        PublishBenchConfig,
        run_publish_bench,
    )
    from p2prl.models.hardware.device_choice import choose_device, device_class

    began = time.monotonic()
    chosen = choose_device(device)
    config = PublishBenchConfig(
        model=model, versions=versions, dtype=dtype, learning_rate=learning_rate, device=chosen, seed=seed
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        report = run_publish_bench(config, on_progress=on_progress)
    if as_json:
        beside = {"met": report.met, "device": device_class(chosen), "seed": seed, "wall_s": time.monotonic() - began}
        emit({**vars(report), **beside})
    else:
        say(f"{report.versions} versions of {report.bytes:,} bytes, {report.changed_share:.2%} of the words change")
        say(f"published patches: {report.patch_bytes:,} bytes")
        say(f"on disk: {report.store_bytes:,} bytes")
        say(f"memory beyond the copy of the weights: {report.peak_bytes_beyond_weights:,} bytes")
        say(f"weights file rewritten after {report.written_s:.2f} s, processor time {report.head_cpu_s:.2f} s")
        say(f"a worker rebuilds a version in {report.rebuild_s:.2f} s, and has {report.worker_bytes:,} bytes on disk")
        say(f"a chunk of any version can be sent after {report.serve_s:.3f} s")
        blocked, head, switch = report.trainer_blocked_s, report.head_s, report.switch_s
        silent, rebuilt = report.loop_silent_s, report.rebuild_cpu_s
        say(verdict_line("training waits, s", BLOCKED_BOUND_S, blocked, blocked <= BLOCKED_BOUND_S))
        say(verdict_line("head sent after, s", HEAD_BOUND_S, head, head <= HEAD_BOUND_S))
        say(verdict_line("any version of the window in a file, s", SWITCH_BOUND_S, switch, switch <= SWITCH_BOUND_S))
        say(verdict_line("network loop silent, s", SILENT_BOUND_S, silent, silent <= SILENT_BOUND_S))
        say(verdict_line("rebuilt by a worker, CPU s", REBUILD_BOUND_CPU_S, rebuilt, rebuilt <= REBUILD_BOUND_CPU_S))
    if check and not report.met:
        raise P2PRLError("publishing costs too much", remedy="Rerun it while nothing else is running.")


BENCHMARK = Benchmark(
    bench_publish,
    examples=("p2prl bench publish --model 29m --versions 5",),
)
