"""`p2prl team`: found a team, join it, leave it; the memberships of the keys that work here."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from p2prl.cli.examples import epilog
from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say
from p2prl.config.owner_files import (
    key_file,
    load_delegation,
    load_memberships,
    load_team_name,
    named_keys,
    owner_key_file,
    save_memberships,
    save_team_name,
    team_key_file,
)
from p2prl.config.worker_folder import default_home
from p2prl.errors import IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity, load_or_create_identity
from p2prl.protocol.identity import ENTROPY_BYTES, Identity, peer_id_of
from p2prl.protocol.membership_statements import (
    MEMBERSHIP_PREFIX,
    Membership,
    TeamName,
    invite_text,
    membership_text,
    parse_invite,
    parse_membership,
    sign_membership,
    sign_team_name,
)
from p2prl.protocol.typed_names import typed_name
from p2prl.scoreboard.display_names import display_name

team_app = typer.Typer(no_args_is_help=True, help="Teams: your work counts for a team as well as for you.")

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="At most 24 letters, digits and spaces.", show_default=False)
]


@team_app.command("create", epilog=epilog("p2prl team create"))
def create(name: _Name, home: Home = None, as_json: AsJson = False) -> None:
    """Found a team, and print its invite: a line that you may publish."""
    base, name = home or default_home(), typed_name(name)
    path = team_key_file(base)
    if path.exists():
        raise IdentityError(
            f"a team was already founded in {base}",
            remedy="p2prl team show prints its invite; pass another --home to found another.",
        )
    team = Identity.generate(os.urandom(ENTROPY_BYTES))
    create_identity(path, team)
    _sign_name(base, team, name)
    _tell_name(base, as_json=as_json)
    if not as_json:
        say(f"Founded {name}. Everybody with this line can join, you too: p2prl team join LINE")
        say("The team's key is needed to rename it. Its words: p2prl key backup --seat team")


@team_app.command("rename", epilog=epilog("p2prl team rename"))
def rename(name: _Name, home: Home = None, as_json: AsJson = False) -> None:
    """Rename the team that you founded here, and print its new invite."""
    base, name = home or default_home(), typed_name(name)
    path = team_key_file(base)
    if not path.exists():
        raise IdentityError(
            f"there is no team's key in {base}",
            remedy="Run this where the team was founded; p2prl key restore --seat team restores its key.",
        )
    _sign_name(base, load_identity(path), name)
    _tell_name(base, as_json=as_json)
    if not as_json:
        say("Boards show the new name when a member has joined again by this line: p2prl team join LINE")


@team_app.command("join", epilog=epilog("p2prl team join"))
def join(
    line: Annotated[
        str, typer.Argument(metavar="LINE", help="The team's invite, or a line that this command printed elsewhere.")
    ],
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Join a team by its invite: your later work counts for it."""
    base = home or default_home()
    if line.strip().startswith(MEMBERSHIP_PREFIX):
        signed = [_installed(base, parse_membership(line))]
    else:
        signed = _signed(base, parse_invite(line))
    _tell_memberships(base, signed, as_json=as_json)


@team_app.command("leave", epilog=epilog("p2prl team leave"))
def leave(home: Home = None, as_json: AsJson = False) -> None:
    """Leave your team: what you gave while you were in it stays with it."""
    base = home or default_home()
    _tell_memberships(base, _signed(base, None), as_json=as_json)


@team_app.command("show", epilog=epilog("p2prl team show"))
def show(home: Home = None, as_json: AsJson = False) -> None:
    """Print the team of each of your keys, and the invite of the team that you founded here."""
    base = home or default_home()
    name, memberships = load_team_name(base), list(load_memberships(base).values())
    if as_json:
        founded = None if name is None else invite_text(name)
        emit({"founded": founded, "members": [_document(each) for each in memberships]})
        return
    for each in memberships:
        sys.stdout.write(f"{display_name(each.member)}  {peer_id_of(each.member)}  {_team_text(each.team)}\n")
    if not memberships:
        say(f"No key in {base} has joined a team. Join one by its invite: p2prl team join LINE")
    if name is not None:
        say(f"Founded here: {name.name}. Its invite:")
        sys.stdout.write(invite_text(name) + "\n")


