"""`p2prl eval`: measure a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Device, RunFolderPath, Seed, Threads


def eval_(
    run: RunFolderPath,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="A model directory. Default: the run's newest checkpoint.")
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Fresh prompts to sample.")] = 2048,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the most probable token instead of sampling. Default: sample.")
    ] = False,
    device: Device = "auto",
    threads: Threads = 0,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint's reward on fresh prompts."""
    from p2prl.cli.commands.eval_run import eval_command

    eval_command(
        run,
        checkpoint=checkpoint,
        prompts=prompts,
        greedy=greedy,
        device=device,
        threads=threads,
        seed=seed,
        as_json=as_json,
    )
