"""The dead band: a word that moved no further than so many ulp from what was last published stays as it was.

Training weights wander about a word's edge and back, and every crossing is published. With a band a word follows only
once it has moved for good. What is published is the policy: it samples, it is replayed, it gives behaviour log-probs.
The training weights never see the band, and no published word is ever further from them, rounded, than the band.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.patches.words import Words, WordType, ordered

_BLOCK_WORDS = 1 << 15
"""Words compared at once: what is staged stays in a core's caches, twice as fast as a million at once."""


def widest_band_ulp(word_type: WordType) -> int:
    """The widest band that means anything: one binade, within which a weight may be twice what it was."""
    return 1 << word_type.mantissa_bits


def hold_back(fresh: Words, published: Words, word_type: WordType, *, band_ulp: int) -> int:
    """Put every word that moved at most `band_ulp` steps from `published` back to what it was, in place.

    Returns how many words of `fresh` differ from `published` afterwards. Steps are those of the codec
    (`words.steps_between`), one ulp each: −0 and +0 are one step apart. 0 leaves `fresh` as it is.
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
    """Steps between words, whichever way: never more than there are words, so that they fit one."""
    positions = np.dtype(f"<i{word_type.word_bytes}")
    one, other = (ordered(words, word_type).view(positions) for words in (old, new))
    distances: NDArray[np.unsignedinteger] = np.maximum(one, other).view(word_type.dtype) - np.minimum(one, other).view(
        word_type.dtype
    )
    return distances
