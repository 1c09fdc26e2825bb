"""State of an index's people: the newest part of each run, and the totals over them, behind locks."""

from __future__ import annotations

import threading

from p2prl.clock import Clock
from p2prl.index.people_totals import PeopleTotals, RunPart, people_totals
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.listing import run_id

RECOUNT_S = 5.0
"""Least time between two sums over all runs: they take a third of a second for a hundred thousand people, and boards
change all the time."""


class PeopleState:
    """The runs' parts behind a lock."""

    def __init__(self, clock: Clock, owners: frozenset[PeerId]) -> None:
        """The runs of `owners` count."""
        self._clock = clock
        self._owners = owners
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._parts: dict[Digest, RunPart] = {}
        self._changes = self._counted = 0
        self._counted_at = 0.0
        self._totals = people_totals((), owners)
        self.ledgers: dict[str, str] = {}
        """By run id: `ok`, or why its ledger is not whole here."""

    @property
    def owners(self) -> frozenset[PeerId]:
        """Whose runs count."""
        return self._owners

    def note(self, part: RunPart) -> None:
        """The newest part of a run."""
        with self._lock:
            self._parts[part.run] = part
            self._changes += 1

    def others(self) -> frozenset[Digest]:
        """The runs that do not count because of their owners."""
        with self._lock:
            return frozenset(run for run, part in self._parts.items() if part.owner not in self._owners)

    def drop(self, run: Digest) -> None:
        """A run whose ledger is not kept any more."""
        with self._lock:
            self._changes += self._parts.pop(run, None) is not None
        self.ledgers.pop(run_id(run), None)

    def totals(self) -> PeopleTotals:
        """The newest totals, `RECOUNT_S` old at most, or as old as it takes to make others."""
        if not self._counting.acquire(blocking=False):
            return self._totals
        try:
            now = self._clock.now()
            with self._lock:
                parts, changes = tuple(self._parts.values()), self._changes
            if changes != self._counted and (not self._counted or abs(now - self._counted_at) >= RECOUNT_S):
                self._totals = people_totals(parts, self._owners)
                self._counted, self._counted_at = changes, now
            return self._totals
        finally:
            self._counting.release()
