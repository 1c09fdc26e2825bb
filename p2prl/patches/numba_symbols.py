"""`body_symbols` compiled by numba: one loop each, no temporary array.

A loop reads and writes one entry a symbol of the runs, whose lengths the caller has taken from the arrays or allocated
them for. Intervals index `FIRST` and `WIDTH` without a check: the tables of the entropy coder have no symbol beyond
them.
"""

from __future__ import annotations

import numpy as np

from p2prl.patches.body_symbols import BodyOrder, Ranks, rank_beyond
from p2prl.patches.intervals import FIRST, WIDTH, Symbols, Values
from p2prl.patches.numba_blocks import compiled, inlined
from p2prl.patches.words import Words, WordType


def _interval(number: np.uint32) -> int:
    """The interval of a number: its octave, and the quarter of that."""
    if number < 4:
        return np.int64(number)  # type: ignore[return-value]
    octave = 2
    while number >> np.uint32(octave + 1):
        octave += 1
    return np.int64(4 * (octave - 1) + ((number >> np.uint32(octave - 2)) & np.uint32(3)))  # type: ignore[return-value]


_interval_of = inlined(_interval)


def _split(
    lengths: Ranks,
    gaps: Values,
    steps: Words,
    bits: int,
    width: Symbols,
    symbols: Symbols,
    widths: Symbols,
    values: Values,
) -> None:
    whole, middle = (1 << bits) - 1, 1 << (bits - 1)
    start = at = 0
    for run in range(0, len(lengths), 2):
        count = lengths[run]
        for i in range(count):
            gap = gaps[start + i]
            interval = _interval_of(gap)
            symbols[at + i] = interval
            widths[at + i] = width[interval]
            values[at + i] = gap & ((np.uint32(1) << np.uint32(width[interval])) - np.uint32(1))
        at += count
        for i in range(count):
            step = np.int64(steps[start + i])
            down = 1 if step >= middle else 0
            size = np.uint32(((whole + 1 - step) if down else step) - 1)
            interval = _interval_of(size)
            symbols[at + i] = interval << 1 | down
            widths[at + i] = width[interval]
            values[at + i] = size & ((np.uint32(1) << np.uint32(width[interval])) - np.uint32(1))
        at += count
        start += count


def _widths(lengths: Ranks, symbols: Symbols, width: Symbols, widths: Symbols) -> None:
    at = 0
    for run in range(len(lengths)):
        shift = run & 1
        for i in range(at, at + lengths[run]):
            widths[i] = width[symbols[i] >> shift]
        at += lengths[run]


def _join(
    lengths: Ranks,
    words: Ranks,
    symbols: Symbols,
    values: Values,
    whole: int,
    first: Values,
    ranks: Ranks,
    steps: Words,
) -> int:
    """Returns the run of gaps that goes beyond its group's words, or -1. Its last rank is written then."""
    start = at = 0
    for run in range(0, len(lengths), 2):
        count = lengths[run]
        rank = np.int64(-1)
        for i in range(count):
            rank += np.int64(first[symbols[at + i]]) + np.int64(values[at + i]) + 1
            ranks[start + i] = rank
        if rank >= words[run]:
            return run
        at += count
        for i in range(count):
            symbol = symbols[at + i]
            size = np.int64(first[symbol >> 1]) + np.int64(values[at + i]) + 1
            steps[start + i] = (-size if symbol & 1 else size) & whole
        at += count
        start += count
    return -1


_split_loop = compiled(_split)
_widths_loop = compiled(_widths)
_join_loop = compiled(_join)


def symbols_of(order: BodyOrder, gaps: Values, steps: Words, word_type: WordType) -> tuple[Symbols, Symbols, Values]:
    """See `body_symbols.symbols_of`."""
    count = 2 * len(gaps)
    symbols, widths = np.empty(count, dtype=np.uint8), np.empty(count, dtype=np.uint8)
    values = np.empty(count, dtype=np.uint32)
    _split_loop(order.lengths, gaps, steps, word_type.bits, WIDTH, symbols, widths, values)
    return symbols, widths, values


def widths_of(order: BodyOrder, symbols: Symbols) -> Symbols:
    """See `body_symbols.widths_of`."""
    widths = np.empty_like(symbols)
    _widths_loop(order.lengths, symbols, WIDTH, widths)
    return widths


def numbers_of(order: BodyOrder, symbols: Symbols, values: Values, word_type: WordType) -> tuple[Ranks, Words]:
    """See `body_symbols.numbers_of`."""
    ranks = np.empty(len(symbols) // 2, dtype=np.int64)
    steps = np.empty(len(symbols) // 2, dtype=word_type.dtype)
    whole = (1 << word_type.bits) - 1
    beyond = _join_loop(order.lengths, order.words, symbols, values, whole, FIRST, ranks, steps)
    if beyond >= 0:
        raise rank_beyond(int(ranks[order.lengths[: beyond + 1 : 2].sum() - 1]), int(order.words[beyond]))
    return ranks, steps
