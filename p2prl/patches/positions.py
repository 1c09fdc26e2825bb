"""Coding of positions in one class as gaps: plain low bits, and the rest as bytes that zstd turns into Huffman codes.

If changes are independent, gaps are geometric. The low bits of a geometric number are close to uniform, so coding them
gains nothing; the high part has a short skewed alphabet, which suits one Huffman table. (Golomb 1966, Rice 1979, with
Huffman codes in place of the unary part: a unary code assumes the parameter, a table measures it.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import Bytes

MEAN_HIGH = 8
"""Bound on the mean of the high part: small enough that 255 is rare and the table is short, large enough that plain
low bits cost less than one per cent."""

_RUN = 255
"""A byte of this value adds 255 and continues with the next byte."""


def low_bits_for(marks: int, others: int) -> int:
    """Number of low bits for a class with `marks` positions among `marks + others` words."""
    mean = others // max(1, marks)
    return max(0, (mean // MEAN_HIGH).bit_length())


def most_low_bits(marks: int, words: int) -> int:
    """Largest number of low bits that a sender may choose. With more, gaps would on average not fit the class.

    It bounds the flags a receiver unpacks to one for every two words, regardless of the sender.
    """
    return (words // marks).bit_length() - 1


def most_bytes(marks: int, words: int, low_bits: int) -> int:
    """Length of the longest byte string that `marks` gaps among `words` words can make."""
    return marks + (words >> low_bits) // _RUN


def high_bytes(gaps: NDArray[np.uint32], low_bits: int) -> Bytes:
    """Encode the high parts as bytes, with a run of 255s before those that need it."""
    high = gaps >> np.uint32(low_bits)
    if not len(high) or int(high.max()) < _RUN:
        return high.astype(np.uint8)
    runs, rest = np.divmod(high, np.uint32(_RUN))
    ends = np.cumsum(runs.astype(np.int64) + 1) - 1
    out = np.full(int(ends[-1]) + 1, _RUN, dtype=np.uint8)
    out[ends] = rest
    return out


def low_bits(gaps: NDArray[np.uint32], count: int) -> NDArray[np.uint8]:
    """Bit 0 of every gap, then bit 1 of every gap, up to bit `count − 1`: planes of equal length, one flag per byte."""
    planes = [((gaps >> np.uint32(bit)) & np.uint32(1)).astype(np.uint8) for bit in range(count)]
    return np.concatenate(planes) if planes else np.zeros(0, dtype=np.uint8)


def positions(high: Bytes, low: Bytes, *, marks: int, words: int, count: int) -> NDArray[np.int64]:
    """Decode ranks in the class, strictly ascending and below `words`, from the output of `high_bytes` and `low_bits`.

    `low` holds `marks · count` flags. Raises `RemoteProtocolError` unless the bytes hold `marks` such ranks.
    """
    ends = np.flatnonzero(high != _RUN) if np.any(high == _RUN) else np.arange(len(high))
    if len(ends) != marks or (marks and int(ends[-1]) != len(high) - 1):
        raise RemoteProtocolError(f"patch: {len(ends)} positions in a class that has {marks}")
    gaps = np.zeros(marks, dtype=np.int64)
    for bit, plane in enumerate(low.reshape(count, marks) if marks else ()):
        gaps |= plane.astype(np.int64) << bit
    ranks = (np.cumsum(high, dtype=np.int64)[ends] << count) + np.cumsum(gaps) + np.arange(marks)
    if marks and int(ranks[-1]) >= words:
        raise RemoteProtocolError(f"patch: position {int(ranks[-1])} in a class of {words} words")
    return ranks
