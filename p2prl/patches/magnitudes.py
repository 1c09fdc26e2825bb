"""Signed ulp steps: one plain bit of direction each, and bytes of |step| − 1 for the classes that need them.

Most changes are a single step, up or down with equal chance. Directions in a byte stream through zstd cost .65 bit
more than they are worth, because it finds matches in a two-letter text; a class of single steps sends no bytes at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import Bytes
from p2prl.patches.words import Words, WordType

ESCAPE = 255
"""A byte of 255 says that the whole step stands among the escapes: a jump to or from NaN, zero or another scale."""


def directions(steps: Words, word_type: WordType) -> NDArray[np.bool_]:
    """True for steps downwards."""
    down: NDArray[np.bool_] = (steps >> (word_type.bits - 1)).astype(bool)
    return down


def magnitude_bytes(steps: Words, word_type: WordType) -> Bytes:
    """|step| − 1, at most `ESCAPE`. No step is zero."""
    down = (steps >> (word_type.bits - 1)).astype(steps.dtype)
    # Two's complement by hand: where down is 1, negate modulo 2^bits.
    size = (steps ^ (steps.dtype.type(0) - down)) + down
    clipped: Bytes = np.minimum(size - steps.dtype.type(1), ESCAPE).astype(np.uint8)
    return clipped


def steps_of(down: NDArray[np.bool_], magnitudes: Bytes, escapes: Words, word_type: WordType) -> Words:
    """The steps again. Raises `RemoteProtocolError` when an escape is a step that has no need of one."""
    dtype = word_type.dtype
    size = magnitudes.astype(dtype) + dtype.type(1)
    sign = down.astype(dtype)
    steps: Words = (size ^ (dtype.type(0) - sign)) + sign
    escaped = magnitudes == ESCAPE
    if np.any(magnitude_bytes(escapes, word_type) != ESCAPE):
        raise RemoteProtocolError("patch: an escape for a step that fits a byte")
    steps[escaped] = escapes
    return steps
