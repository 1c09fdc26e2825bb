"""Show, back up and restore the key files of worker folders."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from p2prl.cli.views.console import emit, say
from p2prl.config.owner_files import Machine, load_delegation, load_machines
from p2prl.config.worker_folder import default_home, make_home
from p2prl.errors import ConfigError, IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity
from p2prl.protocol.identity import Identity, peer_id_of
from p2prl.scoreboard.display_names import display_name

OWNER_FOLDER = "owner"
TEAM_FOLDER = "team"

_FOLDER_NAME = re.compile(r"owner|team|(seat|validator|seeder|board)-[1-9][0-9]?")


def show_command(home: Path | None, *, as_json: bool) -> None:
    """Print the peer id and the owner of every worker folder, and the owner's key with its machines."""
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


def named_keys(base: Path) -> list[tuple[Path, Identity]]:
    """Key files under a home, by name, with their keys."""
    return [(path, load_identity(path)) for path in sorted(base.glob("*/key.json"))]


def backup_command(home: Path | None, *, seat: str) -> None:
    """Print a key's twelve words."""
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


def restore_command(home: Path | None, *, seat: str) -> None:
    """Restore a key from twelve words on standard input. Never overwrites an existing key."""
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


def _owner_of(folder: Path, identity: Identity) -> str | None:
    delegation = load_delegation(folder, identity.public_key)
    return None if delegation is None else peer_id_of(delegation.owner)


def _machine_text(machine: Machine) -> str:
    until = machine.expires_ms if machine.revoked_from_ms is None else machine.revoked_from_ms
    state = "until" if machine.revoked_from_ms is None else "revoked from"
    day = datetime.fromtimestamp(until / 1000, UTC).date().isoformat()
    return f"{machine.name} {state} {day}".strip()


def key_file(base: Path, seat: str) -> Path:
    """Key file of the folder `seat`; a bare number means a volunteer's."""
    name = f"seat-{seat}" if seat.isdecimal() else seat
    if not _FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{seat!r} is not a worker folder",
            remedy="Use a name that `p2prl key show` lists, such as seat-1.",
        )
    return base / name / "key.json"
