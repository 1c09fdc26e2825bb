"""Documents of the HTTP API about teams. The rules are those of `api_schema`.

A team's name is the one text here that somebody typed: `p2prl.protocol.typed_names` says what it may hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.scoreboard.documents.page_schema import ActivityDocument


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamDocument:
    """A team: the work of its members, receipted while they were in it."""

    rank: int
    id: str
    """The peer id of the team's public key: two teams may have one name."""
    name: str
    members: int
    """Owners that are in it now."""
    credit: float
    window_credit: float
    """Credit within the window that was asked for; all of it without one."""
    window_groups: int
    window_tokens: int
    groups: int
    """Credited groups."""
    verified_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamsDocument:
    """One page of the teams."""

    window: str
    """`today`, `7d` or `all`, as for contributors; a window lists the teams with credited work in it."""
    total: int
    """Teams: of the table, or of the search when there is one."""
    teams: list[TeamDocument]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamMemberDocument:
    """An owner's part of a team's work."""

    id: str
    handle: str
    is_member: bool
    """Whether it is in the team now; its work stays with the team when it has left."""
    credit: float
    groups: int
    verified_tokens: int
    share: float
    """Of the team's verified tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TeamProfileDocument:
    """One team with its members and its work over time."""

    team: TeamDocument
    share: float
    """Of the run's verified tokens."""
    contributors: int
    """Owners that are in it or have work in it."""
    members: list[TeamMemberDocument]
    """Most credit first, at most 500."""
    activity: ActivityDocument
    """The work of the team alone; `top` is empty."""
    invite: str
    """The line that a person passes to `p2prl team join`. It holds the team's public key and signed name, no secret."""
