"""rANS over many lanes: symbols of several tables to 16-bit words and back, in either implementation.

Asymmetric numeral systems (Duda 2013), range variant: a state `x` below 2^32 takes in a symbol of frequency `f` out of
4096, whose slots begin at `c`, as `x → (x div f) · 4096 + x mod f + c`, after 16 bits have left it if it would
overflow. Symbol `i` is coded by lane `i mod lanes`, so one numpy operation codes a symbol in every lane; the words of
all lanes are one stream. A lane's first state is 2^16 plus 16 plain bits, which the receiver finds in its last state:
lanes cost next to nothing as long as there are plain bits to fill them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader
from p2prl.patches.frequency_tables import MAX_SYMBOLS, TABLE_BITS, TABLE_TOTAL, Frequencies
from p2prl.patches.intervals import Symbols, Values

States = NDArray[np.uint32]
Units = NDArray[np.uint16]
"""16-bit words of a stream."""

LOWEST = 1 << 16
"""Smallest state between two symbols."""

_SYMBOLS_PER_LANE = 9
"""log2 of the symbols a lane has at least. Fewer lanes would make numpy slow, more would not be filled."""
_MOST_LANES = 11
"""log2. Beyond, numpy gains nothing."""


def lanes_for(symbols: int) -> int:
    """Number of lanes for a number of symbols: a power of two."""
    return 1 << min(max(symbols.bit_length() - 1 - _SYMBOLS_PER_LANE, 0), _MOST_LANES)


@dataclass(frozen=True)
class Runs:
    """Consecutive symbols of equal tables: for each run its table, and where it ends."""

    tables: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, tables: list[int], lengths: list[int]) -> Runs:
        return cls(np.array(tables, dtype=np.int64), np.cumsum(np.array(lengths, dtype=np.int64), dtype=np.int64))

    @property
    def symbols(self) -> int:
        """Symbols of all runs."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def table_of_each(self) -> NDArray[np.uint8]:
        """The table of each symbol."""
        return np.repeat(self.tables.astype(np.uint8), np.diff(self.ends, prepend=0))


@dataclass(frozen=True)
class Tables:
    """Frequencies of all tables, laid out for encoding and for decoding."""

    frequency: NDArray[np.uint32]
    """Flat: of symbol `s` in table `t` at `256 · t + s`."""
    begin: NDArray[np.uint32]
    """First slot of each symbol, laid out likewise."""

    @classmethod
    def of(cls, tables: list[Frequencies]) -> Tables:
        frequency = np.zeros((len(tables), MAX_SYMBOLS), dtype=np.uint32)
        for row, table in zip(frequency, tables, strict=True):
            row[: len(table)] = table
        begin = np.cumsum(frequency, axis=1, dtype=np.uint32) - frequency
        return cls(frequency.ravel(), begin.ravel())

    @cached_property
    def slots(self) -> NDArray[np.uint32]:
        """Flat, 4096 for each table: symbol, frequency − 1 << 8, and place within the symbol's slots << 20."""
        symbol = np.repeat(np.arange(len(self.frequency), dtype=np.uint32), self.frequency)
        tables = len(self.frequency) // MAX_SYMBOLS
        place = np.tile(np.arange(TABLE_TOTAL, dtype=np.uint32), tables) - self.begin[symbol]
        less_one = self.frequency[symbol] - np.uint32(1)
        slots: NDArray[np.uint32] = (symbol & np.uint32(255)) | (less_one << np.uint32(8)) | (place << np.uint32(20))
        return slots


