"""Frequency tables of the entropy coder: how likely each symbol of a group is, in 4096ths, as a few bytes.

If words of a group change independently, the gaps between them are geometric, and the receiver knows the parameter: it
computes the table and reads one byte. Any other table is sent.

A sender states a level for each symbol, quarters of an octave apart, as the difference from the level before: four bits
where the counts are smooth, as those of intervals are. The receiver turns levels into frequencies that add up to 4096.
Rounding to levels costs less than a thousandth of the symbols' size, and a table half of what exact counts would take.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader
from p2prl.patches.intervals import interval_count

TABLE_BITS = 12
TABLE_TOTAL = 1 << TABLE_BITS
"""Sum of the frequencies of a table: small enough that a slot for each stays in a core's cache."""

MAX_SYMBOLS = 256

_TOP_LEVEL = 49
"""Level of the most frequent symbol: twelve octaves above level 1, as 4096 is above 1."""
_MAX_LEVEL = 52
_WEIGHTS = np.array([0, *((64, 76, 91, 108)[level & 3] << (level >> 2) for level in range(_MAX_LEVEL))], dtype=np.int64)
"""Weight of each level: 64 · 2^((level − 1) / 4), rounded; 0 for a symbol that does not occur."""

_NEAR = 7
_FAR = 15
"""A difference of −7 to 7 is the number 0 to 14; 15 is followed by the level itself in eight bits."""

_GEOMETRIC = 128
"""Added to the number of symbols in the first byte of a table that is computed."""

_EMPTY_BITS = 16.0
"""Estimated size of the first bytes of a table, in the choice between a table of its own and the one before."""
_SYMBOL_BITS = 4.5
"""Estimated size of one symbol of a table."""

_GAP_BITS = 22
"""A gap is below the 2^22 words of a segment."""

GAP_SYMBOLS = interval_count(_GAP_BITS)
"""Intervals of gaps."""

_ONE = 1 << 31
"""Scale of probabilities in the computed table: the product of two fits 64 bits."""

Frequencies = NDArray[np.int64]
"""One number for each symbol, adding up to 4096; 0 for those that do not occur."""

Gaps = tuple[int, int]
"""(words that change, words) of a group."""


def frequencies(levels: NDArray[np.int64]) -> Frequencies:
    """The frequencies of a table. Each symbol with a level has at least 1; what rounding leaves goes to the largest."""
    return _spread(_WEIGHTS[levels])


