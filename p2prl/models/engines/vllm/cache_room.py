"""Number of further completions whose keys and values still fit a cache, from the lengths of those that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import fmean

_ENDED_KEPT = 256
_ENDED_NEEDED = 16
"""Before that number has ended, every completion is expected to reach its limit: the first to end are the shortest."""

_RESERVE = 1.25
"""Expected sizes times this are reserved: a full cache makes vLLM drop a completion's keys and compute them again."""


class CacheRoom:
    """Counts in tokens, prompts included."""

    def __init__(self, *, tokens: int, sequences: int, limit: int) -> None:
        """A cache of `tokens` that at most `sequences` completions share; the first are expected to have `limit`."""
        self._tokens = tokens
        self._sequences = sequences
        self._shares: deque[float] = deque(maxlen=_ENDED_KEPT)
        self._limit = limit

    def ended(self, size: int, limit: int) -> None:
        """A completion ended at `size` tokens that could have had `limit`."""
        self._shares.append(size / limit)

    def more(self, limits: Collection[int]) -> int:
        """Completions that still fit besides those in flight, whose `limits` these are; 0 or less when it is full.

        The next are taken to be of the size of the largest in flight, or of the last ones.
        """
        self._limit = max(limits, default=self._limit)
        share = 1.0
        if len(self._shares) >= _ENDED_NEEDED:
            share = min(1.0, _RESERVE * fmean(self._shares))
        free = self._tokens - share * sum(limits)
        return min(self._sequences - len(limits), int(free // (share * self._limit)))
