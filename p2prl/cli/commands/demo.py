"""`p2prl demo`: a whole swarm on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.progress_bar import progress_bar


def demo(
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteer processes.")] = 3,
    cheats: Annotated[int, typer.Option("--cheats", min=0, help="Volunteers that fabricate completions.")] = 0,
    updates: Annotated[int, typer.Option("--updates", min=1, help="Learner updates.")] = 150,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder to create. Default: runs/demo, or runs/demo-2 and so on.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a whole swarm on this machine.

    Uses separate processes and real sockets, ends on its own and shows what the policy learned.
    """
    with progress_bar("demo", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.cli.commands.demo_run import demo_command

    demo_command(volunteers=volunteers, cheats=cheats, updates=updates, out=out, seed=seed, as_json=as_json)
