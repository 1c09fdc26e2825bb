"""Team of an owner at a time: the one rule by which learner, boards and readers of a ledger agree.

A membership counts when the member itself or one of its machines sent it, and its serial is larger than that of every
one counted before. From then on the member is in that team, or in none. Work is the team's when the learner's
receipt of it is dated after `after_ms`: the learner's newest signature before the membership in the ledger. So

* a member is in one team at a time, and joining, moving and leaving decide about later work only,
* nobody can add work to a team that was receipted before its member joined, nor take it away again,
* what a team counts never changes by a later membership.

The name of a team is the one with the largest serial among the counted memberships, the first of equal ones.

The table is bounded over all keys (`p2prl.protocol.limits`). Pure: times are arguments.
"""

from __future__ import annotations

from bisect import bisect_left

from p2prl.protocol import limits
from p2prl.protocol.membership_statements import Membership, TeamName
from p2prl.protocol.ownership import Ownership


class Teams:
    """Memberships of one run, in the order in which they were taken in."""

    def __init__(self, ownership: Ownership) -> None:
        """`ownership` is the growing table of the same run."""
        self._ownership = ownership
        self._serials: dict[bytes, int] = {}
        self._starts: dict[bytes, list[int]] = {}
        """By member, the `after_ms` of its memberships, never smaller than the one before."""
        self._teams: dict[bytes, list[bytes | None]] = {}
        """The teams that belong to them."""
        self._names: dict[bytes, TeamName] = {}

    def take(self, membership: Membership, author: bytes, *, after_ms: int) -> str | None:
        """Take in a checked membership that `author` sent. Returns the rule that ignores it, or None.

        `after_ms` is the learner's newest signature before it, Unix milliseconds, and never smaller than before.
        """
        member, name = membership.member, membership.team
        if not self._ownership.works_for(author, member):
            return "membership_of_another"
        if membership.serial <= self._serials.get(member, 0) or not self._says_something(member, name):
            return "second_membership"
        starts, teams = self._starts.get(member, []), self._teams.get(member, [])
        # The last place is kept for leaving: nobody is held in a team.
        most = limits.MAX_MEMBERSHIPS_PER_MEMBER - (name is not None)
        if len(teams) >= most or (not teams and len(self._teams) >= limits.MAX_MEMBERS):
            return "too_many_memberships"
        self._serials[member] = membership.serial
        self._starts[member] = [*starts, after_ms]
        self._teams[member] = [*teams, None if name is None else name.team]
        if name is not None and self._is_newer(name):
            self._names[name.team] = name
        return None

    def team_at(self, member: bytes, at_ms: int) -> bytes | None:
        """Public key of the team for which a member's work receipted at a time counts, Unix milliseconds."""
        starts = self._starts.get(member)
        place = bisect_left(starts, at_ms) if starts else 0
        return self._teams[member][place - 1] if place else None

    def team_of(self, member: bytes) -> bytes | None:
        """The team that a member is in by its newest statement."""
        teams = self._teams.get(member)
        return teams[-1] if teams else None

    def was_member(self, member: bytes) -> bool:
        """Whether a member was ever in a team."""
        return member in self._teams

    def name_of(self, team: bytes) -> TeamName:
        """The newest signed name of a team that has or had a member."""
        return self._names[team]

    def members(self) -> dict[bytes, frozenset[bytes]]:
        """Every team that has or had a member, with the members that it has now."""
        found: dict[bytes, set[bytes]] = {team: set() for team in self._names}
        for member, teams in self._teams.items():
            if (team := teams[-1]) is not None:
                found[team].add(member)
        return {team: frozenset(each) for team, each in found.items()}

    def are_allied(self, first: bytes, second: bytes, at_ms: int) -> bool:
        """Whether two machines work for one owner or for owners of one team at a time."""
        one, other = (self._ownership.owner_at(machine, at_ms) for machine in (first, second))
        if one == other:
            return True
        team = self.team_at(one, at_ms)
        return team is not None and team == self.team_at(other, at_ms)

    def _says_something(self, member: bytes, name: TeamName | None) -> bool:
        """Whether a statement moves its member or renames its team."""
        if name is None:
            return self.team_of(member) is not None
        return self.team_of(member) != name.team or self._is_newer(name)

    def _is_newer(self, name: TeamName) -> bool:
        known = self._names.get(name.team)
        return known is None or known.serial < name.serial
