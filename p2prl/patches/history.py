"""History of a segment's words: which have changed before, and in which direction each changed last.

A weight that moved across a rounding boundary tends to move on in the same direction, and a word that moved is more
likely to move than one of the same exponent that never did. All who applied the same versions have the same history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import LocalProtocolError
from p2prl.patches.words import Words, WordType, steps_between

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
