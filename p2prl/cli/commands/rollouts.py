"""`p2prl rollouts`: completions that a run was trained on, with what each was worth and what it taught."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from p2prl.cli import crash_log
from p2prl.cli.options import AsJson, RunFolderPath, Seed
from p2prl.cli.views.console import emit, labelled, output_width, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.run_folder import Folder, open_folder
from p2prl.errors import ConfigError, IdentityError
from p2prl.learner.journal.rollout_reader import KeptRollouts
from p2prl.plain_text import counted
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of

if TYPE_CHECKING:
    from p2prl.learner.trained_rollouts import Order, Rollout


def rollouts(
    run: RunFolderPath,
    step: Annotated[
        int | None,
        typer.Option("--step", min=1, help="Of this update alone, as metrics.jsonl counts them. Default: all."),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Those with the highest rewards.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Those with the lowest rewards.")] = False,
    at_random: Annotated[bool, typer.Option("--random", help="Any, drawn by --seed.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="Most rollouts to show.")] = 8,
    task: Annotated[str | None, typer.Option("--task", help="Of this task alone. Default: all.")] = None,
    peer: Annotated[
        str | None, typer.Option("--peer", help="Of the volunteer with this id alone. Default: all.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Show rollouts that a run was trained on: prompt, completion, reward by part, advantage and staleness.

    By default the newest. Works beside a running learner. The newest 64 MB of trained rollouts are kept.
    """
    folder = open_folder(run)
    wanted = _wanted(folder, step, task, peer, count, seed, {"best": best, "worst": worst, "random": at_random})
    crash_log.keep_in(run)
    with closing(KeptRollouts(folder.paths.journal)) as kept:
        _check_steps(_steps(kept), step, run)
        with progress_bar("reading", quiet=as_json) as on_progress:
            on_progress("importing torch", 0.0)

            from p2prl.config.new_run import open_run
            from p2prl.config.rollout_reading import open_rollouts
            from p2prl.learner.trained_rollouts import Wanted

            with open_rollouts(open_run(run), kept, on_notice=say) as reader:
                on_progress("scoring parts", 0.5)
                found = reader.read(Wanted(**wanted))
        steps = _steps(kept)  # not those of before torch was imported: the learner has gone on
    documents = [_document(rollout) for rollout in found]
    if as_json:
        kept_steps = {"updates": len(steps), "first_step": steps[0], "last_step": steps[-1]}
        emit({"run": folder.manifest.name, "kept": kept_steps, "rollouts": documents})
        return
    for document in documents:
        for line in rollout_lines(document, width=output_width()):
            sys.stdout.write(f"{line}\n")
        sys.stdout.write("\n")
    if not found:
        say("none of the kept rollouts is of that volunteer and task")
    say(f"{counted(len(found), 'rollout')} of {counted(len(steps), 'update')} kept, {steps[0]:,} to {steps[-1]:,}")


def _steps(kept: KeptRollouts) -> list[int]:
    """Updates whose rollouts are kept, as metrics.jsonl counts them."""
    return [at + 1 for at in kept.steps()]


def rollout_lines(rollout: Mapping[str, Any], *, width: int | None) -> list[str]:
    """A rollout of `p2prl rollouts --json`, for people; `width` as in `labelled`."""
    heading = (
        f"update {rollout['step']:,}  {rollout['task']}  v{rollout['version']:,}, "
        f"{counted(rollout['staleness'], 'update')} old  from {rollout['peer']}"
    )
    end = "" if rollout["finished"] else " … (cut off at the run's longest answer)"
    parts = ", ".join(f"{name} {_number(value)}" for name, value in rollout["parts"].items())
    worth = f"{_number(rollout['reward'])} = {parts}" if len(rollout["parts"]) > 1 else _number(rollout["reward"])
    advantage = "differs by token, or unknown" if rollout["advantage"] is None else f"{rollout['advantage']:+.3g}"
    return [
        *labelled("", heading, width),
        *labelled("prompt     ", rollout["prompt"], width),
        *labelled("completion ", rollout["completion"] + end, width),
        *labelled("reward     ", f"{worth}; advantage {advantage}", width),
    ]


def _number(value: float | None) -> str:
    return "not scored" if value is None else f"{value:.3g}"


def _wanted(
    folder: Folder,
    step: int | None,
    task: str | None,
    peer: str | None,
    count: int,
    seed: int,
    orders: dict[Order, bool],
) -> dict[str, Any]:
    chosen = [order for order, is_chosen in orders.items() if is_chosen]
    if len(chosen) > 1:
        raise ConfigError(
            f"--{chosen[0]} and --{chosen[1]} exclude each other", remedy="Give one of --best, --worst and --random."
        )
    known = [share.task for share in folder.manifest.tasks]
    if task is not None and task not in known:
        raise ConfigError(f"the run has no task {task[:64]!r}", remedy=f"Its tasks: {', '.join(known)}.")
    try:
        author = None if peer is None else public_key_of(PeerId(peer))
    except IdentityError as error:
        raise ConfigError(
            f"--peer: {error}",
            remedy="Copy it whole from `p2prl rollouts` or the board: 52 characters from 12D3Koo on.",
        ) from error
    order = chosen[0] if chosen else "newest"
    return {"order": order, "count": count, "step": step, "peer": author, "task": task, "seed": seed}


def _check_steps(kept: list[int], wanted: int | None, run: Path) -> None:
    """`ConfigError` when nothing is kept, or nothing of the wanted update."""
    if not kept:
        raise ConfigError(
            "this run has been trained on nothing that is kept",
            remedy=f"Start it with p2prl learn {run}, or wait for its first update.",
        )
    if wanted is not None and wanted not in kept:
        raise ConfigError(
            f"the rollouts of update {wanted:,} are not kept",
            remedy=f"Kept are those of {counted(len(kept), 'update')} from {kept[0]:,} to {kept[-1]:,}: choose one.",
        )


def _document(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a JSON value."""
    return asdict(rollout) | {"peer": peer_id_of(rollout.peer), "group": rollout.group.hex()}
