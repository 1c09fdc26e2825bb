"""Whom to serve next: newcomers first, then those that will be late, then those that are nearly there.

A peer without a chunk is an uplink that lies idle, the largest most of all. A peer whose remaining bytes need more
time than is left until the target makes the last one later. All others are served shortest remaining time first,
which minimises the mean time of arrival, and so the mean staleness of rollouts (least laxity and SRPT, both from the
scheduling literature). What a peer says of its rates only moves it within this order: a lie buys no bytes that its
link would not take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TARGET_OVER_BOUND = 1.1
"""Time aimed at, over what the neighbourhood's links allow at best."""

_LATE_SHARE = 0.05
"""A laxity below this share of the target counts as late: one scheduling period of warning."""

_SWARM_GAIN = 1.5
"""A peer may hope for this many times the mean uplink, since those that are done give without taking."""

Rank = tuple[int, float]
"""Smaller is served sooner."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a peer says of its link, bytes/s; 0 where it says nothing."""

    upload_bytes_s: float = 0.0
    download_bytes_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a blob can spread in this neighbourhood."""

    mean_upload_bytes_s: float
    """Over the volunteers that said; 0 when none did."""
    target_s: float
    """Time aimed at from the beginning of the transfer; infinite while nothing is known."""

    def remaining_s(self, missing_bytes: int, rates: Rates, *, gain: float = _SWARM_GAIN) -> float:
        """The least time a peer may need for its missing bytes; infinite while nothing is known."""
        rate = gain * self.mean_upload_bytes_s
        if rates.download_bytes_s:
            rate = min(rate, rates.download_bytes_s) if rate else rates.download_bytes_s
        return missing_bytes / rate if rate else math.inf

    def laxity_s(self, missing_bytes: int, rates: Rates, elapsed_s: float, *, gain: float = _SWARM_GAIN) -> float:
        """Time a peer has to spare until the target; infinite while there is no target."""
        if math.isinf(self.target_s):
            return math.inf
        return self.target_s - elapsed_s - self.remaining_s(missing_bytes, rates, gain=gain)

    def is_late(self, laxity_s: float) -> bool:
        """Whether a peer with that laxity needs help to make the target."""
        return laxity_s < _LATE_SHARE * self.target_s


def pace_of(size_bytes: int, neighbours: Iterable[Rates], *, source_upload_bytes_s: float = 0.0) -> Pace:
    """The lower bound max(F/u_s, F/d_min, N·F/(u_s + Σu)) over the neighbours that said their rates.

    Without a source among the uplinks (`source_upload_bytes_s` 0) the last term is F over the mean uplink: what a
    large swarm comes to, since its source is one uplink of many.
    """
    known = [rates for rates in neighbours if rates.upload_bytes_s > 0]
    if not known:
        return Pace(0.0, math.inf)
    total = sum(rates.upload_bytes_s for rates in known)
    slowest = min((rates.download_bytes_s for rates in known if rates.download_bytes_s > 0), default=math.inf)
    bound_s = max(size_bytes / slowest, len(known) * size_bytes / (source_upload_bytes_s + total))
    if source_upload_bytes_s:
        bound_s = max(bound_s, size_bytes / source_upload_bytes_s)
    return Pace(total / len(known), _TARGET_OVER_BOUND * bound_s)


def rank(held_chunks: int, missing_bytes: int, rates: Rates, pace: Pace, elapsed_s: float) -> Rank:
    """A receiver's place in the order."""
    if held_chunks <= 1:
        return 0, -rates.upload_bytes_s
    remaining_s = pace.remaining_s(missing_bytes, rates)
    if math.isinf(remaining_s):
        return 2, float(missing_bytes)
    laxity_s = pace.target_s - elapsed_s - remaining_s
    return (1, laxity_s) if pace.is_late(laxity_s) else (2, remaining_s)
