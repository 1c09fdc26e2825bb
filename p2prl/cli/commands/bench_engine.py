"""`p2prl bench engine`: speed of the sampler against the bare library, and engines against each other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from p2prl.cli.benchmark import Benchmark, listed, numbers, print_table
from p2prl.cli.options import AsJson, BenchDevice, Seed
from p2prl.cli.views.console import emit
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.errors import P2PRLError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from p2prl.bench.engine.benchmark import EngineRow


def bench_engine(
    models: Annotated[str, typer.Option("--models", help="29m and 123m, comma-separated.")] = "29m,123m",
    batches: Annotated[str, typer.Option("--batches", help="Completions at once, comma-separated.")] = "8,16,32",
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of a completion.")] = 64,
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32",
    device: BenchDevice = "cpu",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Let `generate` compile its steps, as it does on CUDA.")
    ] = True,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Measurements of each; the median counts.")] = 5,
    one_length: Annotated[
        bool, typer.Option("--one-length", help="Leave out the completions of lognormal lengths.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Instead, replay the groups of each engine by each other one.")
    ] = False,
    groups: Annotated[int, typer.Option("--groups", min=1, help="Honest groups of each pair.")] = 500,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when a pair misses its demand.")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure tokens a second of the sampler and of `generate`, on one CPU thread (of processor time) or on a GPU.

    On CUDA the sampler is measured with graphs and without, and if vLLM is installed, vLLM alone and with our draw.

    With --pairs, sample with one engine and replay with another: honest groups must pass, an edited token be found.
    """
    if pairs:
        pairs_command(groups=groups, device=device, check=check, seed=seed, as_json=as_json)
        return
    from p2prl.bench.engine.benchmark import EngineBenchConfig, run_engine_bench
    from p2prl.bench.engine.random_lengths import LengthsBenchConfig
    from p2prl.models.engines.engine_names import AUTO, VLLM
    from p2prl.models.engines.registry import choose_engine
    from p2prl.models.hardware.device_choice import choose_device, device_class, use_threads

    began = time.monotonic()
    chosen = choose_device(device)
    use_threads(1)
    config = EngineBenchConfig(
        models=listed(models),
        batches=numbers(batches, int, "--batches"),
        tokens=tokens,
        dtype=dtype,
        device=chosen,
        compiled=compiled,
        vllm=chosen.type == "cuda" and choose_engine(AUTO, chosen).name == VLLM,
        repeats=repeats,
        lengths=None if one_length else LengthsBenchConfig(),
        seed=seed,
    )
    with progress_bar("benchmark", quiet=as_json) as on_progress:
        rows = run_engine_bench(config, on_progress=on_progress)
    if as_json:
        emit(
            {
                "rows": [vars(row) for row in rows],
                "device": device_class(chosen),
                "seed": seed,
                "wall_s": time.monotonic() - began,
            }
        )
        return
    print_table(_table(rows, on_cpu=chosen.type == "cpu"))


def _table(rows: Sequence[EngineRow], *, on_cpu: bool) -> str:
    """The rows as a Markdown table, with the speed by the clock that counts on the device."""
    speed = "tokens / CPU s" if on_cpu else "tokens / s"
    lines = [
        f"| engine | model | dtype | batch | {speed} | of bare | noise of a step | slots at work |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        shares = [_share(row.of_bare), _percent(row.noise_of_step), _percent(row.slots_at_work)]
        rate = row.tokens_per_cpu_s if on_cpu else row.tokens_per_s
        cells = [row.engine, row.model, row.dtype, str(row.batch), f"{rate:.1f}", *shares]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


BENCHMARK = Benchmark(
    bench_engine,
    examples=(
        "p2prl bench engine --models 29m --batches 8 --repeats 3",
        "p2prl bench engine --pairs --groups 100",
    ),
)


def pairs_command(*, groups: int, device: str, check: bool, seed: int, as_json: bool) -> None:
    """Sample with one engine and replay with another: honest groups must pass, an edited token must be found."""
    from p2prl.bench.engine_pairs.benchmark import PairsConfig, run_pairs_bench
    from p2prl.models.hardware.device_choice import choose_device, device_class, use_threads

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