def rans_encode(symbols: Symbols, runs: Runs, tables: Tables, states: States) -> Units:
    """Encode all symbols, the last first. `states` are the lanes' first states and become their last ones."""
    table = runs.table_of_each()
    lanes = len(states)
    pieces: list[Units] = []
    for start in range((len(symbols) - 1) // lanes * lanes, -1, -lanes):
        own = symbols[start : start + lanes]
        at = (table[start : start + lanes].astype(np.int64) << 8) + own
        frequency, begin, state = tables.frequency[at], tables.begin[at], states[: len(own)]
        full = (state >> np.uint32(20)) >= frequency
        pieces.append(state[full].astype(np.uint16))
        state = np.where(full, state >> np.uint32(16), state)
        quotient = state // frequency
        states[: len(own)] = (quotient << np.uint32(TABLE_BITS)) + (state - quotient * frequency) + begin
    return np.concatenate(pieces[::-1]) if pieces else np.zeros(0, dtype=np.uint16)


def rans_decode(runs: Runs, tables: Tables, states: States, units: Units) -> Symbols:
    """Decode the symbols of all runs. `states` become the lanes' first states. `RemoteProtocolError` unless `units` are
    as many as the symbols take."""
    table = runs.table_of_each()
    lanes, count, used = len(states), runs.symbols, 0
    symbols = np.empty(count, dtype=np.uint8)
    for start in range(0, count, lanes):
        own = table[start : start + lanes]
        state = states[: len(own)]
        entry = tables.slots[(own.astype(np.uint32) << np.uint32(TABLE_BITS)) + (state & np.uint32(TABLE_TOTAL - 1))]
        symbols[start : start + lanes] = entry
        frequency = ((entry >> np.uint32(8)) & np.uint32(TABLE_TOTAL - 1)) + np.uint32(1)
        state = frequency * (state >> np.uint32(TABLE_BITS)) + (entry >> np.uint32(20))
        low = np.flatnonzero(state < LOWEST)
        arriving = units[used : used + len(low)]
        if len(arriving) != len(low):
            raise too_short()
        state[low] = (state[low] << np.uint32(16)) | arriving
        used += len(low)
        states[: len(own)] = state
    if used != len(units):
        raise RemoteProtocolError("patch: more coded bytes than symbols take")
    return symbols


def too_short() -> RemoteProtocolError:
    """The error for coded bytes that end before the symbols do."""
    return RemoteProtocolError("patch: the coded bytes end before the symbols do")


def pack_states(states: States) -> bytes:
    """The lanes' last states: for each its length in four bits (0 for 17), then the bits below its highest."""
    lengths = np.array([int(state).bit_length() - 1 for state in states], dtype=np.uint8)
    below = states & ((np.uint32(1) << lengths.astype(np.uint32)) - np.uint32(1))
    short = pack_fields(lengths.astype(np.uint32) - np.uint32(16), np.full(len(states), 4, dtype=np.uint8))
    return short + pack_fields(below, lengths)


def read_states(reader: ByteReader, lanes: int) -> States:
    """Read what `pack_states` wrote."""
    short = bytes(reader.take(-(-lanes // 2)))
    lengths = (unpack_fields(short, np.full(lanes, 4, dtype=np.uint8)) + np.uint32(16)).astype(np.uint8)
    data = bytes(reader.take(-(-int(lengths.sum(dtype=np.int64)) // 8)))
    return (np.uint32(1) << lengths.astype(np.uint32)) | unpack_fields(data, lengths)


def pack_fields(values: Values, widths: Symbols) -> bytes:
    """Plain bits of `widths` each, one field after the other, the low bits of each first.

    A field has at most 31 bits, and every value is below 2^width.
    """
    ends = np.cumsum(widths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - widths
    place = starts >> 5
    moved = values.astype(np.uint64) << (starts & 31).astype(np.uint64)
    out = np.zeros(total // 32 + 2, dtype=np.uint64)
    if len(values):
        first = np.flatnonzero(np.diff(place, prepend=-1))
        sums = np.add.reduceat(moved, first)  # fields share no bits, so a sum is their union
        out[place[first]] += sums & np.uint64(0xFFFFFFFF)
        out[place[first] + 1] += sums >> np.uint64(32)
    return out.astype("<u4").tobytes()[: -(-total // 8)]


def unpack_fields(data: bytes, widths: Symbols) -> Values:
    """The fields of `pack_fields`. `data` has as many bytes as they take."""
    ends = np.cumsum(widths, dtype=np.int64)
    starts = ends - widths
    padded = np.frombuffer(data + bytes(8 + -len(data) % 4), dtype="<u4").astype(np.uint64)
    place = starts >> 5
    both = padded[place] | (padded[place + 1] << np.uint64(32))
    mask = (np.uint64(1) << widths.astype(np.uint64)) - np.uint64(1)
    values: Values = ((both >> (starts & 31).astype(np.uint64)) & mask).astype(np.uint32)
    return values
