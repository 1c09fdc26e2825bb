"""Show, back up and restore the key files of worker folders."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from p2prl.cli.views.console import emit, say
from p2prl.config.worker_folder import default_home
from p2prl.errors import ConfigError, IdentityError
from p2prl.net.storage.key_file import create_identity, load_identity
from p2prl.protocol.identity import Identity
from p2prl.scoreboard.display_names import display_name

_FOLDER_NAME = re.compile(r"(seat|validator|seeder|board)-[1-9][0-9]?")


def show_command(home: Path | None, *, as_json: bool) -> None:
    """Print the peer id of every worker folder."""
    base = home or default_home()
    peer_ids = {path.parent.name: load_identity(path).peer_id for path in sorted(base.glob("*/key.json"))}
    if as_json:
        emit({"home": str(base), "seats": peer_ids})
    elif peer_ids:
        for name, peer_id in peer_ids.items():
            sys.stdout.write(f"{name}  {peer_id}\n")
    else:
        say(f"No keys in {base} yet; `p2prl join` creates one.")


def backup_command(home: Path | None, *, seat: str) -> None:
    """Print a key's twelve words."""
    base = home or default_home()
    path = _key_file(base, seat)
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
    path = _key_file(home or default_home(), seat)
    if path.exists():
        raise IdentityError(f"{path} already exists", remedy="Choose a free --seat, or move the file away first.")
    if sys.stdin.isatty():
        say("Type the twelve words:")
    identity = Identity.from_words(sys.stdin.readline())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    create_identity(path, identity)
    say(f"Restored {identity.peer_id} as {path.parent.name}.")
    say("Use a key on only one machine at a time: two machines with the same key disconnect each other.")


def _key_file(base: Path, seat: str) -> Path:
    """Key file of the worker folder `seat`; a bare number means a volunteer's."""
    name = f"seat-{seat}" if seat.isdecimal() else seat
    if not _FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{seat!r} is not a worker folder", remedy="Use a name that `p2prl key show` lists, such as seat-1."
        )
    return base / name / "key.json"
