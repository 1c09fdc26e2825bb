"""Groups of words: by exponent and, with a history, by whether a word has changed before.

An optimizer's step has about the same size for every weight, and a bf16 word changes when the step crosses a rounding
boundary, so the probability doubles with every binade downwards. Sender and receiver both hold the old words. Grouped
by exponent, the words have sixteen densities of change that need no side information.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from p2prl.patches.words import Words, WordType, exponents_of

CLASSES = 16
"""Number of exponent classes. Almost no word lies below the fifteenth binade from the top, and those change nearly
always."""

OUTLIER_SHARE = 1024
"""At most one word in this many may lie above the top binade. Otherwise a NaN or a few large norm weights would
shift the window up and put all ordinary weights into the lowest class."""

_SAMPLE_STRIDE = 61
"""Every 61st word decides the top binade: 1/61 of the work of counting all, and prime, so that no column of a matrix
is counted alone."""


@dataclass(frozen=True)
class Groups:
    """The groups of one segment: their sizes, and how many of their words change.

    Group `c` holds the words of class `c` that never changed, group `16 + c` those that did. Without a history there
    are only the first sixteen.
    """

    top: int
    """Exponent of the highest class."""
    words: tuple[int, ...]
    """Words of the segment in each group."""
    changed: tuple[int, ...]
    """Words that change in each group."""


def choose_top(words: Words, word_type: WordType) -> int:
    """The highest exponent that more than one word in `OUTLIER_SHARE` of a sample reaches."""
    sample = exponents_of(words[::_SAMPLE_STRIDE], word_type)
    reached = np.cumsum(np.bincount(sample, minlength=word_type.exponents)[::-1])[::-1]
    common = np.flatnonzero(reached * OUTLIER_SHARE > reached[0])
    return int(common[-1]) if len(common) else 0


def class_window(top: int) -> tuple[int, int]:
    """(s, a): the class of exponent `e` is `min(max(e − s, 0), 15 − a) + a`, which is `clamp(e − top + 15, 0..15)`."""
    return max(top - (CLASSES - 1), 0), max(CLASSES - 1 - top, 0)
