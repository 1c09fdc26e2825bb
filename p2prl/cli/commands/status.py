"""`p2prl status`: the workers of this machine, or a run's learner."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home


def status(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run folder. Default: none, which shows the workers of this machine."),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what this machine's workers, or a run's learner, are doing."""
    from p2prl.cli.commands.status_read import status_command

    status_command(run, home=home, as_json=as_json)
