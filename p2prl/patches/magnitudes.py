"""Coding of signed ulp steps: one direction bit each, and bytes of |step| − 1 for the classes that need them.

Most changes are a single step, up or down with equal probability. Directions as bytes through zstd cost .65 bit more
than plain bits, because zstd finds matches in a text of two letters. A class of single steps sends no magnitudes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import Bytes
from p2prl.patches.words import Words, WordType

ESCAPE = 255
"""Magnitude that refers to the escapes, which hold complete steps: jumps to or from NaN, zero or another scale."""


def directions(steps: Words, word_type: WordType) -> NDArray[np.bool_]:
    """True for steps downwards."""
    down: NDArray[np.bool_] = (steps >> (word_type.bits - 1)).astype(bool)
    return down


def magnitude_bytes(steps: Words, word_type: WordType) -> Bytes:
    """|step| − 1 as bytes, at most `ESCAPE`. No step is zero."""
    down = (steps >> (word_type.bits - 1)).astype(steps.dtype)
    # Two's complement by hand: where down is 1, negate modulo 2^bits.
    size = (steps ^ (steps.dtype.type(0) - down)) + down
    clipped: Bytes = np.minimum(size - steps.dtype.type(1), ESCAPE).astype(np.uint8)
    return clipped


def steps_of(down: NDArray[np.bool_], magnitudes: Bytes, escapes: Words, word_type: WordType) -> Words:
    """Rebuild the steps. Raise `RemoteProtocolError` for an escape that would fit a byte."""
    dtype = word_type.dtype
    size = magnitudes.astype(dtype) + dtype.type(1)
    sign = down.astype(dtype)
    steps: Words = (size ^ (dtype.type(0) - sign)) + sign
    escaped = magnitudes == ESCAPE
    if np.any(magnitude_bytes(escapes, word_type) != ESCAPE):
        raise RemoteProtocolError("patch: an escape for a step that fits a byte")
    steps[escaped] = escapes
    return steps
