"""Number of slots to decode together, tuned by measurement instead of configuration.

Decoding more slots at once is free until the machine is full, and every batch delays the next policy swap. So the size
doubles while tokens per second still grow with it, halves when a batch takes too long, and otherwise stays.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORTH_DOUBLING = 1.15
"""Least gain in tokens/s over half the size that justifies another doubling."""

_MAX_BATCH_S = 4.0
"""A batch that takes longer is halved: a swap to newer weights waits for it."""

_MAX_SLOTS = 8
"""64 completions at eight per slot. Larger batches gain little, and their groups are staler on arrival."""


@dataclass(slots=True)
class BatchSize:
    """The batch size now, and the measurement that led to it."""

    count: int = 1
    """Slots to decode together next."""
    fixed: bool = False
    """Whether the user set the size."""
    _rate_at_half: float = 0.0
    """Tokens/s measured at half the size."""

    @classmethod
    def chosen(cls, slots: int) -> BatchSize:
        """A fixed size, or a measured one when `slots` is 0."""
        return cls(slots, fixed=True) if slots else cls()

    def measured(self, count: int, *, tokens: int, seconds: float, in_demand: bool) -> None:
        """A batch of `count` slots gave `tokens` in `seconds`. The size does not grow while the learner has a
        backlog."""
        if self.fixed or count != self.count or seconds <= 0:
            return
        rate = tokens / seconds
        if seconds > _MAX_BATCH_S and self.count > 1:
            self.count //= 2
            self._rate_at_half = float("inf")  # twice the size was too slow: do not try again
            return
        room = self.count < _MAX_SLOTS and seconds * 2 <= _MAX_BATCH_S
        if in_demand and room and rate > _WORTH_DOUBLING * self._rate_at_half:
            self._rate_at_half = rate
            self.count *= 2
