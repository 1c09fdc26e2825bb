"""`p2prl key`: show, backup, restore."""

from __future__ import annotations

import sys
from pathlib import Path

from p2prl.cli.console import emit, say
from p2prl.config.home import default_home
from p2prl.errors import IdentityError
from p2prl.net.keyfile import create_identity, load_identity
from p2prl.protocol.identity import Identity


def show_command(home: Path | None, *, as_json: bool) -> None:
    """Print the peer id of every seat."""
    base = home or default_home()
    seats = {path.parent.name: load_identity(path).peer_id for path in sorted(base.glob("*/key.json"))}
    if as_json:
        emit({"home": str(base), "seats": seats})
    elif seats:
        for seat, peer in seats.items():
            sys.stdout.write(f"{seat}  {peer}\n")
    else:
        say(f"No keys in {base} yet; `p2prl join` makes one.")


def backup_command(home: Path | None, *, seat: int) -> None:
    """Print a key's twelve words."""
    path = (home or default_home()) / f"seat-{seat}" / "key.json"
    words = load_identity(path).words.split()
    say("Write these down and keep them private: they are this key.")
    sys.stdout.write(" ".join(words) + "\n")


def restore_command(home: Path | None, *, seat: int) -> None:
    """Make the key of twelve words, never over another one."""
    path = (home or default_home()) / f"seat-{seat}" / "key.json"
    if path.exists():
        raise IdentityError(f"{path} exists already", remedy="Choose a free --seat, or move the file away first.")
    if sys.stdin.isatty():
        say("Type the twelve words:")
    identity = Identity.from_words(sys.stdin.readline())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    create_identity(path, identity)
    say(f"Restored {identity.peer_id} as seat {seat}.")
