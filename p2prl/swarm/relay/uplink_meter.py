"""Upload budget of a volunteer: a rate cap, and bytes per month.

The rate is the user's cap, or 80 % of the measured uplink, so that a household does not notice. Control messages are
charged to the same bucket and never wait for it: they may overdraw it, and chunks wait longer instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime

from p2prl.protocol.identity import PeerId

GIVEN_SHARE = 0.8
"""Share of a measured uplink that chunks may use."""

_BURST_S = 0.05
"""Burst that a bucket holds, in seconds of its rate: shorter than a gap that is audible in a call."""

_LEAST_BURST_BYTES = 16 * 1024

_PROBE_BYTES = 8 * 1024 * 1024
"""Bytes sent without a cap before an uplink counts as measured: home routers buffer a megabyte of them."""

_LEAST_PROBE_S = 1.0

_PROBE_AGAIN_S = 1_800.0
"""How long a measurement that others confirmed is valid: evenings are slower than nights."""

_CONFIRM_S = 30.0
"""How long the first measurement is valid, twice as long after each one that confirms it: it may have measured what
peers wanted, or how fast they could take it, instead of the line."""

_CONFIRMED_WITHIN = 1.25
_BUSY_CHUNKS = 2
"""Chunks under way all through a measurement of the line: with one alone, the line may rest between them."""


class TokenBucket:
    """Bytes that may be sent by a given time."""

    def __init__(self, rate_bytes_s: float, now: float) -> None:
        """A rate of 0 means no limit."""
        self.rate_bytes_s = rate_bytes_s
        self._level = 0.0
        self._at = now

    def take(self, size_bytes: int, now: float) -> None:
        """Charge bytes that are sent, even when that overdraws the bucket."""
        if self.rate_bytes_s > 0:
            self._fill(now)
            self._level -= size_bytes

    def wait_s(self, now: float) -> float:
        """Time until the bucket is no longer overdrawn; 0 when bytes may be sent now."""
        if self.rate_bytes_s <= 0:
            return 0.0
        self._fill(now)
        return max(0.0, -self._level / self.rate_bytes_s)

    def _fill(self, now: float) -> None:
        burst = max(_LEAST_BURST_BYTES, _BURST_S * self.rate_bytes_s)
        self._level = min(burst, self._level + max(0.0, now - self._at) * self.rate_bytes_s)
        self._at = max(now, self._at)


_PROBE_PEERS = 3
"""Fewest receivers in one measurement: a single one may have the slower link of the two."""


@dataclass(slots=True)
class UplinkMeter:
    """Measures the uplink's rate from chunks that peers acknowledged while sending was not capped."""

    measured_bytes_s: float = 0.0
    """0 before the first measurement."""
    _measured_at: float = -math.inf
    _outstanding: int = 0
    _busy_since: float = 0.0
    _busy_s: float = 0.0
    _bytes: int = 0
    _peers: set[PeerId] = field(default_factory=set)
    _fewest: int = 0
    """Fewest chunks under way during this measurement."""
    _valid_s: float = _CONFIRM_S

    def wants_probe(self, now: float) -> bool:
        """Whether chunks should be sent uncapped now, for a measurement."""
        return now - self._measured_at >= self._valid_s

    def sending(self, now: float) -> None:
        """A chunk is being sent. Time in which none is does not count."""
        if self._outstanding == 0:
            self._busy_since = now
        self._outstanding += 1

    def sent(self, peer: PeerId, size_bytes: int, now: float) -> bool:
        """A chunk is acknowledged, or has failed (0 bytes). Returns whether that completed a measurement."""
        before = self._outstanding
        self._outstanding -= 1
        if not self.wants_probe(now):
            return False
        if not self._peers:  # the first chunk: what was under way beside it counts
            self._fewest = before
        is_busy = self._fewest >= _BUSY_CHUNKS
        self._fewest = min(self._fewest, self._outstanding)
        self._bytes += size_bytes
        self._peers.add(peer)
        busy_s = self._busy_s + now - self._busy_since
        if self._outstanding == 0:
            self._busy_s = busy_s
        if self._bytes < _PROBE_BYTES or busy_s < _LEAST_PROBE_S or len(self._peers) < _PROBE_PEERS:
            return False
        self._note(self._bytes / busy_s, is_busy=is_busy)
        self._measured_at, self._busy_since = now, now
        self._bytes, self._busy_s = 0, 0.0
        self._peers.clear()
        return True

    def _note(self, found_bytes_s: float, *, is_busy: bool) -> None:
        """Take a measurement. One made while the line was not busy all the time can only raise the rate."""
        known = self.measured_bytes_s
        confirms = known / _CONFIRMED_WITHIN <= found_bytes_s <= known * _CONFIRMED_WITHIN
        self._valid_s = min(_PROBE_AGAIN_S, 2 * self._valid_s) if confirms and is_busy else _CONFIRM_S
        self.measured_bytes_s = found_bytes_s if is_busy else max(found_bytes_s, known)


def month_of(now: float) -> str:
    """The calendar month (UTC) of a Unix time, as `2026-11`."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m")


@dataclass(slots=True)
class MonthlyBudget:
    """Bytes that may be uploaded in a calendar month (UTC)."""

    limit_bytes: int
    """0 is no limit."""
    month: str = ""
    """`2026-11`; empty before the first byte."""
    spent_bytes: int = 0

    def spend(self, size_bytes: int, now: float) -> None:
        """Count bytes sent at `now`, seconds since the Unix epoch. A new month starts from 0."""
        self._turn(now)
        self.spent_bytes += size_bytes

    def is_spent(self, now: float) -> bool:
        """Whether the month's budget is used up."""
        self._turn(now)
        return 0 < self.limit_bytes <= self.spent_bytes

    def _turn(self, now: float) -> None:
        month = month_of(now)
        # A clock that is set back must not grant a month's budget twice.
        if month > self.month:
            self.month, self.spent_bytes = month, 0
