"""Files of teams: the key and the signed name of a team founded here, and the memberships of this home's keys.

HOME/team/key.json   the team's key, where it was founded; needed to rename the team and for nothing else
HOME/team/invite     the team's newest signed name, one line
HOME/memberships     the newest membership of each member that works here, one a line
"""

from __future__ import annotations

from pathlib import Path

from p2prl.config.home_files import damaged_file, read_file, replace_file
from p2prl.errors import IdentityError
from p2prl.protocol.membership import (
    Membership,
    TeamName,
    invite_text,
    membership_text,
    parse_invite,
    parse_membership,
)

_JOIN = "p2prl team join"


def team_key_file(home: Path) -> Path:
    """The key file of a team founded here, there or not."""
    return home / "team" / "key.json"


def load_team_name(home: Path) -> TeamName | None:
    """The signed name of the team founded here; None without one. Raises `IdentityError` when the file is damaged."""
    path = home / "team" / "invite"
    text = read_file(path, remedy="p2prl team rename")
    if text is None:
        return None
    try:
        return parse_invite(text)
    except IdentityError as error:
        raise damaged_file(path, error, remedy="p2prl team rename") from error


def save_team_name(home: Path, name: TeamName) -> None:
    """Keep the signed name of the team founded here."""
    replace_file(home / "team" / "invite", invite_text(name) + "\n")


def load_memberships(home: Path) -> dict[bytes, Membership]:
    """The newest membership by member's public key. Raises `IdentityError` when the file is damaged."""
    path = home / "memberships"
    lines = (read_file(path, remedy=_JOIN) or "").splitlines()
    try:
        found = [parse_membership(line) for line in lines if line.strip()]
    except IdentityError as error:
        raise damaged_file(path, error, remedy=_JOIN) from error
    return {membership.member: membership for membership in found}


def save_memberships(home: Path, memberships: list[Membership]) -> None:
    """Keep these, each in place of the earlier one of its member."""
    kept = load_memberships(home) | {membership.member: membership for membership in memberships}
    replace_file(home / "memberships", "".join(membership_text(each) + "\n" for each in kept.values()))
