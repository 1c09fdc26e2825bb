"""Pace of the replays: groups that the replay thread checks in a second of its work. Pure."""

from __future__ import annotations

import math
from collections import deque

_REPLAYS = 64
"""Newest batches that are measured."""


class ReplayPace:
    """Measures batches of replays."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float]] = deque(maxlen=_REPLAYS)

    def replayed(self, groups: int, seconds: float) -> None:
        """Record that the check of this many groups took this long."""
        self._batches.append((groups, seconds))

    @property
    def figures(self) -> dict[str, float]:
        """Groups a second of the newest batches, as a key of the metrics log; empty before one took any time."""
        seconds = math.fsum(seconds for _, seconds in self._batches)
        return {"replay/groups_per_s": sum(groups for groups, _ in self._batches) / seconds} if seconds > 0.0 else {}
