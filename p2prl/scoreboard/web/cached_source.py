"""A ledger source that is asked at most twice a second, however many visitors a board has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from p2prl.errors import P2PRLError
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness

FRESH_S = 0.5
"""Seconds for which a snapshot is used again: shorter than anyone notices, and each one costs several queries."""


class CachedSource:
    """Gives the same snapshot object until the state differs, so that answers made of it can be kept too."""

    def __init__(self, source: LedgerSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: Snapshot | None = None
        self._taken_at = float("-inf")

    def snapshot(self) -> Snapshot:
        """The newest state, or one at most `FRESH_S` old."""
        with self._lock:
            if self._kept is None or self._clock() >= self._taken_at + FRESH_S:
                newest = self._source.snapshot()
                self._taken_at = self._clock()
                if newest != self._kept:
                    self._kept = newest
            return self._kept

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive entries from a height on, as bytes."""
        return self._source.entries(from_height, limit)

    def witnesses(self) -> tuple[Witness, ...]:
        """Countersignatures of heads that the ledger agrees with."""
        return self._source.witnesses()

    def failure(self) -> P2PRLError | None:
        """The error that ended the source for good, if there was one."""
        return self._source.failure()
