"""The sparse codec, EC2: positions and ulp steps of changed words, coded group by group at their entropy.

Each group (`exponent_classes`) has a table for the gaps between its changed words and one for their steps. A gap or a
step is an interval and plain bits (`intervals`); the intervals of all groups are one rANS stream (`entropy_coder`).
With a history, words that have changed before are groups of their own, and a step is counted in the direction of the
word's last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader, integers
from p2prl.patches.entropy_coder import LOWEST, Runs, States, Tables, lanes_for, pack_states, read_states
from p2prl.patches.exponent_classes import CLASSES, Groups, choose_top
from p2prl.patches.frequency_tables import (
    MAX_SYMBOLS,
    Frequencies,
    pack_gap_table,
    pack_table,
    read_gap_table,
    read_table,
    shared_tables,
)
from p2prl.patches.history import History
from p2prl.patches.intervals import FIRST, WIDTH, Symbols, Values, interval_count, intervals_of, plain_bits
from p2prl.patches.kernels import Kernels
from p2prl.patches.words import Words, WordType


def encode_ec2(
    old: Words, new: Words, word_type: WordType, kernels: Kernels, *, history: History | None = None
) -> bytes:
    """Encode the body for equally long `old` and `new` of at most 2^22 words; `history` is that of `old`."""
    if history is not None:
        history.check(old)
    groups, gaps, steps = kernels.find(old, new, word_type, choose_top(old, word_type), history)
    some = [n > 0 for n in groups.changed]
    head = bytes([groups.top]) + _packed(some) + integers([n for n in groups.changed if n])
    sizes, down = _sizes_of(steps, word_type)
    gap_intervals, step_intervals = intervals_of(gaps), intervals_of(sizes)
    order = _Order.of(groups)
    values = order.merged(plain_bits(gaps, WIDTH[gap_intervals]), plain_bits(sizes, WIDTH[step_intervals]))
    symbols = order.merged(gap_intervals, step_intervals << 1 | down)
    if not len(symbols):
        return head
    widths = order.merged(WIDTH[gap_intervals], WIDTH[step_intervals])
    tables, frequencies, runs = _tables_for(symbols, order)
    fields = kernels.pack_fields(values, widths)
    lanes = lanes_for(len(symbols))
    shown = max(0, len(fields) - 2 * lanes)
    hidden = np.frombuffer(fields[shown:].ljust(2 * lanes, b"\0"), dtype="<u2")
    states = np.uint32(LOWEST) + hidden.astype(np.uint32)
    units = kernels.rans_encode(symbols, runs, Tables.of(frequencies), states)
    coded = pack_states(states) + units.astype("<u2").tobytes()
    return b"".join([head, *tables, integers([len(units)]), coded, fields[:shown]])


def decode_ec2(
    old: Words, body: memoryview, word_type: WordType, kernels: Kernels, *, history: History | None = None
) -> Words:
    """Decode the new words. Raise `RemoteProtocolError` unless `body` is possible for these old words.

    With another `history` than the encoder's it fails or gives other words, which only a digest of the new ones tells.
    """
    if history is not None:
        history.check(old)
    reader = ByteReader(body)
    groups = _read_groups(reader, old, word_type, kernels, history)
    order = _Order.of(groups)
    if not order.lengths:
        reader.finish()
        return old.copy()
    frequencies, runs = _read_tables(reader, order, 2 * interval_count(word_type.bits - 1))
    lanes = lanes_for(runs.symbols)
    count = reader.integer(runs.symbols)
    states = read_states(reader, lanes)
    units = np.frombuffer(reader.take(2 * count), dtype="<u2").astype(np.uint16)
    symbols = kernels.rans_decode(runs, Tables.of(frequencies), states, units)
    gap_intervals, turned = order.parted(symbols)
    step_intervals, down = turned >> 1, (turned & 1).astype(np.uint8)
    widths = order.merged(WIDTH[gap_intervals], WIDTH[step_intervals])
    values = kernels.unpack_fields(_fields(reader, states, int(widths.sum(dtype=np.int64))), widths)
    reader.finish()
    gap_bits, step_bits = order.parted(values)
    ranks = _ranks(FIRST[gap_intervals] + gap_bits, groups)
    steps = _steps_of(FIRST[step_intervals] + step_bits, down, word_type)
    return kernels.apply(old, word_type, groups, history, ranks, steps)


def _sizes_of(steps: Words, word_type: WordType) -> tuple[Values, Symbols]:
    """(|step| − 1, 1 for steps downwards). No step is zero."""
    down = steps >> (word_type.bits - 1)
    # Two's complement by hand: where down is 1, negate modulo 2^bits.
    size = (steps ^ (steps.dtype.type(0) - down)) + down - steps.dtype.type(1)
    return size.astype(np.uint32), down.astype(np.uint8)


def _steps_of(sizes: Values, down: Symbols, word_type: WordType) -> Words:
    dtype = word_type.dtype
    size, sign = sizes.astype(dtype) + dtype.type(1), down.astype(dtype)
    steps: Words = (size ^ (dtype.type(0) - sign)) + sign
    return steps


@dataclass(frozen=True)
class _Order:
    """Symbols in the order of a body: group after group, in each the gaps and then the steps."""

    lengths: list[int]
    """Gaps and steps of each group with changes in turn."""
    words: list[int]
    """For a run of gaps the words of its group, for one of steps 0."""

    @classmethod
    def of(cls, groups: Groups) -> _Order:
        runs = [run for total, n in zip(groups.words, groups.changed, strict=True) for run in ((n, total), (n, 0)) if n]
        return cls([length for length, _ in runs], [total for _, total in runs])

    def merged(self, gaps: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
        """Both in the order of the body, from arrays of one kind each, group after group."""
        pieces = [gaps[:0]]
        gap_at = step_at = 0
        for length, total in zip(self.lengths, self.words, strict=True):
            if total:
                pieces.append(gaps[gap_at : gap_at + length])
                gap_at += length
            else:
                pieces.append(steps[step_at : step_at + length])
                step_at += length
        return np.concatenate(pieces)

    def parted(self, both: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gaps, steps), the inverse of `merged`."""
        gaps, steps, at = [both[:0]], [both[:0]], 0
        for length, total in zip(self.lengths, self.words, strict=True):
            (gaps if total else steps).append(both[at : at + length])
            at += length
        return np.concatenate(gaps), np.concatenate(steps)


