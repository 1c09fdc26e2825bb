"""Files of owners, delegates and teams in a home folder: keys, machines, delegations, revocations, memberships.

HOME/owner/key.json        the owner's key, on the one machine that has it
HOME/owner/delegates.json  machines it has signed for, with the names it gave them
HOME/seat-1/delegation     the delegation of this worker's key, one line
HOME/revocations           revocations that this machine's workers pass on, one a line

HOME/team/key.json   the team's key, where it was founded; needed to rename the team and for nothing else
HOME/team/invite     the team's newest signed name, one line
HOME/memberships     the newest membership of each member that works here, one a line
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError, IdentityError
from p2prl.net.storage.key_file import load_identity
from p2prl.protocol.delegation import Delegation, Revocation, parse_statement, statement_text
from p2prl.protocol.identity import Identity
from p2prl.protocol.membership_statements import (
    Membership,
    TeamName,
    invite_text,
    membership_text,
    parse_invite,
    parse_membership,
)

_MOST_FILE_BYTES = 1024 * 1024
"""Of any of these files; the list of a thousand machines has about 200 kB."""


def damaged_file(path: Path, reason: object, *, remedy: str) -> IdentityError:
    """The error for a file that does not hold what p2prl wrote; `remedy` is what to run after deleting it."""
    return IdentityError(f"{path} is damaged: {reason}", remedy=f"Delete {path} and run {remedy} again.")


def read_file(path: Path, *, remedy: str) -> str | None:
    """The text of a file; None when it is not there. Raises `IdentityError` when it cannot be read as text."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_FILE_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged_file(path, error, remedy=remedy) from error


def write_file(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone. Raises `MachineError` when the disk refuses."""
    try:
        replace_file(path, text.encode(), private=True)
    except OSError as error:
        raise write_error(error, path) from error


MOST_REVOCATIONS = 64
"""Revocations that one machine passes on: each costs every learner it meets a look."""

_FORMAT = "p2prl/delegates/1"

_DELEGATE = "p2prl key delegate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine that this owner has signed for."""

    peer_id: str
    name: str
    """The owner's name for it; empty for none. It stays on this machine."""
    serial: int
    """Of the newest statement about it."""
    expires_ms: int
    revoked_from_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Document:
    format: str
    machines: list[Machine]


def owner_key_file(home: Path) -> Path:
    """The key file of the owner, there or not."""
    return home / "owner" / "key.json"


def load_delegation(folder: Path, public_key: bytes) -> Delegation | None:
    """The delegation of a worker folder's key; None when there is none, or one of a key that was replaced.

    Raises `IdentityError` when the file is damaged.
    """
    path = folder / "delegation"
    if (text := read_file(path, remedy=_DELEGATE)) is None:
        return None
    statement = _parse(text, path)
    if not isinstance(statement, Delegation) or statement.delegate != public_key:
        return None
    return statement


def save_delegation(folder: Path, delegation: Delegation) -> None:
    """Install a delegation in a worker folder."""
    write_file(folder / "delegation", statement_text(delegation) + "\n")


def load_revocations(home: Path) -> tuple[Revocation, ...]:
    """Revocations that this machine passes on, oldest first. Raises `IdentityError` when the file is damaged."""
    path = home / "revocations"
    lines = (read_file(path, remedy=_DELEGATE) or "").splitlines()
    found = (_parse(line, path) for line in lines if line.strip())
    return tuple(statement for statement in found if isinstance(statement, Revocation))[-MOST_REVOCATIONS:]


def add_revocation(home: Path, revocation: Revocation) -> None:
    """Keep a revocation, to be passed on by the workers of this machine. The oldest make room."""
    others = [known for known in load_revocations(home) if known != revocation]
    kept = [*others, revocation][-MOST_REVOCATIONS:]
    write_file(home / "revocations", "".join(statement_text(each) + "\n" for each in kept))


def load_machines(home: Path) -> dict[str, Machine]:
    """The owner's machines by peer id. Raises `IdentityError` when the file is damaged."""
    path = home / "owner" / "delegates.json"
    if (text := read_file(path, remedy=_DELEGATE)) is None:
        return {}
    try:
        document = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        raise _damaged(path, error) from error
    if document.format != _FORMAT:
        raise _damaged(path, f"its format is {document.format[:40]!r}")
    return {machine.peer_id: machine for machine in document.machines}


def save_machine(home: Path, machine: Machine) -> None:
    """Add a machine to the owner's list, or replace its entry."""
    machines = {**load_machines(home), machine.peer_id: machine}
    document = {"format": _FORMAT, "machines": [asdict(each) for each in machines.values()]}
    write_file(home / "owner" / "delegates.json", msgspec.json.format(msgspec.json.encode(document)).decode() + "\n")


def _parse(text: str, path: Path) -> Delegation | Revocation:
    try:
        return parse_statement(text)
    except IdentityError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, reason: object) -> IdentityError:
    return damaged_file(path, reason, remedy=_DELEGATE)


OWNER_FOLDER = "owner"


TEAM_FOLDER = "team"


_FOLDER_NAME = re.compile(r"owner|team|(seat|validator|seeder|board)-[1-9][0-9]?")


def named_keys(base: Path) -> list[tuple[Path, Identity]]:
    """Key files under a home, by name, with their keys."""
    return [(path, load_identity(path)) for path in sorted(base.glob("*/key.json"))]


def key_file(base: Path, seat: str) -> Path:
    """Key file of the folder `seat`; a bare number means a volunteer's."""
    name = f"seat-{seat}" if seat.isdecimal() else seat
    if not _FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"{seat!r} is not a worker folder",
            remedy="Use a name that `p2prl key show` lists, such as seat-1.",
        )
    return base / name / "key.json"


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
    write_file(home / "team" / "invite", invite_text(name) + "\n")


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
    write_file(home / "memberships", "".join(membership_text(each) + "\n" for each in kept.values()))
