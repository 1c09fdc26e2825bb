"""Totals of teams: who is in each, and the credited work of its members while they were in it.

The sum over all teams and the work outside any team is the sum over all owners. A property test holds them to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from p2prl.protocol.membership import TeamName
from p2prl.protocol.teams import Teams
from p2prl.scoreboard.ledger.hourly_totals import Work


@dataclass(frozen=True, slots=True)
class Team:
    """A team at one ledger height."""

    name: TeamName
    """The newest name that it signed, as a member passed it on."""
    members: frozenset[bytes]
    """Owners that are in it now."""
    work: Mapping[bytes, Work]
    """Credited work by owner, of those that have left too."""
    tokens: int
    groups: int


def team_totals(teams: Teams, work: Mapping[bytes, Mapping[bytes, Work]]) -> dict[bytes, Team]:
    """Every team that has or had a member, by its public key; `work` by team, then by owner."""
    found = {}
    for team, members in teams.members().items():
        of_team = work.get(team, {})
        tokens, groups = (sum(each[place] for each in of_team.values()) for place in (0, 1))
        found[team] = Team(teams.name_of(team), members, MappingProxyType(dict(of_team)), tokens, groups)
    return found
