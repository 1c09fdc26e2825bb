"""Credited work by hour, owner and team: what the board shows of a day, of a week, and of anybody's time.

Each group counts once for its owner, and once more for the team that its owner was in, if it was in one. The owners'
sums over all hours are those of the whole board, tokens and groups of every owner, whatever a delegation moves or an
exclusion forfeits later. A property test holds them to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.scoreboard.ledger.escrow import ESCROW_GROUPS, Escrow

HOUR_MS = 3_600_000
"""Milliseconds of an hour, the finest time that a board keeps: a run of one evening has a curve of several points."""

HOURS_PER_DAY = 24


class Work(NamedTuple):
    """Credited work."""

    tokens: int
    """Completion tokens in credited groups, less those forfeited."""
    groups: int
    """Credited groups."""

    def plus(self, tokens: int, groups: int) -> Work:
        """The sum."""
        return Work(self.tokens + tokens, self.groups + groups)


NO_WORK = Work(0, 0)

Hours = Mapping[int, Mapping[bytes, Work]]
"""By hour since 1970 (UTC), then by the owner's public key, or by `team_row`."""


class HourlyTotals:
    """Credited work by the hour in which the learner signed the receipt: of every owner, and of it in every team."""

    def __init__(self) -> None:
        self._owners = _HourSums()
        self._teams = _HourSums()
        self.team_work: dict[bytes, dict[bytes, Work]] = {}
        """Sums over all hours of work that counts for teams: by team, then by owner."""
        self._machines: dict[bytes, dict[_Place, Work]] = {}
        """By machine: what `forget` takes back."""
        self._escrow: Escrow[tuple[bytes, bytes], tuple[_Place, int]] = Escrow(ESCROW_GROUPS)
        """By owner and machine, where the newest credited groups count, and their tokens."""

    def credit(self, owner: bytes, machine: bytes, sent_ms: int, tokens: int, team: bytes | None = None) -> None:
        """Count a credited group, for the team that its owner was in."""
        place = _Place(owner, sent_ms // HOUR_MS, team)
        self._escrow.add((owner, machine), (place, tokens))
        self._add(place, machine, tokens, 1)

    def forfeit(self, owner: bytes, machine: bytes) -> None:
        """Take back the tokens in escrow; the groups stay, as in the contributor's row."""
        for place, tokens in self._escrow.empty((owner, machine)):
            self._add(place, machine, -tokens, 0)

    def forget(self, machine: bytes) -> None:
        """Take back everything of a machine, whose receipts are to be counted again."""
        for place, work in self._machines.pop(machine, {}).items():
            self._escrow.empty((place.owner, machine))
            self._sum(place, -work.tokens, -work.groups)

    def state(self) -> Hours:
        """The owners' sums so far. Copies the hours that have changed since the last call, and no others."""
        return self._owners.state()

    def team_state(self) -> Hours:
        """The sums so far of work that counts for teams, by hour, then by `team_row` of team and owner."""
        return self._teams.state()

    def _add(self, place: _Place, machine: bytes, tokens: int, groups: int) -> None:
        of_machine = self._machines.setdefault(machine, {})
        of_machine[place] = of_machine.get(place, NO_WORK).plus(tokens, groups)
        self._sum(place, tokens, groups)

    def _sum(self, place: _Place, tokens: int, groups: int) -> None:
        self._owners.add(place.hour, place.owner, tokens, groups)
        if place.team is not None:
            self._teams.add(place.hour, team_row(place.team, place.owner), tokens, groups)
            _add_work(self.team_work.setdefault(place.team, {}), place.owner, tokens, groups)


def team_row(team: bytes, owner: bytes) -> bytes:
    """Name of an owner's work in a team, of two public keys."""
    return team + owner


def team_and_owner(row: bytes) -> tuple[bytes, bytes]:
    """The keys in a `team_row`."""
    return row[:PUBLIC_KEY_BYTES], row[PUBLIC_KEY_BYTES:]


class _Place(NamedTuple):
    """Where a machine's work counts."""

    owner: bytes
    hour: int
    team: bytes | None


class _HourSums:
    """Sums by hour and key, with a state that shares what has not changed."""

    def __init__(self) -> None:
        self._hours: dict[int, dict[bytes, Work]] = {}
        self._changed: set[int] = set()
        self._frozen: dict[int, Mapping[bytes, Work]] = {}

    def state(self) -> Hours:
        for hour in self._changed:
            if hour in self._hours:
                self._frozen[hour] = MappingProxyType(dict(self._hours[hour]))
            else:
                self._frozen.pop(hour, None)
        self._changed.clear()
        return MappingProxyType(dict(self._frozen))

    def add(self, hour: int, key: bytes, tokens: int, groups: int) -> None:
        keys = self._hours.setdefault(hour, {})
        _add_work(keys, key, tokens, groups)
        if not keys:
            del self._hours[hour]
        self._changed.add(hour)


def _add_work(sums: dict[bytes, Work], key: bytes, tokens: int, groups: int) -> None:
    work = sums.get(key, NO_WORK).plus(tokens, groups)
    if work == NO_WORK:
        sums.pop(key, None)
    else:
        sums[key] = work
