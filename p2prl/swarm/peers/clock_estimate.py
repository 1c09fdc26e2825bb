"""Estimate of this machine's clock error from its peers' hellos: bounded by round trips, decided by a quorum. Pure.

A hello says when it was sent, and for the last hello of ours that its sender got, when that was sent by our clock and
how long ago it came. With `T1` our sending, `T2` the peer's receiving, `T3` its sending and `T4` our receiving, the
peer's clock minus ours lies between `T3 − T4` and `T2 − T1` (the interval of NTP, RFC 5905): the width is the round
trip, so a delayed message widens the interval and proves nothing. Of one peer the reading of the smallest round trip
holds.

A clock counts as wrong when the peers' weighted median says so, with weights that keys do not buy: strangers of one
subnet have one vote together, peers of standing more, and the learner as many as a quorum. Below the quorum nothing is
said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.swarm.peers.subnets import Subnet

LEARNER_WEIGHT = 4
"""The run's learner alone is a quorum: its key is in the link, and its clock dates everything that counts."""

KNOWN_WEIGHT = 2
"""A peer of standing, whose work the learner has verified."""

QUORUM = 4
"""Weight needed for a statement: the learner, two known peers, or strangers of four subnets."""

_SENT_KEPT = 8
"""Own hellos of one link that a peer may still refer to: two minutes of them."""

_READING_S = 900.0
"""How long a reading holds: a clock that drifts by 200 ppm is .2 s further then."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bounds of a peer's clock minus ours, seconds."""

    lowest: float
    highest: float
    at: float

    @property
    def round_trip_s(self) -> float:
        """Width of the interval."""
        return self.highest - self.lowest

    @property
    def offset_s(self) -> float:
        """The best guess."""
        return (self.lowest + self.highest) / 2

    @property
    def least_s(self) -> float:
        """The smallest error that fits the reading; 0 if none at all does."""
        return max(self.lowest, min(0.0, self.highest))


class PeerClock:
    """Readings of one peer's clock."""

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self._sent_ms: deque[int] = deque(maxlen=_SENT_KEPT)
        self._heard_ms = 0
        self._heard_at = 0.0
        self.began_ms = 0
        """When the peer's process first said hello here, by its own clock: it echoed nothing then."""

    def sent(self, now: float) -> tuple[int, int]:
        """Note that a hello is sent now. Returns its echo of the peer's last: (`echo_ms`, `held_ms`); 0, 0 for none."""
        self._sent_ms.append(int(now * 1000))
        return self._heard_ms, max(0, int((now - self._heard_at) * 1000)) if self._heard_ms else 0

    def heard(self, now_ms: int, echo_ms: int, held_ms: int, now: float) -> None:
        """Note a peer's hello. An echo of something we did not send lately is ignored."""
        if not (self._heard_ms and echo_ms):
            self.began_ms = now_ms
        self._heard_ms, self._heard_at = now_ms, now
        if echo_ms not in self._sent_ms or held_ms < 0:
            return
        lowest, highest = now_ms / 1000 - now, (now_ms - held_ms - echo_ms) / 1000
        if highest < lowest:
            return  # it arrived before it was sent: one of the two clocks was set meanwhile, or the peer lies
        fresh, last = Reading(lowest, highest, now), self.reading
        is_last_valid = last is not None and 0 <= now - last.at < _READING_S
        if last is None or not is_last_valid or fresh.round_trip_s <= last.round_trip_s:
            self.reading = fresh


@dataclass(frozen=True, slots=True)
class Vote:
    """One peer's reading with what is known of the peer."""

    reading: Reading
    subnet: Subnet
    is_known: bool = False
    is_learner: bool = False


def clock_error_s(votes: Iterable[Vote], *, tolerance_s: float) -> float | None:
    """The peers' clock minus ours, when a quorum shows that it exceeds the tolerance; None otherwise."""
    weighted: list[tuple[Reading, float]] = []
    strangers: dict[Subnet, list[Reading]] = {}
    for vote in votes:
        if vote.is_learner:
            weighted.append((vote.reading, LEARNER_WEIGHT))
        elif vote.is_known:
            weighted.append((vote.reading, KNOWN_WEIGHT))
        else:
            strangers.setdefault(vote.subnet, []).append(vote.reading)
    for readings in strangers.values():
        readings.sort(key=lambda reading: reading.least_s)
        weighted.append((readings[len(readings) // 2], 1))
    if sum(weight for _, weight in weighted) < QUORUM:
        return None
    # Every error of the median that fits its round trip must be too large.
    if abs(_median((reading.least_s, weight) for reading, weight in weighted)) <= tolerance_s:
        return None
    return _median((reading.offset_s, weight) for reading, weight in weighted)


def _median(values: Iterable[tuple[float, float]]) -> float:
    """Weighted median; of two middle values the one closer to 0."""
    ordered = sorted(values)
    half, below = sum(weight for _, weight in ordered) / 2, 0.0
    for place, (value, weight) in enumerate(ordered):
        below += weight
        if below > half:
            return value
        if below == half:
            return min(value, ordered[place + 1][0], key=abs)
    raise ValueError("the median of nothing")
