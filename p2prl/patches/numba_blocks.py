"""Loops over one block of 64 words, compiled by numba for the loops over a segment; the last block may be shorter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from p2prl.patches.vector_blocks import classify, copy, different, set_bits
from p2prl.patches.words import Words


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """The loop in machine code, without the GIL and without bounds checks.

    numba would keep the code in pickles on a disk, so each process compiles its own.
    """
    made: Callable[..., Any] = njit(nogil=True)(loop)
    return made


def inlined(block: Callable[..., Any]) -> Callable[..., Any]:
    """A part of such loops: a call that passes arrays takes as long as a block."""
    made: Callable[..., Any] = njit(nogil=True, inline="always")(block)
    return made


def _class(word: int, shift: int, exponents: int, below: int, above: int) -> int:
    field = (word >> shift) & (exponents - 1)
    height = field - below if field > below else 0
    return (height if height < 15 - above else 15 - above) + above


class_of_word = inlined(_class)


def _classes_at(
    old: Words, start: int, shift: int, exponents: int, below: int, above: int, classes: NDArray[np.uint8]
) -> None:
    """Classes of the block's words; 255 beyond the last word."""
    if start + 64 <= len(old):
        classify(old, start, shift, exponents - 1, below, above, classes)
        return
    classes[:] = 255
    for i in range(len(old) - start):
        classes[i] = class_of_word(np.int64(old[start + i]), shift, exponents, below, above)


def _changed_at(old: Words, new: Words, start: int) -> np.uint64:
    if start + 64 <= len(old):
        return different(old, new, start)  # type: ignore[no-any-return]
    mask = np.uint64(0)
    for i in range(len(old) - start):
        if old[start + i] != new[start + i]:
            mask |= np.uint64(1) << np.uint64(i)
    return mask


def _place(mask: np.uint64, rank: int) -> int:
    """Place of the set bit that `rank` others are below, without a branch that depends on the mask."""
    place = np.uint64(0)
    for half in (32, 16, 8, 4, 2, 1):
        count = set_bits(mask & np.uint64((1 << half) - 1))
        beyond = rank >= count
        rank -= count if beyond else 0
        shift = np.uint64(half) if beyond else np.uint64(0)
        mask >>= shift
        place += shift
    return np.int64(place)  # type: ignore[return-value]


def _copy(old: Words, new: Words, start: int) -> None:
    if start + 64 <= len(old):
        copy(old, new, start)
    else:
        for i in range(len(old) - start):
            new[start + i] = old[start + i]


def _stepped(word: int, step: int, bits: int) -> int:
    """See `words.stepped`."""
    low = (1 << (bits - 1)) - 1
    line = ((word ^ ((word >> (bits - 1)) * low)) + step) & ((1 << bits) - 1)
    return line ^ ((line >> (bits - 1)) * low)


classes_at = inlined(_classes_at)
changed_at = inlined(_changed_at)
copy_block = inlined(_copy)
place_of_rank = inlined(_place)
stepped_word = inlined(_stepped)
