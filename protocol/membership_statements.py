"""Membership of an owner in a team: a team's signed name, and a member's signed word to be in that team or in none.

A team is a key, like an owner. It signs its *name*; the name as a line of text is the *invite*, which holds nothing
secret. Everybody who has it may sign a `Membership`, with the key that its work counts for: an owner's, or that of a
machine without one. Neither names a run, so a member signs once for all runs; its machines send the statement to each.

A membership has no time of its own. It counts from where it stands in a run's ledger (`team_membership`), so that
nobody can move work that was already receipted into or out of a team.
"""

from __future__ import annotations

import msgspec

from p2prl.errors import IdentityError, RemoteProtocolError
from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import PUBLIC_KEY_BYTES, Identity, verify_raw
from p2prl.protocol.statement_text import line_of, read_line
from p2prl.protocol.typed_names import check_typed_name
from p2prl.protocol.wire_codec import Wire

INVITE_PREFIX = "p2prl-team:"
MEMBERSHIP_PREFIX = "p2prl-membership:"

_NAME_DOMAIN = "p2prl/team-name/v1"
_MEMBERSHIP_DOMAIN = "p2prl/membership/v1"
_MAX_MS = 1 << 53


class TeamName(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The team's statement of its own name."""

    team: bytes
    """Public key."""
    name: str
    """As `typed_names` allows. Two teams may have one name, so pages show the end of the key beside it."""
    serial: int
    """Unix milliseconds of its signing, or one more than the last serial if that is larger: the largest counts."""
    signature: bytes
    """The team's."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` unless the name may be shown and the team signed it."""
        if len(self.team) != PUBLIC_KEY_BYTES:
            raise RemoteProtocolError(f"team name: a team's key has {PUBLIC_KEY_BYTES} bytes")
        _check_serial("team name", self.serial)
        check_typed_name(self.name)
        if not verify_raw(self.team, _name_bytes(self), self.signature):
            raise RemoteProtocolError("team name: not signed by its team")


class Membership(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member's statement that its work counts for a team, or for none."""

    member: bytes
    """Public key of an owner, or of a machine without one."""
    serial: int
    """Larger than that of every earlier statement of this member: Unix milliseconds of its signing, or one more than
    the last serial if that is larger."""
    team: TeamName | None
    """None to leave."""
    signature: bytes
    """The member's."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` unless the values are in range and member and team signed them."""
        if len(self.member) != PUBLIC_KEY_BYTES:
            raise RemoteProtocolError(f"membership: a member's key has {PUBLIC_KEY_BYTES} bytes")
        _check_serial("membership", self.serial)
        if self.team is not None:
            if self.team.team == self.member:
                raise RemoteProtocolError("membership: a team is no member of itself")
            self.team.check()
        if not verify_raw(self.member, _membership_bytes(self), self.signature):
            raise RemoteProtocolError("membership: not signed by its member")

    def check_sent_by(self, author: bytes) -> None:  # noqa: ARG002 - whose machine sent it, the ledger tells (`teams`)
        """`check`, for a membership in an envelope."""
        self.check()


OwnersStatement = Delegation | Revocation | Membership
"""Statements that owners sign for all runs, and their machines send to each."""


def sign_team_name(team: Identity, name: str, *, serial: int) -> TeamName:
    """The team's signed name. Raises `IdentityError` when no peer would accept it."""
    draft = TeamName(team.public_key, name, serial, b"")
    signed = msgspec.structs.replace(draft, signature=team.sign_raw(_name_bytes(draft)))
    _check_signed(signed)
    return signed


def sign_membership(member: Identity, team: TeamName | None, *, serial: int) -> Membership:
    """The member's signed membership, or its leaving. Raises `IdentityError` when no peer would accept it."""
    draft = Membership(member.public_key, serial, team, b"")
    signed = msgspec.structs.replace(draft, signature=member.sign_raw(_membership_bytes(draft)))
    _check_signed(signed)
    return signed


def invite_text(name: TeamName) -> str:
    """The invite of a team: one line of text, nothing of it secret."""
    return line_of(INVITE_PREFIX, name)


def parse_invite(text: str) -> TeamName:
    """Read `invite_text`. Raises `IdentityError` unless it is a whole invite that its team signed."""
    text = text.strip()
    if not text.startswith(INVITE_PREFIX):
        raise IdentityError(
            "this text is no invite of a team", remedy=f"Paste the whole line that begins with {INVITE_PREFIX}"
        )
    return read_line(text, INVITE_PREFIX, TeamName, name="invite")


def membership_text(membership: Membership) -> str:
    """A membership as one line of text, to carry from where the owner's key is to the machines that work for it."""
    return line_of(MEMBERSHIP_PREFIX, membership)


def parse_membership(text: str) -> Membership:
    """Read `membership_text`. Raises `IdentityError` unless it is a whole one that its member and team signed."""
    text = text.strip()
    if not text.startswith(MEMBERSHIP_PREFIX):
        raise IdentityError(
            "this text is no membership", remedy=f"Paste the whole line that begins with {MEMBERSHIP_PREFIX}"
        )
    return read_line(text, MEMBERSHIP_PREFIX, Membership, name="membership")


def _check_signed(statement: TeamName | Membership) -> None:
    try:
        statement.check()
    except RemoteProtocolError as error:
        raise IdentityError(str(error), remedy="Check the name, the key and this machine's clock.") from error


def _check_serial(kind: str, serial: int) -> None:
    if not 0 < serial < _MAX_MS:
        raise RemoteProtocolError(f"{kind}: serial out of range")


def _name_bytes(name: TeamName) -> bytes:
    return digest(_NAME_DOMAIN, name.team, name.name.encode("utf-8", "surrogatepass"), _uint64(name.serial))


def _membership_bytes(membership: Membership) -> bytes:
    team = membership.team
    of_team = () if team is None else (team.team, team.name.encode("utf-8", "surrogatepass"), _uint64(team.serial))
    return digest(_MEMBERSHIP_DOMAIN, membership.member, _uint64(membership.serial), *of_team)


def _uint64(number: int) -> bytes:
    return (number & ((1 << 64) - 1)).to_bytes(8, "little")
