"""`p2prl key`: show, back up or restore the keys of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home

key_app = typer.Typer(no_args_is_help=True, help="Show your keys, back them up on paper, restore them.")


@key_app.command("show", epilog=epilog("p2prl key show"))
def show(home: Home = None, as_json: AsJson = False) -> None:
    """Print this machine's peer ids."""
    from p2prl.cli.commands.key_files import show_command

    show_command(home, as_json=as_json)


@key_app.command("backup", epilog=epilog("p2prl key backup"))
def backup(
    home: Home = None,
    seat: Annotated[
        str, typer.Option("--seat", help="Worker folder of the key, as `p2prl key show` lists it.")
    ] = "seat-1",
) -> None:
    """Print the twelve words of a key. Anyone who has them can act as you."""
    from p2prl.cli.commands.key_files import backup_command

    backup_command(home, seat=seat)


@key_app.command("restore", epilog=epilog("p2prl key restore"))
def restore(
    home: Home = None,
    seat: Annotated[str, typer.Option("--seat", help="Worker folder to put the key in.")] = "seat-1",
) -> None:
    """Restore a key from its twelve words, read from standard input."""
    from p2prl.cli.commands.key_files import restore_command

    restore_command(home, seat=seat)