_WORKERS = ("seat-", "validator-")
"""Folders of workers whose work earns credit."""


# --- signing --------------------------------------------------------------------------------------------------------


def _sign_name(base: Path, team: Identity, name: str) -> None:
    known = load_team_name(base)
    save_team_name(base, sign_team_name(team, name, serial=max(_now_ms(), known.serial + 1 if known else 0)))


def _signed(base: Path, team: TeamName | None) -> list[Membership]:
    """Memberships of the keys here that have a row of their own on a board, signed and kept."""
    known = load_memberships(base)
    signed = []
    for member in _signers(base):
        before = known.get(member.public_key)
        if team is None and (before is None or before.team is None):
            continue
        serial = max(_now_ms(), before.serial + 1 if before else 0)
        signed.append(sign_membership(member, team, serial=serial))
    if not signed:
        raise IdentityError("no key here is in a team", remedy="p2prl team show lists your keys and their teams.")
    save_memberships(base, signed)
    return signed


def _signers(base: Path) -> list[Identity]:
    """The owner's key, and those of workers without an owner. A home without any key gets its first worker's."""
    keys = named_keys(base)
    workers = [(path.parent, key) for path, key in keys if path.parent.name.startswith(_WORKERS)]
    owners = {key.public_key: load_delegation(folder, key.public_key) for folder, key in workers}
    now_ms = _now_ms()
    free = [key for _, key in workers if (owner := owners[key.public_key]) is None or owner.expires_ms <= now_ms]
    path = owner_key_file(base)
    signers = ([load_identity(path)] if path.exists() else []) + free
    if signers:
        return signers
    if workers:
        raise IdentityError(
            "the workers here work for an owner whose key is on another machine",
            remedy="Run this where the owner's key is; then here p2prl team join with the line that it prints.",
        )
    return [load_or_create_identity(key_file(base, "seat-1"))]


def _installed(base: Path, membership: Membership) -> Membership:
    """Keep a membership that was signed where the owner's key is."""
    delegations = (load_delegation(path.parent, key.public_key) for path, key in named_keys(base))
    if membership.member not in {delegation.owner for delegation in delegations if delegation is not None}:
        raise IdentityError(
            f"no worker here works for {display_name(membership.member)}, who signed this",
            remedy="p2prl key show lists the workers here and their owners.",
        )
    known = load_memberships(base).get(membership.member)
    if known is not None and known.serial > membership.serial:
        raise IdentityError("a newer membership is kept here already", remedy="Copy the newest line.")
    save_memberships(base, [membership])
    return membership


# --- output ---------------------------------------------------------------------------------------------------------


def _tell_name(base: Path, *, as_json: bool) -> None:
    name = load_team_name(base)
    assert name is not None
    if as_json:
        emit({"team": peer_id_of(name.team), "name": name.name, "invite": invite_text(name)})
    else:
        sys.stdout.write(invite_text(name) + "\n")


def _tell_memberships(base: Path, signed: list[Membership], *, as_json: bool) -> None:
    if as_json:
        emit({"members": [_document(each) for each in signed]})
        return
    for each in signed:
        say(f"{display_name(each.member)} is {_team_text(each.team)}.")
    say("Runs learn of it from a worker's next start. Later work counts; what is done stays where it is.")
    owner = owner_key_file(base)
    mine = {load_identity(owner).public_key} if owner.exists() else set()
    for each in signed:
        if each.member in mine:
            say("On your other machines: p2prl team join with this line")
            sys.stdout.write(membership_text(each) + "\n")


def _document(membership: Membership) -> dict[str, object]:
    team = membership.team
    return {
        "member": peer_id_of(membership.member),
        "team": None if team is None else peer_id_of(team.team),
        "name": "" if team is None else team.name,
        "line": membership_text(membership),
    }


def _team_text(team: TeamName | None) -> str:
    return "in no team" if team is None else f"in the team {team.name} ({peer_id_of(team.team)})"


def _now_ms() -> int:
    return int(time.time() * 1000)
