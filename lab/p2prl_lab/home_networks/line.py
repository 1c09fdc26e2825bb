"""One direction of an access line: rate, queue, delay and loss. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

QUEUE_S = 0.25
"""Longest time a packet waits for the line before it is dropped: a home router's buffer, somewhat bloated."""


@dataclass(slots=True)
class Line:
    """A line's state; `send` says when a packet arrives at its other end."""

    rate_bytes_s: float
    """0 means no limit."""
    delay_s: float = 0.0
    loss: float = 0.0
    """Share of packets lost."""
    _free_at: float = 0.0

    def send(self, size_bytes: int, now: float, rng: random.Random) -> float | None:
        """When a packet sent now arrives, or None when it is lost."""
        begins = max(now, self._free_at)
        if begins - now > QUEUE_S:
            return None
        if self.rate_bytes_s > 0:
            self._free_at = begins + size_bytes / self.rate_bytes_s
        else:
            self._free_at = begins
        if self.loss > 0 and rng.random() < self.loss:
            return None
        return self._free_at + self.delay_s
