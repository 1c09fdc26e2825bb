"""`p2prl eval`, `status`, `board` and `ledger`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from p2prl.cli.console import emit, progress, say
from p2prl.cli.reading import read_lines, read_status
from p2prl.config.home import default_home
from p2prl.config.runs import RunFolder, open_run
from p2prl.models.codec import Codec
from p2prl.models.evaluation import Evaluation, evaluate
from p2prl.models.layout import layout_of
from p2prl.models.loading import choose_device, load_pretrained, use_threads
from p2prl.models.transformers_engine import TransformersEngine
from p2prl.models.work import GroupWork


def evaluate_checkpoint(
    folder: RunFolder,
    checkpoint: Path,
    *,
    prompts: int,
    seed: int,
    greedy: bool = False,
    device: str = "cpu",
    on_progress: Callable[[str, float], None],
) -> Evaluation:
    """The reward of a model directory on fresh prompts of a run's task."""
    loaded = load_pretrained(str(checkpoint), device=device)
    engine = TransformersEngine(loaded.model, layout_of(loaded.model, folder.manifest.dtype))
    work = GroupWork(folder.manifest, folder.run, Codec(loaded.tokenizer, loaded.model))
    return evaluate(
        engine,
        work,
        prompts=prompts,
        seed=seed,
        greedy=greedy,
        on_progress=lambda share: on_progress("sampling", share),
    )


def eval_command(
    directory: Path,
    *,
    checkpoint: Path | None,
    prompts: int,
    greedy: bool,
    device: str,
    threads: int,
    seed: int,
    as_json: bool,
) -> None:
    """Measure a checkpoint."""
    folder = open_run(directory)
    use_threads(threads)
    chosen = checkpoint or folder.newest_weights()
    with progress(f"evaluating {chosen.name}", quiet=as_json) as tell:
        result = evaluate_checkpoint(
            folder,
            chosen,
            prompts=prompts,
            seed=seed,
            greedy=greedy,
            device=choose_device(device),
            on_progress=tell,
        )
    document = {
        "checkpoint": str(chosen),
        "reward": result.reward,
        "standard_error": result.standard_error,
        "prompts": result.prompts,
        "completion_tokens_mean": result.tokens_mean,
        "greedy": greedy,
        "seed": seed,
    }
    if as_json:
        emit(document)
    else:
        how = "greedy" if greedy else "sampled"
        say(f"{chosen}: {how} reward {result.reward:.3f} ± {result.standard_error:.3f} on {prompts} fresh prompts")


def status_command(run: Path | None, *, home: Path | None, as_json: bool) -> None:
    """What is running, from the files the roles write."""
    if run is not None:
        folder = open_run(run)
        metrics = read_lines(folder.paths.metrics)
        status = {**read_status(run / "status.json"), **(metrics[-1] if metrics else {})}
        workers = [{"run": folder.manifest.name, "role": "learner", **status}]
    else:
        base = home or default_home()
        workers = [read_status(path) for path in sorted(base.glob("*/*/status.json"))]
    for worker in workers:
        worker["running"] = psutil.pid_exists(int(worker.get("pid", -1)))
    if as_json:
        emit({"workers": workers, "time": time.time()})
        return
    if not workers:
        say("Nothing has run here yet. Start with:  p2prl join LINK")
    for worker in workers:
        state = worker.get("state", "running") if worker["running"] else "not running"
        say(f"{worker.get('role', '?'):<10} {worker.get('run', '?'):<16} {state}")
        for key in ("version", "step", "reward", "groups", "groups_replayed", "peers", "weight_bytes_received"):
            if key in worker:
                say(f"    {key:<22} {worker[key]}")
