"""Kernels compiled by numba: one loop per pass, no sorting, no temporary larger than the result.

A loop takes 64 words at a time: a mask of each class's words, and counts of set bits in place of ranks. So only words
that change are looked at one by one. The loops run without bounds checks and without the GIL. A pass
writes no more than one entry a word, so it stays within its arrays even if a mapped file changes under it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches import numba_symbols
from p2prl.patches.body_symbols import Ranks
from p2prl.patches.entropy_coder import Runs, States, Tables, Units, too_short
from p2prl.patches.exponent_classes import CLASSES, Flags, Groups, History, class_window
from p2prl.patches.frequency_tables import MAX_SYMBOLS, TABLE_TOTAL
from p2prl.patches.intervals import Symbols, Values
from p2prl.patches.kernels import Applied, Changes
from p2prl.patches.numba_blocks import changed_at, classes_at, compiled, copy_block, place_of_rank, stepped_word
from p2prl.patches.numba_both_ways import apply_both_ways
from p2prl.patches.vector_blocks import advance, lowest_bit, members, set_bits
from p2prl.patches.words import Words, WordType

_NO_FLAGS = np.zeros(0, dtype=np.uint64)


def _count(old: Words, moved: Flags, shift: int, exponents: int, below: int, above: int, words: Ranks) -> None:
    classes = np.empty(64, dtype=np.uint8)
    never = np.full(len(words), len(old), dtype=np.int64)
    for block in range((len(old) + 63) // 64):
        classes_at(old, block * 64, shift, exponents, below, above, classes)
        again = moved[block] if len(moved) else np.uint64(0)
        advance(classes, ~again, words, never, 0)
        if again:
            advance(classes, again, words, never, 16)


def _find(
    old: Words,
    new: Words,
    moved: Flags,
    down: Flags,
    shift: int,
    bits: int,
    exponents: int,
    below: int,
    above: int,
    words: Ranks,
    groups: NDArray[np.uint8],
    gaps: Values,
    steps: Words,
) -> int:
    """Write the group, gap and turned step of each changed word, in the order of the words; returns how many."""
    low = (1 << (bits - 1)) - 1
    classes = np.empty(64, dtype=np.uint8)
    after = np.zeros(len(words), dtype=np.int64)
    never = np.full(len(words), len(old), dtype=np.int64)
    found = 0
    for block in range((len(old) + 63) // 64):
        start = block * 64
        classes_at(old, start, shift, exponents, below, above, classes)
        hits = changed_at(old, new, start)
        again = moved[block] if len(moved) else np.uint64(0)
        while hits:
            bit = hits & (~hits + np.uint64(1))
            place = lowest_bit(hits)
            c = np.int64(classes[place])
            g = c + (16 if again & bit else 0)
            own = members(classes, c) & (again if again & bit else ~again)
            rank = words[g] + set_bits(own & (bit - np.uint64(1)))
            was, now = np.int64(old[start + place]), np.int64(new[start + place])
            step = (now ^ ((now >> (bits - 1)) * low)) - (was ^ ((was >> (bits - 1)) * low))
            if len(moved) and down[block] & bit:
                step = -step
            groups[found] = g
            gaps[found] = rank - after[g]
            steps[found] = step
            after[g] = rank + 1
            found += 1
            hits ^= bit
        advance(classes, ~again, words, never, 0)
        if again:
            advance(classes, again, words, never, 16)
    return found


def _apply(
    old: Words,
    moved: Flags,
    down: Flags,
    shift: int,
    bits: int,
    exponents: int,
    below: int,
    above: int,
    at: Ranks,
    ends: Ranks,
    ranks: Ranks,
    steps: Words,
    new: Words,
) -> None:
    """Step the words of these ranks: for each group those from `at` to `ends`, which `at` reaches."""
    classes = np.empty(64, dtype=np.uint8)
    seen = np.zeros(len(at), dtype=np.int64)
    following = np.full(len(at), len(old), dtype=np.int64)
    for g in range(len(at)):
        if at[g] < ends[g]:
            following[g] = ranks[at[g]]
    for block in range((len(old) + 63) // 64):
        start = block * 64
        classes_at(old, start, shift, exponents, below, above, classes)
        again = moved[block] if len(moved) else np.uint64(0)
        copy_block(old, new, start)
        due = advance(classes, ~again, seen, following, 0)
        if again:
            due |= advance(classes, again, seen, following, 16) << np.uint64(16)
        while due:
            g = lowest_bit(due)
            due &= due - np.uint64(1)
            own = members(classes, g & 15) & (again if g > 15 else ~again)
            until = seen[g]
            rank = until - set_bits(own)
            mark, end = at[g], ends[g]
            wanted = following[g]
            while wanted < until:
                place = place_of_rank(own, wanted - rank)
                place = min(place, len(old) - 1 - start)  # no matter what a mapped file has become meanwhile
                step = np.int64(steps[mark])
                if len(moved) and (down[block] >> np.uint64(place)) & np.uint64(1):
                    step = -step
                new[start + place] = stepped_word(np.int64(old[start + place]), step, bits)
                mark += 1
                wanted = ranks[mark] if mark < end else len(old)
            at[g] = mark
            following[g] = wanted


def _encode(
    symbols: Symbols,
    run_tables: Ranks,
    run_ends: Ranks,
    frequency: Values,
    begin: Values,
    states: States,
    units: Units,
) -> int:
    """Write the units from the end of `units`; returns how many."""
    lanes = len(states)
    run = len(run_ends) - 1
    at = len(units)
    for i in range(len(symbols) - 1, -1, -1):
        while run > 0 and i < run_ends[run - 1]:
            run -= 1
        slot = (run_tables[run] << 8) + symbols[i]
        lane = i & (lanes - 1)
        state = np.uint64(states[lane])
        own = np.uint64(frequency[slot])
        if (state >> np.uint64(20)) >= own:
            at -= 1
            units[at] = state & np.uint64(0xFFFF)
            state >>= np.uint64(16)
        quotient = state // own
        states[lane] = (quotient << np.uint64(12)) + (state - quotient * own) + np.uint64(begin[slot])
    return len(units) - at


def _decode(run_tables: Ranks, run_ends: Ranks, slots: Values, states: States, units: Units, symbols: Symbols) -> int:
    """Returns how many units were read, −1 for more than there are."""
    lanes = len(states)
    used = start = 0
    for run in range(len(run_ends)):
        table = run_tables[run] << 12
        for i in range(start, run_ends[run]):
            lane = i & (lanes - 1)
            state = states[lane]
            entry = slots[table + (state & np.uint32(0xFFF))]
            symbols[i] = entry & np.uint32(0xFF)
            own = ((entry >> np.uint32(8)) & np.uint32(0xFFF)) + np.uint32(1)
            state = np.uint32(own * (state >> np.uint32(12)) + (entry >> np.uint32(20)))
            if state < np.uint32(0x10000):
                if used == len(units):
                    return -1
                state = np.uint32((state << np.uint32(16)) | units[used])
                used += 1
            states[lane] = state
        start = run_ends[run]
    return used


def _slots(frequency: Values, begin: Values, slots: Values) -> None:
    """See `entropy_coder.Tables.slots`."""
    for symbol in range(len(frequency)):
        own = frequency[symbol]
        first = (np.int64(symbol >> 8) << 12) + begin[symbol]
        for place in range(own):
            slots[first + place] = (
                np.uint32(symbol & 255) | ((own - np.uint32(1)) << np.uint32(8)) | (np.uint32(place) << np.uint32(20))
            )


def _pack(values: Values, widths: Symbols, out: NDArray[np.uint8]) -> None:
    held, bits, at = np.uint64(0), np.uint64(0), 0
    for i in range(len(values)):
        held |= np.uint64(values[i]) << bits
        bits += np.uint64(widths[i])
        while bits >= np.uint64(8):
            out[at] = held & np.uint64(0xFF)
            at += 1
            held >>= np.uint64(8)
            bits -= np.uint64(8)
    if bits:
        out[at] = held & np.uint64(0xFF)


def _unpack(data: NDArray[np.uint8], widths: Symbols, values: Values) -> None:
    held, bits, at = np.uint64(0), np.uint64(0), 0
    for i in range(len(widths)):
        width = np.uint64(widths[i])
        while bits < width:
            held |= np.uint64(data[at]) << bits
            at += 1
            bits += np.uint64(8)
        values[i] = held & ((np.uint64(1) << width) - np.uint64(1))
        held >>= width
        bits -= width


_count_loop = compiled(_count)
_find_loop = compiled(_find)
_apply_loop = compiled(_apply)
_encode_loop = compiled(_encode)
_decode_loop = compiled(_decode)
_slots_loop = compiled(_slots)
_pack_loop = compiled(_pack)
_unpack_loop = compiled(_unpack)


class NumbaKernels:
    """See `kernels.Kernels`. The first call for each width of words compiles, which takes some seconds."""

    name = "numba"

    def count(self, old: Words, word_type: WordType, top: int, history: History | None) -> tuple[int, ...]:
        words = _zeros(history)
        _count_loop(old, _flags(history)[0], word_type.mantissa_bits, word_type.exponents, *class_window(top), words)
        return tuple(words.tolist())

    def find(self, old: Words, new: Words, word_type: WordType, top: int, history: History | None) -> Changes:
        # Room for all words, of which the system gives no more than is written to.
        groups = np.empty(len(old), dtype=np.uint8)
        gaps = np.empty(len(old), dtype=np.uint32)
        steps = np.empty(len(old), dtype=word_type.dtype)
        words = _zeros(history)
        found = _find_loop(old, new, *_flags(history), *_format(word_type, top), words, groups, gaps, steps)
        return _sorted(top, words, groups[:found], gaps, steps)

    def apply(
        self, old: Words, word_type: WordType, groups: Groups, history: History | None, ranks: Ranks, steps: Words
    ) -> Words:
        new = np.empty_like(old)
        ends = np.cumsum(groups.changed)
        starts = ends - groups.changed
        _apply_loop(old, *_flags(history), *_format(word_type, groups.top), starts, ends, ranks, steps, new)
        return new

    def apply_both_ways(self, old: Words, word_type: WordType, groups: Groups, ranks: Ranks, steps: Words) -> Applied:
        words = _zeros(None)
        new, places, into, gaps, back = apply_both_ways(
            old, _format(word_type, groups.top), np.array(groups.changed), ranks, steps, words
        )
        return Applied(new, places, _sorted(groups.top, words, into, gaps, back))

    symbols_of = staticmethod(numba_symbols.symbols_of)
    widths_of = staticmethod(numba_symbols.widths_of)
    numbers_of = staticmethod(numba_symbols.numbers_of)

    def rans_encode(self, symbols: Symbols, runs: Runs, tables: Tables, states: States) -> Units:
        units = np.empty(len(symbols), dtype=np.uint16)
        count = _encode_loop(symbols, runs.tables, runs.ends, tables.frequency, tables.begin, states, units)
        return units[len(units) - count :]

    def rans_decode(self, runs: Runs, tables: Tables, states: States, units: Units) -> Symbols:
        symbols = np.empty(runs.symbols, dtype=np.uint8)
        slots = np.empty(len(tables.frequency) * TABLE_TOTAL // MAX_SYMBOLS, dtype=np.uint32)
        _slots_loop(tables.frequency, tables.begin, slots)
        used = _decode_loop(runs.tables, runs.ends, slots, states, units, symbols)
        if used < 0:
            raise too_short()
        if used != len(units):
            raise RemoteProtocolError("patch: more coded bytes than symbols take")
        return symbols

    def pack_fields(self, values: Values, widths: Symbols) -> bytes:
        out = np.empty(-(-int(widths.sum(dtype=np.int64)) // 8), dtype=np.uint8)
        _pack_loop(values, widths, out)
        return out.tobytes()

    def unpack_fields(self, data: bytes, widths: Symbols) -> Values:
        values = np.empty(len(widths), dtype=np.uint32)
        _unpack_loop(np.frombuffer(data, dtype=np.uint8), widths, values)
        return values


def _sorted(top: int, words: Ranks, groups: NDArray[np.uint8], gaps: Values, steps: Words) -> Changes:
    """Changes in the order of the words, `words` being the sizes of the groups, brought into that of the groups."""
    order = np.argsort(groups, kind="stable")
    changed = np.bincount(groups, minlength=len(words))
    return Changes(Groups(top, tuple(words.tolist()), tuple(changed.tolist())), gaps[order], steps[order])


def _flags(history: History | None) -> tuple[Flags, Flags]:
    return (_NO_FLAGS, _NO_FLAGS) if history is None else (history.moved, history.down)


def _zeros(history: History | None) -> Ranks:
    """A counter for each group."""
    return np.zeros(CLASSES if history is None else 2 * CLASSES, dtype=np.int64)


def _format(word_type: WordType, top: int) -> tuple[int, ...]:
    """Mantissa bits, bits, exponents, and the window of the classes."""
    return (word_type.mantissa_bits, word_type.bits, word_type.exponents, *class_window(top))
