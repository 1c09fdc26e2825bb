"""Settings of the rows to draw from, and the result of a draw, as numpy arrays.

Shapes: N rows, each one draw; V the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2prl.models.seeded_draw.gumbel_noise import Hashes, Indices

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Temperature and seeded state of each row."""

    temperatures: Floats
    """(N,), above 0."""

    states: Hashes
    """(N,): see `gumbel_noise.row_states`."""

    def __getitem__(self, part: slice) -> RowSettings:
        return RowSettings(self.temperatures[part], self.states[part])


@dataclass(frozen=True, slots=True)
class Scan:
    """The draw of each row."""

    tokens: Indices
    """(N,): the token of the largest noisy logit, the lowest of several; the first that is not a number, if any is."""

    best: Floats
    """(N,): its noisy logit."""

    log_sums: Floats
    """(N,): log of the sum of exp(logits / temperature). Undefined where a scan was asked for no sums."""

    def __getitem__(self, part: slice) -> Scan:
        return Scan(self.tokens[part], self.best[part], self.log_sums[part])

    @classmethod
    def empty(cls, count: int) -> Scan:
        """Arrays to be filled."""
        return cls(np.empty(count, np.int64), np.empty(count, np.float32), np.empty(count, np.float32))
