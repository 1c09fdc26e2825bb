"""Learning curves of a few characters: one row of blocks, or a plot of several rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*%#"
"""For terminals that cannot show blocks, from empty to full as `_BLOCKS`."""

_FULL = len(_BLOCKS) - 1


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The values in one row of at most `width` characters, the lowest as the lowest block."""
    return "".join(plot(values, width, 1, ascii_only=ascii_only))


def plot(values: Sequence[float], width: int, rows: int, *, ascii_only: bool = False) -> list[str]:
    """The values as `rows` lines of at most `width` characters, from the top; more values are averaged in neighbors.

    The lowest value is one step high, so that it differs from nothing; values that are all equal are half high.
    """
    columns = _averaged(values, width)
    if not columns or rows < 1:
        return [""] * rows
    low, high = min(columns), max(columns)
    steps = rows * _FULL
    heights = [
        steps // 2 if high <= low else 1 + round((value - low) / (high - low) * (steps - 1)) for value in columns
    ]
    blocks = _ASCII if ascii_only else _BLOCKS
    return [
        "".join(blocks[max(0, min(_FULL, height - row * _FULL))] for height in heights) for row in reversed(range(rows))
    ]


def _averaged(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbors, each of nearly as many values."""
    count = min(len(values), max(0, width))
    edges = [round(place * len(values) / count) for place in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
