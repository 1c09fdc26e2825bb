"""`p2prl export`: take a run's model home as a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, RunFolderPath


def export(
    run: RunFolderPath,
    out: Annotated[Path | None, typer.Option("--out", help="Directory to write. Default: RUN/export/step-N.")] = None,
    step: Annotated[str, typer.Option("--step", help="Checkpoint to export: its step, or newest.")] = "newest",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Type of the exported weights: bfloat16, float32 or float16.")
    ] = "bfloat16",
    max_shard_gb: Annotated[float, typer.Option("--max-shard-gb", min=0.001, help="Largest weight file, GB.")] = 5.0,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export in --out. Default: refuse.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option("--push", help="Also upload to this Hugging Face repository, OWNER/NAME. Default: no upload."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push: a new repository is private. Default: public.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a directory that transformers and vLLM load, with a model card."""
    from p2prl.cli.commands.export_run import export_command

    export_command(
        run,
        out=out,
        step=step,
        dtype=dtype,
        max_shard_gb=max_shard_gb,
        force=force,
        push=push,
        private=private,
        as_json=as_json,
    )
