"""Groups of words: by exponent and, with a history, by whether a word has changed before.

An optimizer's step has about the same size for every weight, and a bf16 word changes when the step crosses a rounding
boundary, so the probability doubles with every binade downwards. Sender and receiver both hold the old words. Grouped
by exponent, the words have sixteen densities of change that need no side information.

A weight that moved across a rounding boundary tends to move on in the same direction, and a word that moved is more
likely to move than one of the same exponent that never did. All who applied the same versions have the same history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import LocalProtocolError
from p2prl.patches.words import Words, WordType, exponents_of, steps_between

BLOCK_WORDS = 64
"""Words whose flags are one unsigned integer."""

Flags = NDArray[np.uint64]
"""One bit a word, 64 a number, the first in the lowest bit; bits beyond the last word are 0."""


@dataclass(frozen=True)
class History:
    """Two bits a word. `down` is within `moved`."""

    moved: Flags
    """Words that have changed."""
    down: Flags
    """Words whose last step was downwards on the number line."""

    @classmethod
    def none(cls, words: int) -> History:
        """The history of `words` words that never changed."""
        blocks = -(-words // BLOCK_WORDS)
        return cls(np.zeros(blocks, dtype=np.uint64), np.zeros(blocks, dtype=np.uint64))

    def after(self, old: Words, new: Words, word_type: WordType) -> History:
        """The history once `old` has become `new`, of equal lengths."""
        self.check(old)
        self.check(new)
        changed = packed_flags(old != new)
        down = packed_flags((steps_between(old, new, word_type) >> (word_type.bits - 1)).astype(bool))
        return History(self.moved | changed, (self.down & ~changed) | down)

    def check(self, words: Words) -> None:
        """Raise `LocalProtocolError` unless this can be the history of these words: kernels do not check bounds."""
        if not len(self.moved) == len(self.down) == -(-len(words) // BLOCK_WORDS):
            raise LocalProtocolError("a history belongs to words of its own length")


def packed_flags(flags: NDArray[np.bool_]) -> Flags:
    """Pack one flag a word."""
    out = np.zeros(-(-len(flags) // BLOCK_WORDS) * 8, dtype=np.uint8)
    packed = np.packbits(flags, bitorder="little")
    out[: len(packed)] = packed
    return out.view("<u8").astype(np.uint64, copy=False)


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
