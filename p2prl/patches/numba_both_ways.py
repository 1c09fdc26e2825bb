"""A patch applied to a segment by compiled code, which finds the way back in the same pass.

A worker keeps an inverse patch of each version. Its changes are those of the patch, seen from the new words: a word
keeps its rank within its class, but for the words before it that left the class or came into it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.patches.body_symbols import Ranks
from p2prl.patches.intervals import Values
from p2prl.patches.numba_blocks import (
    class_of_word,
    classes_at,
    compiled,
    copy_block,
    inlined,
    place_of_rank,
    stepped_word,
)
from p2prl.patches.vector_blocks import advance, lowest_bit, members, set_bits
from p2prl.patches.words import Words

Format = tuple[int, ...]
"""Mantissa bits, bits, exponents, and the window of the classes."""


def _step_block(
    old: Words,
    new: Words,
    start: int,
    form: Format,
    classes: NDArray[np.uint8],
    due: np.uint64,
    words: Ranks,
    at: Ranks,
    ends: Ranks,
    following: Ranks,
    ranks: Ranks,
    steps: Words,
    rank_at: Ranks,
    step_at: Ranks,
) -> tuple[np.uint64, np.uint64]:
    """Step the words of a block in the classes that are due. Returns masks of them, and of those whose exponent
    changes."""
    hits = crossing = np.uint64(0)
    while due:
        g = lowest_bit(due)
        due &= due - np.uint64(1)
        own = members(classes, g)
        until = words[g]
        rank = until - set_bits(own)
        mark, end, wanted = at[g], ends[g], following[g]
        while wanted < until:
            place = place_of_rank(own, wanted - rank)
            place = min(place, len(old) - 1 - start)  # no matter what a mapped file has become meanwhile
            was = np.int64(old[start + place])
            step_at[place] = steps[mark]
            rank_at[place] = wanted
            now = stepped_word(was, step_at[place], form[1])
            new[start + place] = now
            bit = np.uint64(1) << np.uint64(place)
            hits |= bit
            if (was ^ now) >> form[0]:
                crossing |= bit
            mark += 1
            wanted = ranks[mark] if mark < end else len(old)
        at[g] = mark
        following[g] = wanted
    return hits, crossing


def _cross(
    new: Words,
    start: int,
    form: Format,
    classes: NDArray[np.uint8],
    hits: np.uint64,
    crossing: np.uint64,
    words: Ranks,
    came: Ranks,
    rank_at: Ranks,
) -> None:
    """Bring words into their new classes, and the ranks of the block's changed words to what they are then, less
    `came`."""
    before = np.empty(len(came), dtype=np.int64)
    for g in range(len(came)):
        before[g] = words[g] + came[g] - set_bits(members(classes, g))
    while crossing:
        place = lowest_bit(crossing)
        crossing &= crossing - np.uint64(1)
        into = class_of_word(np.int64(new[start + place]), form[0], form[2], form[3], form[4])
        came[np.int64(classes[place])] -= 1
        came[into] += 1
        classes[place] = into
    while hits:
        place = lowest_bit(hits)
        bit = hits & (~hits + np.uint64(1))
        hits ^= bit
        its = np.int64(classes[place])
        rank_at[place] = before[its] + set_bits(members(classes, its) & (bit - np.uint64(1))) - came[its]


_step_one_block = inlined(_step_block)
_cross_classes = compiled(_cross)


def _apply(
    old: Words,
    form: Format,
    at: Ranks,
    ends: Ranks,
    ranks: Ranks,
    steps: Words,
    new: Words,
    words: Ranks,
    places: NDArray[np.uint32],
    into: NDArray[np.uint8],
    gaps: Values,
    back: Words,
) -> int:
    """Returns how many words changed. `at` to `ends` are the ranks of each class; `words` become the sizes of the
    classes afterwards. The last four get what changed, in the order of the words."""
    whole = (1 << form[1]) - 1
    classes = np.empty(64, dtype=np.uint8)
    following = np.full(len(at), len(old), dtype=np.int64)
    came = np.zeros(len(at), dtype=np.int64)
    after = np.zeros(len(at), dtype=np.int64)
    rank_at, step_at = np.zeros(64, dtype=np.int64), np.zeros(64, dtype=np.int64)
    found = 0
    for g in range(len(at)):
        if at[g] < ends[g]:
            following[g] = ranks[at[g]]
    for block in range((len(old) + 63) // 64):
        start = block * 64
        classes_at(old, start, form[0], form[2], form[3], form[4], classes)
        copy_block(old, new, start)
        due = advance(classes, ~np.uint64(0), words, following, 0)
        hits, crossing = _step_one_block(
            old, new, start, form, classes, due, words, at, ends, following, ranks, steps, rank_at, step_at
        )
        if crossing:
            _cross_classes(new, start, form, classes, hits, crossing, words, came, rank_at)
        while hits:
            place = lowest_bit(hits)
            hits &= hits - np.uint64(1)
            its = np.int64(classes[place])
            rank = rank_at[place] + came[its]
            places[found] = start + place
            into[found] = its
            gaps[found] = rank - after[its]
            back[found] = -step_at[place] & whole
            after[its] = rank + 1
            found += 1
    for g in range(len(at)):
        words[g] += came[g]
    return found


_apply_loop = compiled(_apply)


def apply_both_ways(
    old: Words, form: Format, changed: Ranks, ranks: Ranks, steps: Words, words: Ranks
) -> tuple[Words, NDArray[np.uint32], NDArray[np.uint8], Values, Words]:
    """(new words; of each that changed, in their order: place, and class, gap and step on the way back).

    `changed` says how many words of each class change, `ranks` and `steps` which and how; `words` are zeros and become
    the sizes of the classes afterwards.
    """
    new, count = np.empty_like(old), len(ranks)
    places, into = np.empty(count, dtype=np.uint32), np.empty(count, dtype=np.uint8)
    gaps, back = np.empty(count, dtype=np.uint32), np.empty(count, dtype=old.dtype)
    ends = np.cumsum(changed)
    found = _apply_loop(old, form, ends - changed, ends, ranks, steps, new, words, places, into, gaps, back)
    return new, places[:found], into[:found], gaps[:found], back[:found]
