"""Credited work by hour and owner: what the board shows of a day, of a week and of a contributor's time.

The sums over all hours are those of the whole board, tokens and groups of every owner, whatever a delegation moves or
an exclusion forfeits later. A property test holds them to each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from p2prl.scoreboard.ledger.leaderboard_totals import ESCROW_GROUPS

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
"""By hour since 1970 (UTC), then by the owner's public key."""


class HourlyTotals:
    """Credited work by the hour in which the learner signed the receipt."""

    def __init__(self) -> None:
        self._hours: dict[int, dict[bytes, Work]] = {}
        self._machines: dict[bytes, dict[tuple[bytes, int], Work]] = {}
        """By machine, then (owner, hour): what `forget` takes back."""
        self._escrow: dict[tuple[bytes, bytes], deque[tuple[int, int]]] = {}
        """By owner and machine, hour and tokens of the newest credited groups: those that an exclusion forfeits."""
        self._changed: set[int] = set()
        self._frozen: dict[int, Mapping[bytes, Work]] = {}

    def credit(self, owner: bytes, machine: bytes, sent_ms: int, tokens: int) -> None:
        """Count a credited group."""
        hour = sent_ms // HOUR_MS
        self._escrow.setdefault((owner, machine), deque(maxlen=ESCROW_GROUPS)).append((hour, tokens))
        self._add(owner, machine, hour, tokens, 1)

    def forfeit(self, owner: bytes, machine: bytes) -> None:
        """Take back the tokens in escrow; the groups stay, as in the contributor's row."""
        for hour, tokens in self._escrow.pop((owner, machine), ()):
            self._add(owner, machine, hour, -tokens, 0)

    def forget(self, machine: bytes) -> None:
        """Take back everything of a machine, whose receipts are to be counted again."""
        for (owner, hour), work in self._machines.pop(machine, {}).items():
            self._escrow.pop((owner, machine), None)
            self._sum(owner, hour, -work.tokens, -work.groups)

    def state(self) -> Hours:
        """The sums so far. Copies the hours that have changed since the last call, and no others."""
        for hour in self._changed:
            if hour in self._hours:
                self._frozen[hour] = MappingProxyType(dict(self._hours[hour]))
            else:
                self._frozen.pop(hour, None)
        self._changed.clear()
        return MappingProxyType(dict(self._frozen))

    def _add(self, owner: bytes, machine: bytes, hour: int, tokens: int, groups: int) -> None:
        of_machine = self._machines.setdefault(machine, {})
        of_machine[owner, hour] = of_machine.get((owner, hour), NO_WORK).plus(tokens, groups)
        self._sum(owner, hour, tokens, groups)

    def _sum(self, owner: bytes, hour: int, tokens: int, groups: int) -> None:
        owners = self._hours.setdefault(hour, {})
        work = owners.get(owner, NO_WORK).plus(tokens, groups)
        if work == NO_WORK:
            owners.pop(owner, None)
        else:
            owners[owner] = work
        if not owners:
            del self._hours[hour]
        self._changed.add(hour)
