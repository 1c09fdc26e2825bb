"""`p2prl key`: show, back up and restore the keys of this machine; owners and their delegates."""

from __future__ import annotations

from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home

key_app = typer.Typer(no_args_is_help=True, help="Your keys: show, back up, restore; several machines.")


@key_app.command("show", epilog=epilog("p2prl key show"))
def show(home: Home = None, as_json: AsJson = False) -> None:
    """Print this machine's peer ids, whom they work for, and your machines."""
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


@key_app.command("owner", epilog=epilog("p2prl key owner"))
def owner(home: Home = None, as_json: AsJson = False) -> None:
    """Create or show your owner's key, for one row on the board with several machines."""
    from p2prl.cli.commands.key_owner import owner_command

    owner_command(home, as_json=as_json)


@key_app.command("delegate", epilog=epilog("p2prl key delegate"))
def delegate(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT",
            help="A machine's peer id, to sign for it; on the machine, the signed line. Default: none.",
        ),
    ] = "",
    home: Home = None,
    seat: Annotated[str, typer.Option("--seat", help="Which worker of this machine asks for an owner.")] = "seat-1",
    days: Annotated[int, typer.Option("--days", min=1, max=3_660, help="Days until it ends, when signing.")] = 730,
    name: Annotated[
        str, typer.Option("--name", help="Your name for the machine, kept where the owner's key is. Default: none.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Install it although the machine works for another owner.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Let a machine work for its owner: ask for it there, sign where the owner's key is, install what was signed."""
    from p2prl.cli.commands.key_owner import Terms, delegate_command

    delegate_command(home, text, Terms(seat=seat, days=days, name=name, replace=replace), as_json=as_json)


@key_app.command("revoke", epilog=epilog("p2prl key revoke"))
def revoke(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A peer id, your name for it, or a signed line.")],
    home: Home = None,
    since: Annotated[
        str, typer.Option("--since", help="Work from this time on does not count for you, UTC. Default: now.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """End a machine's delegation, for instance when the machine or its key was stolen."""
    from p2prl.cli.commands.key_owner import revoke_command

    revoke_command(home, machine, since, as_json=as_json)
