"""`p2prl team`: found a team, join it, leave it."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home

team_app = typer.Typer(no_args_is_help=True, help="Teams: your work counts for a team as well as for you.")

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="At most 24 letters, digits and spaces.", show_default=False)
]


@team_app.command("create", epilog=epilog("p2prl team create"))
def create(name: _Name, home: Home = None, as_json: AsJson = False) -> None:
    """Found a team, and print its invite: a line that you may publish."""
    from p2prl.cli.commands.team_membership import create_command

    create_command(home, name, as_json=as_json)


@team_app.command("rename", epilog=epilog("p2prl team rename"))
def rename(name: _Name, home: Home = None, as_json: AsJson = False) -> None:
    """Rename the team that you founded here, and print its new invite."""
    from p2prl.cli.commands.team_membership import rename_command

    rename_command(home, name, as_json=as_json)


@team_app.command("join", epilog=epilog("p2prl team join"))
def join(
    line: Annotated[
        str, typer.Argument(metavar="LINE", help="The team's invite, or a line that this command printed elsewhere.")
    ],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Join a team by its invite: your later work counts for it."""
    from p2prl.cli.commands.team_membership import join_command

    join_command(home, line, as_json=as_json)


@team_app.command("leave", epilog=epilog("p2prl team leave"))
def leave(home: Home = None, as_json: AsJson = False) -> None:
    """Leave your team: what you gave while you were in it stays with it."""
    from p2prl.cli.commands.team_membership import leave_command

    leave_command(home, as_json=as_json)


@team_app.command("show", epilog=epilog("p2prl team show"))
def show(home: Home = None, as_json: AsJson = False) -> None:
    """Print the team of each of your keys, and the invite of the team that you founded here."""
    from p2prl.cli.commands.team_membership import show_command

    show_command(home, as_json=as_json)
