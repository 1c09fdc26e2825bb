"""`p2prl eval`: measure a checkpoint of a run folder, and print its pass rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from p2prl.cli import crash_log
from p2prl.cli.options import AsJson, Device, RunFolderPath, Seed, Threads
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.run_folder import open_folder
from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError
from p2prl.protocol.manifests import RunManifest
from p2prl.tasks.evaluation_report import Split, report_text


def eval_(
    run: RunFolderPath,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A model directory. Default: the run's newest checkpoint.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="held-out (rows of data) or fresh (prompts of procedural tasks). Default: both."),
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Most prompts of each task.")] = 1024,
    samples: Annotated[
        int, typer.Option("--k", min=0, max=1024, help="Samples of each prompt, for pass@k; 0 decodes greedily alone.")
    ] = 8,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --k 0. Default: off.")] = False,
    device: Device = "auto",
    threads: Threads = 0,
    seed: Seed = 0,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Write each completion and its score to this file, as JSON lines. Default: none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint on prompts it is never trained on: greedy accuracy, and pass@k.

    With the default seed the prompts are those of the evaluations that the learner makes during the run.
    """
    samples = 0 if greedy else samples
    splits = tuple(name for name in get_args(Split) if split in (None, name))
    if not splits:
        raise ConfigError(f"--split is {split!r}", remedy=f"Splits: {', '.join(get_args(Split))}.")
    open_folder(run)  # reject a wrong path before the slow import of torch
    if save is not None and (save.is_dir() or not save.absolute().parent.is_dir()):
        raise ConfigError(f"--save: {save} cannot be a file", remedy="Name a file in a directory that is there.")
    rows: list[dict[str, object]] = []
    crash_log.keep_in(run)
    with progress_bar("measuring", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.cli.commands.measure_checkpoint import Measurement, measure_checkpoint
        from p2prl.config.new_run import open_run
        from p2prl.models.hardware.device_choice import use_threads

        folder = open_run(run)
        use_threads(threads or folder.settings.threads)
        chosen = checkpoint or folder.newest_weights()
        wanted = Measurement(prompts=prompts, samples=samples, splits=splits, seed=seed, device=device)
        reports = measure_checkpoint(
            folder,
            chosen,
            wanted,
            on_progress=on_progress,
            on_notice=say,
            on_answers=None if save is None else rows.extend,
        )
    if save is not None:
        try:
            replace_file(save, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
        except OSError as error:
            raise write_error(error, save) from error
    if as_json:
        emit({"checkpoint": str(chosen), "seed": seed, **_overall(reports, folder.manifest), "tasks": reports})
        return
    say(f"{chosen}, 95 % intervals:")
    for task, report in reports.items():
        say(f"{task}: {report_text(report)}")


def _overall(reports: dict[str, dict[str, Any]], manifest: RunManifest) -> dict[str, Any]:
    """Figures over all tasks, by their share of the mix: the sampled reward, or the greedy one without samples."""
    shares = {share.task: share.weight for share in manifest.tasks if share.task in reports}
    total = sum(shares.values())

    def mean(values: dict[str, float]) -> float:
        return sum(shares[task] * value for task, value in values.items()) / total

    sampled = all(report["samples"] for report in reports.values())
    score, errors = ("score_mean", "score_error") if sampled else ("greedy_score", "greedy_error")
    return {
        "reward": mean({task: report[score] for task, report in reports.items()}),
        "standard_error": sum((shares[task] * report[errors]) ** 2 for task, report in reports.items()) ** 0.5 / total,
        "prompts": sum(report["prompts"] for report in reports.values()),
        "completion_tokens_mean": mean({task: report["completion_tokens_mean"] for task, report in reports.items()}),
        "greedy": not sampled,
    }
