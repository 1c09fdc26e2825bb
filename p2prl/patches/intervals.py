"""Intervals: a whole number as a symbol of a small alphabet and a few plain bits.

Each number below 4 is an interval of its own. From there each octave has four, and the place within one is sent as
plain bits, which are close to uniform: for gaps at any density this costs less than a thousandth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Symbols = NDArray[np.uint8]
Values = NDArray[np.uint32]

_EXACT = 4
"""Numbers below this have an interval of their own."""

_MAX_BITS = 31
"""Numbers are below 2^31: a gap is below 2^22, a step's size less 1 below 2^31."""


def _ranges() -> tuple[Values, Symbols]:
    octaves = [(1 << n, n) for n in range(2, _MAX_BITS)]
    first = [0, 1, 2, 3, *(low + (quarter << (n - 2)) for low, n in octaves for quarter in range(4))]
    width = [0] * _EXACT + [n - 2 for _, n in octaves for _ in range(4)]
    return np.array(first, dtype=np.uint32), np.array(width, dtype=np.uint8)


FIRST, WIDTH = _ranges()
"""The smallest number of each interval, and how many plain bits follow it."""


def interval_count(bits: int) -> int:
    """Number of intervals of numbers below 2^bits, at least 2 bits."""
    return 4 * (bits - 1)


def intervals_of(values: Values) -> Symbols:
    """The interval of each number."""
    # The exponent of a float64 is the place of the highest bit; its next two bits are the quarter of the octave.
    raw = values.astype(np.float64).view(np.uint64) >> np.uint64(50)
    coarse = (raw - np.uint64(1024 << 2)).astype(np.uint8)
    return np.where(values < _EXACT, values, coarse).astype(np.uint8)


def plain_bits(values: Values, widths: Symbols) -> Values:
    """The low `widths` bits of each number."""
    low: Values = values & ((np.uint32(1) << widths.astype(np.uint32)) - np.uint32(1))
    return low
