"""`p2prl board`: the leaderboard of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.options import AsJson, Home, Listen


def board(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A run folder, or a join link in quotes.")],
    host: Annotated[str, typer.Option("--host", help="Address to serve the page on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0 picks a free one.")] = 8000,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            help="Answer under any name, behind a proxy on this machine, and let any web page read the API, "
            "as with a --host that other machines can reach.",
        ),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", help="Write the board as a static site to this new directory and end. Default: serve it."
        ),
    ] = None,
    url: Annotated[
        str,
        typer.Option("--url", help="With --export: where the site will be served, for previews. Default: unknown."),
    ] = "",
    home: Home = None,
    listen: Listen = None,
    as_json: AsJson = False,
) -> None:
    """Serve a run's leaderboard as a web page.

    Shows what is being taught, contributors, sample answers and the reward curve. With --json, print it once and exit.
    """
    if export is not None:
        from p2prl.cli.commands.board_export import board_export_command

        board_export_command(source, export, url=url, home=home, listen=listen, as_json=as_json)
        return
    from p2prl.cli.commands.board_serve import board_command

    board_command(source, host=host, port=port, is_public=public, home=home, listen=listen, as_json=as_json)
