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
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint on prompts it is never trained on: greedy accuracy, and pass@k.

    With the default seed the prompts are those of the evaluations that the learner makes during the run.
    """
    from p2prl.cli.commands.eval_run import eval_command

    eval_command(
        run,
        checkpoint=checkpoint,
        split=split,
        prompts=prompts,
        samples=0 if greedy else samples,
        device=device,
        threads=threads,
        seed=seed,
        as_json=as_json,
    )