def _tables_for(symbols: Symbols, order: _Order) -> tuple[list[bytes], list[Frequencies], Runs]:
    """(the bytes of each run's table, the tables, the runs)."""
    ends = np.cumsum(order.lengths)
    counts = [
        np.bincount(symbols[end - length : end], minlength=MAX_SYMBOLS)
        for end, length in zip(ends, order.lengths, strict=True)
    ]
    steps = [run for run, total in enumerate(order.words) if not total]
    heads = shared_tables([counts[run] for run in steps])
    members: dict[int, list[int]] = {}
    for run, head in zip(steps, heads, strict=True):
        members.setdefault(steps[head], []).append(run)
    raw = [b"\0"] * len(counts)
    frequencies: list[Frequencies] = []
    table = [0] * len(counts)
    for run, total in enumerate(order.words):
        if total:
            raw[run], found = pack_gap_table(counts[run], order.lengths[run], total)
            table[run] = len(frequencies)
            frequencies.append(found)
        elif run in members:
            raw[run], found = pack_table(np.sum([counts[each] for each in members[run]], axis=0))
            for each in members[run]:
                table[each] = len(frequencies)
            frequencies.append(found)
    return raw, frequencies, Runs.of(table, order.lengths)


def _read_tables(reader: ByteReader, order: _Order, step_symbols: int) -> tuple[list[Frequencies], Runs]:
    frequencies: list[Frequencies] = []
    table: list[int] = []
    steps = -1
    for length, total in zip(order.lengths, order.words, strict=True):
        if total:
            table.append(len(frequencies))
            frequencies.append(read_gap_table(reader, length, total))
            continue
        found = read_table(reader, step_symbols)
        if found is not None:
            steps = len(frequencies)
            frequencies.append(found)
        if steps < 0:
            raise RemoteProtocolError("patch: the first table of steps is missing")
        table.append(steps)
    return frequencies, Runs.of(table, order.lengths)


def _read_groups(
    reader: ByteReader, old: Words, word_type: WordType, kernels: Kernels, history: History | None
) -> Groups:
    top = reader.take(1)[0]
    if top >= word_type.exponents:
        raise RemoteProtocolError(f"patch: top exponent {top} of {word_type.exponents}")
    count = CLASSES if history is None else 2 * CLASSES
    some = np.unpackbits(np.frombuffer(reader.take(count // 8), dtype=np.uint8), bitorder="little")
    words = kernels.count(old, word_type, top, history)
    changed = tuple(reader.integer(total) if present else 0 for present, total in zip(some, words, strict=True))
    if any(present and not n for present, n in zip(some, changed, strict=True)):
        raise RemoteProtocolError("patch: a group without changes is announced")
    return Groups(top=top, words=words, changed=changed)


def _packed(flags: list[bool]) -> bytes:
    return np.packbits(np.array(flags), bitorder="little").tobytes()


def _fields(reader: ByteReader, states: States, bits: int) -> bytes:
    """The bytes of the plain bits: those in the body, and those in the lanes' first states."""
    if np.any((states < LOWEST) | (states >= 2 * LOWEST)):
        raise RemoteProtocolError("patch: the coded bytes do not end where they began")
    size, hidden = -(-bits // 8), (states - np.uint32(LOWEST)).astype("<u2").tobytes()
    fields = bytes(reader.take(max(0, size - len(hidden)))) + hidden
    if any(fields[size:]):
        raise RemoteProtocolError("patch: padding bits are set")
    return fields[:size]


def _ranks(gaps: Values, groups: Groups) -> NDArray[np.int64]:
    """Ranks in each group, ascending; every one is below the group's words."""
    ranks = np.cumsum(gaps.astype(np.int64) + 1) - 1
    at, before = 0, 0
    for n, total in zip(groups.changed, groups.words, strict=True):
        if n:
            own = ranks[at : at + n]
            last = int(own[-1])
            own -= before
            if int(own[-1]) >= total:
                raise RemoteProtocolError(f"patch: position {int(own[-1])} in a group of {total} words")
            at, before = at + n, last + 1
    return ranks
