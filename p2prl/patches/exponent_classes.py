"""Exponent classes: the words of a segment grouped by how likely they are to change.

An optimizer's step has about the same size for every weight, and a bf16 word changes when the step crosses a rounding
boundary, so the probability doubles with every binade downwards. Sender and receiver both hold the old words. Grouped
by exponent, the words have sixteen densities of change that need no side information.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CLASSES = 16
"""Number of classes. Almost no word lies below the fifteenth binade from the top, and those change nearly always."""

OUTLIER_SHARE = 1024
"""At most one word in this many may lie above the top binade. Otherwise a NaN or a few large norm weights would
shift the window up and put all ordinary weights into the lowest class."""


@dataclass(frozen=True, kw_only=True)
class ClassTable:
    """Classes of one segment: their sizes, and how many of their words change."""

    class_of_exponent: NDArray[np.uint8]
    """Class of each exponent value."""
    words: tuple[int, ...]
    """Words of the segment in each class."""
    changed: tuple[int, ...]
    """Words that change in each class."""

    @property
    def inverted(self) -> tuple[bool, ...]:
        """Classes of which more than half changes: for these the positions of the unchanged words are sent."""
        return tuple(2 * n > total for n, total in zip(self.changed, self.words, strict=True))

    @property
    def marks(self) -> tuple[int, ...]:
        """Number of positions sent for each class."""
        return tuple(min(n, total - n) for n, total in zip(self.changed, self.words, strict=True))


def by_exponent(top: int, exponents: int) -> NDArray[np.uint8]:
    """Class of each exponent in EC1: clamp(exponent − (top − 15), 0..15)."""
    return np.clip(np.arange(exponents) - (top - (CLASSES - 1)), 0, CLASSES - 1).astype(np.uint8)


def in_one(exponents: int) -> NDArray[np.uint8]:
    """Class of each exponent in the flat codec: always 0."""
    return np.zeros(exponents, dtype=np.uint8)


def choose_top(words_by_exponent: NDArray[np.int64]) -> int:
    """The highest exponent that more than one word in `OUTLIER_SHARE` reaches."""
    reached = np.cumsum(words_by_exponent[::-1])[::-1]
    common = np.flatnonzero(reached * OUTLIER_SHARE > reached[0])
    return int(common[-1]) if len(common) else 0


def summed(counts_by_exponent: NDArray[np.int64], class_of_exponent: NDArray[np.uint8]) -> tuple[int, ...]:
    """Sum counts by exponent into counts by class."""
    classes = int(class_of_exponent[-1]) + 1
    counts = np.zeros(classes, dtype=np.int64)
    np.add.at(counts, class_of_exponent, counts_by_exponent)
    return tuple(counts.tolist())
