"""Measure a checkpoint of a run folder and print its reward."""

from __future__ import annotations

from pathlib import Path

from p2prl.cli import crash_log
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.run_folder import open_folder


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
    """Measure `checkpoint`, or the newest one of the run in `directory`."""
    open_folder(directory)  # reject a wrong path before the slow import of torch
    crash_log.keep_in(directory)
    with progress_bar("measuring", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.cli.commands.eval_checkpoint import evaluate_checkpoint
        from p2prl.config.run_settings import open_run
        from p2prl.models.device import use_threads

        folder = open_run(directory)
        use_threads(threads or folder.settings.threads)
        chosen = checkpoint or folder.newest_weights()
        result = evaluate_checkpoint(
            folder,
            chosen,
            prompts=prompts,
            seed=seed,
            greedy=greedy,
            device=device,
            on_progress=on_progress,
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
        say(f"{chosen}: {how} reward {result.reward:.3f} ± {result.standard_error:.3f} on {prompts:,} fresh prompts")
