"""The sparse codec, EC2: positions and ulp steps of changed words, coded group by group at their entropy.

Each group (`exponent_classes`) has a table for the gaps between its changed words and one for their steps. A gap or a
step is an interval and plain bits (`intervals`); the intervals of all groups are one rANS stream (`entropy_coder`).
With a history, words that have changed before are groups of their own, and a step is counted in the direction of the
word's last one.
"""

from __future__ import annotations

import numpy as np

from p2prl.errors import RemoteProtocolError
from p2prl.patches.body_symbols import BodyOrder, Ranks
from p2prl.patches.byte_reader import ByteReader, integers
from p2prl.patches.entropy_coder import LOWEST, Runs, States, Tables, lanes_for, pack_states, read_states
from p2prl.patches.exponent_classes import CLASSES, Groups, History, choose_top
from p2prl.patches.frequency_tables import (
    MAX_SYMBOLS,
    Frequencies,
    computed_tables,
    pack_gap_tables,
    pack_table,
    read_gap_table,
    read_table,
    shared_tables,
)
from p2prl.patches.intervals import Symbols, interval_count
from p2prl.patches.kernels import Applied, Changes, Kernels
from p2prl.patches.words import Words, WordType


def encode_ec2(
    old: Words, new: Words, word_type: WordType, kernels: Kernels, *, history: History | None = None
) -> bytes:
    """Encode the body for equally long `old` and `new` of at most 2^22 words; `history` is that of `old`."""
    if history is not None:
        history.check(old)
    changes = kernels.find(old, new, word_type, choose_top(old, word_type), history)
    return encode_changes(changes, word_type, kernels)


def encode_changes(changes: Changes, word_type: WordType, kernels: Kernels) -> bytes:
    """Encode the body of changes that were found."""
    groups = changes.groups
    some = [n > 0 for n in groups.changed]
    head = bytes([groups.top]) + _packed(some) + integers([n for n in groups.changed if n])
    order = BodyOrder.of(groups)
    symbols, widths, values = kernels.symbols_of(order, changes.gaps, changes.steps, word_type)
    if not len(symbols):
        return head
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
    groups, ranks, steps = _read_changes(old, body, word_type, kernels, history)
    return kernels.apply(old, word_type, groups, history, ranks, steps)


def decode_ec2_both_ways(old: Words, body: memoryview, word_type: WordType, kernels: Kernels) -> Applied:
    """As `decode_ec2`, and the changes that lead from the new words back to the old ones."""
    groups, ranks, steps = _read_changes(old, body, word_type, kernels, None)
    return kernels.apply_both_ways(old, word_type, groups, ranks, steps)


def _read_changes(
    old: Words, body: memoryview, word_type: WordType, kernels: Kernels, history: History | None
) -> tuple[Groups, Ranks, Words]:
    """(groups, ranks and steps of the changed words)."""
    reader = ByteReader(body)
    groups = _read_groups(reader, old, word_type, kernels, history)
    order = BodyOrder.of(groups)
    if not len(order.lengths):
        reader.finish()
        return groups, np.zeros(0, dtype=np.int64), old[:0]
    frequencies, runs = _read_tables(reader, order, 2 * interval_count(word_type.bits - 1))
    lanes = lanes_for(runs.symbols)
    count = reader.integer(runs.symbols)
    states = read_states(reader, lanes)
    units = np.frombuffer(reader.take(2 * count), dtype="<u2").astype(np.uint16)
    symbols = kernels.rans_decode(runs, Tables.of(frequencies), states, units)
    widths = kernels.widths_of(order, symbols)
    values = kernels.unpack_fields(_fields(reader, states, int(widths.sum(dtype=np.int64))), widths)
    reader.finish()
    return groups, *kernels.numbers_of(order, symbols, values, word_type)


def _tables_for(symbols: Symbols, order: BodyOrder) -> tuple[list[bytes], list[Frequencies], Runs]:
    """(the bytes of each run's table, the tables, the runs)."""
    counts = [np.bincount(own, minlength=MAX_SYMBOLS) for own in np.split(symbols, np.cumsum(order.lengths)[:-1])]
    gap_tables = pack_gap_tables(counts[::2], order.gaps)
    heads = shared_tables(counts[1::2])
    step_tables = {
        head: pack_table(np.sum([own for own, its in zip(counts[1::2], heads, strict=True) if its == head], axis=0))
        for head in dict.fromkeys(heads)
    }
    raw = [
        piece
        for group, (own, _) in enumerate(gap_tables)
        for piece in (own, step_tables[group][0] if group in step_tables else b"\0")
    ]
    frequencies = [table for _, table in (*gap_tables, *step_tables.values())]
    number = {head: len(gap_tables) + place for place, head in enumerate(step_tables)}
    return raw, frequencies, order.runs([number[head] for head in heads])


def _read_tables(reader: ByteReader, order: BodyOrder, step_symbols: int) -> tuple[list[Frequencies], Runs]:
    gap_tables: list[Frequencies | int] = []
    step_tables: list[Frequencies] = []
    numbers: list[int] = []
    for _ in order.gaps:
        gap_tables.append(read_gap_table(reader))
        own = read_table(reader, step_symbols)
        if own is not None:
            step_tables.append(own)
        elif not step_tables:
            raise RemoteProtocolError("patch: the first table of steps is missing")
        numbers.append(len(order.gaps) + len(step_tables) - 1)
    return computed_tables(gap_tables, order.gaps) + step_tables, order.runs(numbers)


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
