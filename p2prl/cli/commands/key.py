"""`p2prl key`: show, back up and restore the keys of this machine; owners and their delegates."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say
from p2prl.config.owner_files import (
    OWNER_FOLDER,
    TEAM_FOLDER,
    Machine,
    key_file,
    load_delegation,
    load_machines,
    named_keys,
)
from p2prl.config.worker_folder import default_home, make_home
from p2prl.errors import IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity
from p2prl.protocol.identity import Identity, peer_id_of
from p2prl.scoreboard.display_names import display_name

key_app = typer.Typer(no_args_is_help=True, help="Your keys: show, back up, restore; several machines.")


@key_app.command("show", epilog=epilog("p2prl key show"))
def show(home: Home = None, as_json: AsJson = False) -> None:
    """Print this machine's peer ids, whom they work for, and your machines."""
    base = home or default_home()
    keys = {path.parent.name: identity for path, identity in named_keys(base)}
    seats = {name: identity for name, identity in keys.items() if name not in (OWNER_FOLDER, TEAM_FOLDER)}
    owners = {name: _owner_of(base / name, identity) for name, identity in seats.items()}
    machines = list(load_machines(base).values())
    if as_json:
        emit(
            {
                "home": str(base),
                "seats": {name: identity.peer_id for name, identity in seats.items()},
                "owners": owners,
                "owner": keys[OWNER_FOLDER].peer_id if OWNER_FOLDER in keys else None,
                "team": keys[TEAM_FOLDER].peer_id if TEAM_FOLDER in keys else None,
                "delegates": [asdict(machine) for machine in machines],
            }
        )
        return
    for name, identity in keys.items():
        works_for = f"  works for {owners[name]}" if owners.get(name) else ""
        sys.stdout.write(f"{name}  {identity.peer_id}{works_for}\n")
    for machine in machines:
        sys.stdout.write(f"  delegate  {machine.peer_id}  {_machine_text(machine)}\n")
    if not keys:
        say(f"No keys in {base} yet; `p2prl join` creates one.")


@key_app.command("backup", epilog=epilog("p2prl key backup"))
def backup(
    home: Home = None,
    seat: Annotated[
        str, typer.Option("--seat", help="Worker folder of the key, as `p2prl key show` lists it.")
    ] = "seat-1",
) -> None:
    """Print the twelve words of a key. Anyone who has them can act as you."""
    base = home or default_home()
    path = key_file(base, seat)
    if not path.exists():
        there = ", ".join(sorted(path.parent.name for path in base.glob("*/key.json")))
        raise IdentityError(
            f"there is no {path.parent.name} in {base}",
            remedy=f"Keys there: {there}." if there else "`p2prl join` creates the first one; or pass another --home.",
        )
    identity = load_identity(path)
    say(f"Key of {display_name(identity.public_key)}, {identity.peer_id}, from {path}:")
    say("Write these down and keep them private: they are this key.")
    sys.stdout.write(" ".join(identity.words.split()) + "\n")


@key_app.command("restore", epilog=epilog("p2prl key restore"))
def restore(
    home: Home = None,
    seat: Annotated[str, typer.Option("--seat", help="Worker folder to put the key in.")] = "seat-1",
) -> None:
    """Restore a key from its twelve words, read from standard input."""
    path = key_file(home or default_home(), seat)
    if path.exists():
        raise IdentityError(f"{path} already exists", remedy="Choose a free --seat, or move the file away first.")
    if sys.stdin.isatty():
        say("Type the twelve words:")
    identity = Identity.from_words(sys.stdin.readline())
    make_home(home or default_home())
    create_identity(path, identity)
    say(f"Restored {identity.peer_id} as {path.parent.name}.")
    say("Use a key on one machine at a time: the second one to start stops. Give each its own: p2prl key delegate")


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


def _owner_of(folder: Path, identity: Identity) -> str | None:
    delegation = load_delegation(folder, identity.public_key)
    return None if delegation is None else peer_id_of(delegation.owner)


def _machine_text(machine: Machine) -> str:
    until = machine.expires_ms if machine.revoked_from_ms is None else machine.revoked_from_ms
    state = "until" if machine.revoked_from_ms is None else "revoked from"
    day = datetime.fromtimestamp(until / 1000, UTC).date().isoformat()
    return f"{machine.name} {state} {day}".strip()
