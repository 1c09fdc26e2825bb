"""`p2prl init`: create a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Seed


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the run, and of its folder.")],
    preset: Annotated[
        str, typer.Option("--preset", help="Defaults for everything not given here. Presets: chain4, guess.")
    ] = "chain4",
    model: Annotated[
        str | None,
        typer.Option("--model", help="A Hugging Face directory or hub id to train. Default: a small new model."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Task: chain4, walk12, guess or an installed one. Default: the preset's."),
    ] = None,
    goal: Annotated[
        str | None, typer.Option("--goal", help="A sentence for volunteers to read. Default: the preset's.")
    ] = None,
    staleness: Annotated[
        int | None,
        typer.Option("--staleness", min=0, help="Staleness bound S, in learner updates. Default: 128 with chain4."),
    ] = None,
    publish_every: Annotated[
        int | None,
        typer.Option("--publish-every", min=1, help="Updates between policy versions. Default: 2 with chain4."),
    ] = None,
    group_size: Annotated[int, typer.Option("--group-size", min=1, help="Completions per prompt.")] = 8,
    temperature: Annotated[float, typer.Option("--temperature", help="Sampling temperature, 0.01 to 100.")] = 1.0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", min=1, help="Longest completion, tokens. Default: 8 with chain4."),
    ] = None,
    reward: Annotated[
        str, typer.Option("--reward", help="Reward to train on, such as success+0.2*process:clip+delta.")
    ] = "success",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Type of published weights: float32, bfloat16, float16. Default: the preset's."),
    ] = None,
    compute_dtype: Annotated[
        str | None,
        typer.Option("--compute-dtype", help="Type engines compute in. Default: that of --dtype, else the preset's."),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", "--licence", help="License of the weights. Default: the model card's.")
    ] = None,
    root_dir: Annotated[Path, typer.Option("--in", help="Folder to create the run in.")] = Path("runs"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Create a run: model, task, key and signed manifest."""
    from p2prl.cli.commands.init_run import init_command

    init_command(
        name,
        preset=preset,
        model=model,
        task=task,
        goal=goal,
        staleness=staleness,
        publish_every=publish_every,
        group_size=group_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        reward=reward,
        dtype=dtype,
        compute_dtype=compute_dtype,
        license_name=license_name,
        root=root_dir,
        seed=seed,
        as_json=as_json,
    )
