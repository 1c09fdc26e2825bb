"""Upload order of interested peers: newcomers first, then those that will be late, then the nearly complete.

A peer without a chunk is an idle uplink, so newcomers come first, those with the largest uplinks ahead. A peer whose
remaining bytes need more time than is left until the target delays the last arrival. All others are served shortest
remaining time first, which minimizes the mean time of arrival, and so the mean staleness of rollouts (least laxity and
SRPT, both from the scheduling literature). How fast peers are follows from what they gain. The uplink that a peer
states only orders newcomers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_TARGET_OVER_BOUND = 1.1
"""Target time, over the time at which all neighbors finish together as they go on now."""

_LATE_SHARE = 0.05
"""A laxity below this share of the target counts as late: one scheduling period of warning."""

_SWARM_GAIN = 1.5
"""A peer may expect this many times the mean uplink, since peers that are complete upload without downloading."""

_MOST_CLAIMED_BYTES_S = 12.5e6
"""100 Mbit/s: who claims more gets no chunk sooner."""

Rank = tuple[int, float]
"""Smaller is served sooner."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Link rates a peer states, bytes/s; 0 where it states none."""

    upload_bytes_s: float = 0.0
    download_bytes_s: float = 0.0

    def capped(self) -> Rates:
        """What of a claim counts: an uplink up to `_MOST_CLAIMED`, and no downlink."""
        return Rates(min(self.upload_bytes_s, _MOST_CLAIMED_BYTES_S))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a blob can spread among the neighbors."""

    mean_upload_bytes_s: float
    """What a neighbor gains on average, by their announcements; 0 while none gains."""
    target_s: float
    """Target time from the beginning of the transfer; infinite while nobody gains."""

    def remaining_s(self, missing_bytes: int, rates: Rates, *, gain: float = _SWARM_GAIN) -> float:
        """The least time a peer may need for its missing bytes; infinite while no rate is known."""
        rate = gain * self.mean_upload_bytes_s
        if rates.download_bytes_s:
            rate = min(rate, rates.download_bytes_s) if rate else rates.download_bytes_s
        return missing_bytes / rate if rate else math.inf

    def laxity_s(self, missing_bytes: int, rates: Rates, elapsed_s: float, *, gain: float = _SWARM_GAIN) -> float:
        """Slack of a peer until the target time; infinite while there is no target."""
        if math.isinf(self.target_s):
            return math.inf
        return self.target_s - elapsed_s - self.remaining_s(missing_bytes, rates, gain=gain)

    def is_late(self, laxity_s: float) -> bool:
        """Whether a peer with that laxity needs help to make the target."""
        return laxity_s < _LATE_SHARE * self.target_s


def observed_pace(missing_bytes: Sequence[int], gained_bytes_s: float, elapsed_s: float, *, least_s: float) -> Pace:
    """The pace of neighbors that lack these bytes and together gain `gained_bytes_s`.

    The target is a tenth beyond the time at which they finish together if they go on like that, and beyond `least_s`.
    """
    if not missing_bytes or gained_bytes_s <= 0:
        return Pace(0.0, math.inf)
    ends_s = elapsed_s + sum(missing_bytes) / gained_bytes_s
    return Pace(gained_bytes_s / len(missing_bytes), _TARGET_OVER_BOUND * max(least_s, ends_s))


def rank(held_chunks: int, missing_bytes: int, rates: Rates, pace: Pace, elapsed_s: float) -> Rank:
    """A receiver's rank in the upload order."""
    if held_chunks <= 1:
        return 0, -rates.upload_bytes_s
    remaining_s = pace.remaining_s(missing_bytes, rates)
    if math.isinf(remaining_s):
        return 2, float(missing_bytes)
    laxity_s = pace.target_s - elapsed_s - remaining_s
    return (1, laxity_s) if pace.is_late(laxity_s) else (2, remaining_s)
