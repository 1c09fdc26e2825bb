"""Number of slots whose completions are decoded at a time, found by measurement instead of configuration.

Decoding more completions at once is nearly free until the machine is full, and every group in flight delays the next
policy swap. So the number doubles while tokens per second still grow with it. Memory bounds it too: with less room than
the next number needs, there is nothing to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

_WORTH_DOUBLING = 1.15
"""Least gain in tokens/s over half the number that justifies keeping it, and another doubling."""

_MEASURED_S = 1.0
_MEASURED_STEPS = 32
"""A measurement takes at least this much decoding: some completions end and others join meanwhile."""

_MOST_SLOTS = 32
"""256 completions at eight per slot. More gain little, and their groups are staler on arrival."""

_LOT_SHARE = 0.25
"""Slots are submitted in lots of this share: prompts of several groups are computed in one pass, and seven rows of
eight are at work on average."""


@dataclass(slots=True)
class SlotsInFlight:
    """The number now, and the measurement that led to it."""

    count: int = 1
    """Slots whose completions are to be in flight."""
    fixed: bool = False
    """Whether the user set the number, or the search has ended."""
    _rate_at_half: float = 0.0
    """Tokens/s measured at half the number."""
    _tokens: int = 0
    _seconds: float = 0.0
    _steps: int = 0

    @classmethod
    def chosen(cls, slots: int) -> SlotsInFlight:
        """A fixed number, or a measured one when `slots` is 0."""
        return cls(slots, fixed=True) if slots else cls()

    @property
    def lot(self) -> int:
        """Slots to submit at once."""
        return max(1, int(_LOT_SHARE * self.count))

    def measured(self, busy: float, *, tokens: int, steps: int, seconds: float, in_demand: bool) -> None:
        """`steps` that began with `busy` slots' completions in flight gave `tokens`.

        Only what was decoded at the full number counts, and nothing while the learner has a backlog.
        """
        if self.fixed:
            return
        if not in_demand or busy <= self.count - self.lot:
            self._restart()
            return
        self._tokens += tokens
        self._steps += steps
        self._seconds += seconds
        if self._seconds < _MEASURED_S or self._steps < _MEASURED_STEPS:
            return
        rate = self._tokens / self._seconds
        self._restart()
        if rate <= _WORTH_DOUBLING * self._rate_at_half:
            self.count, self.fixed = self.count // 2, True
        elif self.count == _MOST_SLOTS:
            self.fixed = True
        else:
            self._rate_at_half = rate
            self.count *= 2

    def _restart(self) -> None:
        self._tokens, self._seconds, self._steps = 0, 0.0, 0
