"""`p2prl metrics`: metrics of this machine's workers for Prometheus, on this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import Home


def metrics(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Also the learner of this run folder. Default: the workers alone."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")
    ] = 9464,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and end. Default: serve them.")] = False,
    home: Home = None,
) -> None:
    """Serve metrics of this machine's workers to Prometheus, on 127.0.0.1 alone.

    They are the numbers of `p2prl status`. No worker serves anything by itself.
    """
    from p2prl.cli.commands.metrics_serve import metrics_command

    metrics_command(run, port=port, once=once, home=home)
