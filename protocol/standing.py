"""Standing of a peer: how sure a reader of the ledger can be that its next group is good. Pure.

Passed and failed groups of a peer are the counts of a Beta distribution, Beta(1 + passed, 1 + failed); its standing is
a lower bound of the share of good groups, so a newcomer has none and earns it by verified work. Counts decay with time:
a key that was good long ago is worth little to somebody who buys or steals it. Everybody who reads the same receipts
computes the same standing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_LIFE_S = 7 * 24 * 3600.0
"""Time in which a peer's counts lose half their weight."""

KNOWN_FROM = 0.74
"""Standing from which a peer is not a newcomer: eight passed groups, as an honest volunteer delivers in minutes."""

_DEVIATIONS = 1.645
"""Standard deviations below the mean: about 95 % of the distribution lies above."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Decayed counts of a peer's groups, as of one time."""

    passed: float = 0.0
    failed: float = 0.0
    at: float = 0.0
    """Unix time of the counts."""

    def after(self, now: float, *, passed: float = 0.0, failed: float = 0.0) -> Standing:
        """The counts at `now`, with these added. A clock that went back decays nothing."""
        kept = 0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S)
        return Standing(self.passed * kept + passed, self.failed * kept + failed, max(now, self.at))

    @property
    def lower_bound(self) -> float:
        """Standing, 0..1: a lower bound of the share of the peer's groups that are good."""
        good, bad = 1.0 + self.passed, 1.0 + self.failed
        total = good + bad
        deviation = math.sqrt(good * bad / (total * total * (total + 1.0)))
        return max(0.0, good / total - _DEVIATIONS * deviation)

    @property
    def is_known(self) -> bool:
        """Whether the peer is no newcomer."""
        return self.lower_bound >= KNOWN_FROM
