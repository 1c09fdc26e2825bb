"""`p2prl update`: the command that updates this program, and a check for something newer."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.options import AsJson

Check = Annotated[
    bool,
    typer.Option("--check", help="Ask where it was installed from, the clone's remote or pip's package index. Once."),
]


def update(check: Check = False, as_json: AsJson = False) -> None:
    """Show the command that updates this program; with --check, whether there is something newer.

    Nothing is installed, and without --check nobody is asked. No other command looks for updates.
    """
    from p2prl.cli.commands.update_check import show_update

    show_update(check=check, as_json=as_json)
