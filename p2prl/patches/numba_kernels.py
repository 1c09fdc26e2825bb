"""Kernels compiled by numba: one loop per pass, no sorting, no temporary larger than the result.

A loop counts the words of each class; the count is the rank that the numpy implementation computes by sorting. The
loops run without bounds checks and without the GIL. They still compare their cursors with the ends, because the words
may be a mapped file that changes between two passes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from p2prl.patches.exponent_classes import ClassTable
from p2prl.patches.kernels import Counts
from p2prl.patches.words import Words, WordType


def _histogram(old: Words, shift: int, counts: Counts) -> None:
    mask = len(counts) - 1
    for word in old:
        counts[(word >> shift) & mask] += 1


def _tally(old: Words, new: Words, shift: int, words: Counts, changed: Counts) -> None:
    mask = len(words) - 1
    for i in range(len(old)):
        exponent = (old[i] >> shift) & mask
        words[exponent] += 1
        changed[exponent] += old[i] != new[i]


def _find(
    old: Words,
    new: Words,
    shift: int,
    bits: int,
    classes: NDArray[np.uint8],
    inverted: NDArray[np.bool_],
    mark_at: Counts,
    mark_end: Counts,
    step_at: Counts,
    step_end: Counts,
    gaps: NDArray[np.uint32],
    steps: Words,
) -> None:
    mask = len(classes) - 1
    low = (1 << (bits - 1)) - 1
    seen = np.zeros(len(inverted), dtype=np.int64)
    after = np.zeros(len(inverted), dtype=np.int64)
    for i in range(len(old)):
        was = np.int64(old[i])
        now = np.int64(new[i])
        c = classes[(was >> shift) & mask]
        rank = seen[c]
        seen[c] = rank + 1
        if was != now and step_at[c] < step_end[c]:
            steps[step_at[c]] = (now ^ ((now >> (bits - 1)) * low)) - (was ^ ((was >> (bits - 1)) * low))
            step_at[c] += 1
        if (was != now) != inverted[c] and mark_at[c] < mark_end[c]:
            gaps[mark_at[c]] = rank - after[c]
            mark_at[c] += 1
            after[c] = rank + 1


def _apply(
    old: Words,
    shift: int,
    bits: int,
    classes: NDArray[np.uint8],
    inverted: NDArray[np.bool_],
    mark_at: Counts,
    mark_end: Counts,
    step_at: Counts,
    step_end: Counts,
    ranks: NDArray[np.int64],
    steps: Words,
    new: Words,
) -> None:
    mask = len(classes) - 1
    low = (1 << (bits - 1)) - 1
    whole = (1 << bits) - 1
    seen = np.zeros(len(inverted), dtype=np.int64)
    following = np.full(len(inverted), -1, dtype=np.int64)
    for c in range(len(inverted)):
        if mark_at[c] < mark_end[c]:
            following[c] = ranks[mark_at[c]]
    for i in range(len(old)):
        was = np.int64(old[i])
        c = classes[(was >> shift) & mask]
        rank = seen[c]
        seen[c] = rank + 1
        marked = rank == following[c]
        if marked:
            mark_at[c] += 1
            following[c] = ranks[mark_at[c]] if mark_at[c] < mark_end[c] else -1
        if marked != inverted[c] and step_at[c] < step_end[c]:
            line = ((was ^ ((was >> (bits - 1)) * low)) + np.int64(steps[step_at[c]])) & whole
            new[i] = line ^ ((line >> (bits - 1)) * low)
            step_at[c] += 1
        else:
            new[i] = was


def _compile(loop: Callable[..., None]) -> Callable[..., None]:
    """Compile without a cache on disk: numba would keep machine code in pickles there."""
    compiled: Callable[..., None] = njit(nogil=True)(loop)
    return compiled


_histogram_loop = _compile(_histogram)
_tally_loop = _compile(_tally)
_find_loop = _compile(_find)
_apply_loop = _compile(_apply)


class NumbaKernels:
    """See `kernels.Kernels`. The first call for each width of words compiles, which takes a second or two."""

    name = "numba"

    def histogram(self, old: Words, word_type: WordType) -> Counts:
        counts = np.zeros(word_type.exponents, dtype=np.int64)
        _histogram_loop(old, word_type.mantissa_bits, counts)
        return counts

    def tally(self, old: Words, new: Words, word_type: WordType) -> tuple[Counts, Counts]:
        words = np.zeros(word_type.exponents, dtype=np.int64)
        changed = np.zeros(word_type.exponents, dtype=np.int64)
        _tally_loop(old, new, word_type.mantissa_bits, words, changed)
        return words, changed

    def find(self, old: Words, new: Words, word_type: WordType, table: ClassTable) -> tuple[NDArray[np.uint32], Words]:
        marks, changes = _ends(table.marks), _ends(table.changed)
        gaps = np.empty(int(marks[-1]), dtype=np.uint32)
        steps = np.empty(int(changes[-1]), dtype=word_type.dtype)
        _find_loop(old, new, *_layout(word_type, table), *_bounds(marks), *_bounds(changes), gaps, steps)
        return gaps, steps

    def apply(
        self, old: Words, word_type: WordType, table: ClassTable, ranks: NDArray[np.int64], steps: Words
    ) -> Words:
        marks, changes = _ends(table.marks), _ends(table.changed)
        new = np.empty_like(old)
        _apply_loop(old, *_layout(word_type, table), *_bounds(marks), *_bounds(changes), ranks, steps, new)
        return new


def _layout(word_type: WordType, table: ClassTable) -> tuple[int, int, NDArray[np.uint8], NDArray[np.bool_]]:
    return word_type.mantissa_bits, word_type.bits, table.class_of_exponent, np.array(table.inverted)


def _bounds(ends: Counts) -> tuple[Counts, Counts]:
    """(cursors, ends) of the classes. Copies, because a loop moves the cursors."""
    return ends[:-1].copy(), ends[1:].copy()


def _ends(counts: tuple[int, ...]) -> Counts:
    """0 and the running sums of `counts`: the limits of the classes."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
