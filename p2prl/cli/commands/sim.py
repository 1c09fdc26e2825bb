"""`p2prl sim`: a whole swarm on virtual time."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.progress_bar import progress_bar


def sim(
    task: Annotated[
        str, typer.Option("--task", help="chain4, walk12, guess, or an installed one with a small model.")
    ] = "chain4",
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteers in the swarm.")] = 8,
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates.")] = 60,
    delay: Annotated[
        str,
        typer.Option(
            "--delay",
            help="Delay distribution of the groups, seconds: const:5, uniform:FROM:TO, exp:MEAN, "
            "lognormal:LOWER:UPPER or weibull:MAX. Laws of bench staleness are in updates, not in seconds.",
        ),
    ] = "const:0",
    step_seconds: Annotated[
        float, typer.Option("--step-seconds", min=0.001, help="Virtual seconds of one update.")
    ] = 20.0,
    partition: Annotated[
        str | None,
        typer.Option("--partition", help="FROM:TO, virtual seconds in which half the swarm is cut off. Default: none."),
    ] = None,
    loss_rate: Annotated[float, typer.Option("--loss", min=0.0, max=0.9, help="Share of frames lost.")] = 0.0,
    crashes: Annotated[int, typer.Option("--crashes", min=0, help="Volunteers that crash and restart.")] = 0,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate a swarm in one process on virtual time.

    The same seed gives the same trace.
    """
    with progress_bar("sim", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.cli.commands.sim_run import sim_command

    sim_command(
        task=task,
        volunteers=volunteers,
        updates=updates,
        delay=delay,
        step_seconds=step_seconds,
        partition=partition,
        loss_rate=loss_rate,
        crashes=crashes,
        seed=seed,
        as_json=as_json,
    )
