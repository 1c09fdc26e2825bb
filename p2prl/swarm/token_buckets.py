"""Token buckets by key: a rate and a burst for each of many strangers, in bounded memory. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """Allowance of one bucket."""

    per_s: float
    """Tokens that come back each second."""
    burst: float
    """Tokens of a full bucket."""


class KeyedBuckets:
    """One bucket for each key; the key heard longest ago is forgotten past `capacity`.

    Those that left are remembered too: reconnecting must not buy a fresh allowance. A forgotten key has a full bucket
    again, so the sum over all keys needs a bucket of its own.
    """

    def __init__(self, rate: Rate, *, capacity: int) -> None:
        self._rate = rate
        self._capacity = capacity
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        """Key → (tokens, as of when), the most recently heard last."""

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, key: Hashable, now: float) -> float:
        """Tokens of a key at `now`. A clock that went back adds none."""
        tokens, since = self._levels.get(key, (self._rate.burst, now))
        return min(self._rate.burst, tokens + max(0.0, now - since) * self._rate.per_s)

    def take(self, key: Hashable, now: float, tokens: float = 1.0) -> bool:
        """Take tokens, if the bucket has them; False takes nothing."""
        level = self.level(key, now)
        granted = level >= tokens
        self._levels[key] = (level - tokens if granted else level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._capacity:
            self._levels.popitem(last=False)
        return granted