def geometric(gaps: Sequence[Gaps], symbols: Sequence[int]) -> list[Frequencies]:
    """For each group the frequencies of the first `symbols` intervals of gaps between words that change at random.

    In whole numbers, so that every machine finds the same: q = 1 − marks / words in 2^31sts, and products rounded down.
    The weight of an interval is q^first − q^next, `first` being its smallest number and `next` that of the one after.
    All groups are computed together: one by one they take a fifth of the time of a patch with few changes.
    """
    if not gaps:
        return []
    marks, words = np.array(gaps, dtype=np.int64).T
    q = (words - marks) * _ONE // words
    powers = [q]
    while len(powers) <= _GAP_BITS:  # the last interval ends at 2^22
        powers.append(powers[-1] * powers[-1] // _ONE)
    beyond = [np.full_like(q, _ONE), q, powers[1], powers[1] * q // _ONE]
    for octave in range(2, max(symbols) // 4 + 2):
        beyond.append(powers[octave])
        for _ in range(3):
            beyond.append(beyond[-1] * powers[octave - 2] // _ONE)
    weights = np.maximum(-np.diff(np.array(beyond), axis=0).T, 1)[:, : max(symbols)]
    used = np.arange(max(symbols)) < np.array(symbols)[:, None]
    return [table[:count] for table, count in zip(_spread(np.where(used, weights, 0)), symbols, strict=True)]


def _spread(weights: NDArray[np.int64]) -> Frequencies:
    """Frequencies in proportion to weights of at most 2^31, along the last axis."""
    used = weights > 0
    room = TABLE_TOTAL - used.sum(axis=-1, keepdims=True)
    total = np.maximum(1, weights.sum(axis=-1, keepdims=True))
    result: Frequencies = np.where(used, 1 + weights * room // total, 0)
    rest = TABLE_TOTAL - result.sum(axis=-1, keepdims=True)
    largest = np.argmax(result, axis=-1, keepdims=True)
    np.put_along_axis(result, largest, np.take_along_axis(result, largest, axis=-1) + rest, axis=-1)
    return result


def pack_table(counts: NDArray[np.int64]) -> tuple[bytes, Frequencies]:
    """(bytes, frequencies) for symbols that occur `counts` times; at least one does."""
    counts = counts[: int(np.flatnonzero(counts)[-1]) + 1]
    # A symbol gets 1 besides its weight's share, so what it lacks is one less. A count of 1 in a million keeps level 1.
    lacking = np.maximum(counts * (TABLE_TOTAL / int(counts.sum())) - 1, 0.25)
    octaves = np.log2(lacking / lacking.max())
    levels = np.clip(np.rint(_TOP_LEVEL + 4 * octaves), 1, _TOP_LEVEL).astype(np.int64) * (counts > 0)
    digits: list[int] = []
    before = _TOP_LEVEL
    for level in levels.tolist():
        near = level - before + _NEAR
        digits += [near] if 0 <= near < _FAR else [_FAR, level & 15, level >> 4]
        before = level
    digits.append(0)
    raw = bytes(low | high << 4 for low, high in zip(digits[::2], digits[1::2], strict=False))
    return bytes([len(levels)]) + raw, frequencies(levels)


def pack_gap_tables(counts: Sequence[NDArray[np.int64]], gaps: Sequence[Gaps]) -> list[tuple[bytes, Frequencies]]:
    """For each group what `pack_table` gives for the intervals of its gaps, or the geometric table if that is shorter.

    `counts` says for each group how often each interval occurs.
    """
    tables = geometric(gaps, [int(np.flatnonzero(own)[-1]) + 1 for own in counts])
    return [_shorter(own, computed) for own, computed in zip(counts, tables, strict=True)]


def _shorter(counts: NDArray[np.int64], computed: Frequencies) -> tuple[bytes, Frequencies]:
    some = np.flatnonzero(counts)
    coded = float((counts[some] * np.log2(TABLE_TOTAL / computed[some])).sum())
    if coded <= _bits(counts) + _EMPTY_BITS + _SYMBOL_BITS * len(some):
        return bytes([_GEOMETRIC + len(computed)]), computed
    return pack_table(counts)


def read_gap_table(reader: ByteReader) -> Frequencies | int:
    """Read a table of `pack_gap_tables`; of a geometric one the number of symbols (`computed_tables`)."""
    count = reader.take(1)[0]
    if count > _GEOMETRIC and count - _GEOMETRIC <= GAP_SYMBOLS:
        return count - _GEOMETRIC
    return _read_levels(reader, count, GAP_SYMBOLS)


def computed_tables(tables: Sequence[Frequencies | int], gaps: Sequence[Gaps]) -> list[Frequencies]:
    """The tables that were read for these groups, the geometric ones computed."""
    missing = [(group, table) for group, table in zip(gaps, tables, strict=True) if isinstance(table, int)]
    computed = iter(geometric([group for group, _ in missing], [symbols for _, symbols in missing]))
    return [next(computed) if isinstance(table, int) else table for table in tables]


def read_table(reader: ByteReader, most_symbols: int) -> Frequencies | None:
    """Read a table of at most `most_symbols` symbols; None for “the same as before”."""
    count = reader.take(1)[0]
    return _read_levels(reader, count, most_symbols) if count else None


def _read_levels(reader: ByteReader, count: int, most_symbols: int) -> Frequencies:
    if not 1 <= count <= most_symbols:
        raise RemoteProtocolError(f"patch: a table of {count} symbols, of at most {most_symbols}")
    levels: list[int] = []
    digits = _Digits(reader)
    before = _TOP_LEVEL
    for _ in range(count):
        near = digits.take()
        before = before + near - _NEAR if near < _FAR else digits.take() | digits.take() << 4
        if not 0 <= before <= _MAX_LEVEL:
            raise RemoteProtocolError(f"patch: a level of {before} in a table")
        levels.append(before)
    digits.finish()
    if not any(levels):
        raise RemoteProtocolError("patch: a table without symbols")
    return frequencies(np.array(levels, dtype=np.int64))


class _Digits:
    """Four bits at a time, the low ones of each byte first."""

    def __init__(self, reader: ByteReader) -> None:
        self._reader = reader
        self._high: int | None = None

    def take(self) -> int:
        if self._high is not None:
            digit, self._high = self._high, None
            return digit
        byte = self._reader.take(1)[0]
        self._high = byte >> 4
        return byte & 15

    def finish(self) -> None:
        if self._high:
            raise RemoteProtocolError("patch: padding bits are set in a table")


def shared_tables(counts: Sequence[NDArray[np.int64]]) -> list[int]:
    """For each group's counts the group whose table it uses: its own number, or that of an earlier one.

    A group joins the one before it when a table of its own would cost more than it saves.
    """
    heads: list[int] = []
    together = np.zeros(0, dtype=np.int64)
    for number, own in enumerate(counts):
        if heads:
            merged = together + own
            saved = _bits(merged) - _bits(together) - _bits(own)
            if saved < _EMPTY_BITS + _SYMBOL_BITS * np.count_nonzero(own):
                heads.append(heads[-1])
                together = merged
                continue
        heads.append(number)
        together = own
    return heads


def _bits(counts: NDArray[np.int64]) -> float:
    """Entropy of the symbols, in bits for all of them."""
    some = counts[counts > 0].astype(np.float64)
    return float((some * np.log2(some.sum() / some)).sum()) if len(some) else 0.0
