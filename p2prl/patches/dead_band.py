"""Dead band: a word that moved at most a few ulp since it was last published is published unchanged.

Training weights drift across a rounding boundary and back, and each crossing would be published. With a band, a word
changes only after a larger move, so patches are smaller. The published weights are the policy: they sample, are
replayed and give the behavior log-probs. The training weights are not affected, and no published word is ever further
from the rounded training weight than the band.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.patches.words import Words, WordType, ordered

_BLOCK_WORDS = 1 << 15
"""Words compared at once: they fit a core's cache, which is twice as fast as a million at once."""


def widest_band_ulp(word_type: WordType) -> int:
    """The widest useful band: one binade, within which a weight may double."""
    return 1 << word_type.mantissa_bits


def hold_back(fresh: Words, published: Words, word_type: WordType, *, band_ulp: int) -> int:
    """Reset, in place, every word of `fresh` that lies at most `band_ulp` steps from `published`.

    Returns how many words of `fresh` differ from `published` afterwards. Steps are those of `words.steps_between`, one
    ulp each: −0 and +0 are one step apart. A band of 0 leaves `fresh` as it is.
    """
    changed = 0
    for start in range(0, len(fresh), _BLOCK_WORDS):
        new = fresh[start : start + _BLOCK_WORDS]
        old = np.asarray(published[start : start + _BLOCK_WORDS])
        moved = _distances(old, new, word_type) > band_ulp if band_ulp else old != new
        if band_ulp:
            new[:] = np.where(moved, new, old)
        changed += int(np.count_nonzero(moved))
    return changed


def _distances(old: Words, new: Words, word_type: WordType) -> NDArray[np.unsignedinteger]:
    """Steps between words in either direction. There are fewer steps than words, so a distance fits a word."""
    positions = np.dtype(f"<i{word_type.word_bytes}")
    one, other = (ordered(words, word_type).view(positions) for words in (old, new))
    distances: NDArray[np.unsignedinteger] = np.maximum(one, other).view(word_type.dtype) - np.minimum(one, other).view(
        word_type.dtype
    )
    return distances
