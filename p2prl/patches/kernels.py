"""Kernels port: the passes over the words of a segment and over its symbols, and their numpy implementation.

`numba_kernels` implements the same port in compiled code; `kernel_choice` picks one. Both give the same arrays for the
same words, and all later steps are shared, so a patch does not depend on the implementation. Counts and ranks are
validated before they reach a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2prl.patches import body_symbols, entropy_coder
from p2prl.patches.body_symbols import BodyOrder, Ranks
from p2prl.patches.entropy_coder import Runs, States, Tables, Units
from p2prl.patches.exponent_classes import BLOCK_WORDS, CLASSES, Flags, Groups, History, class_window, packed_flags
from p2prl.patches.intervals import Symbols, Values
from p2prl.patches.words import Words, WordType, exponents_of, stepped, steps_between


@dataclass(frozen=True)
class Changes:
    """The words of a segment that change, group after group, in the order of the words."""

    groups: Groups
    gaps: Values
    """Between the ranks of changed words."""
    steps: Words
    """Turned ulp steps."""


@dataclass(frozen=True)
class Applied:
    """A segment after a patch."""

    words: Words
    """The new words."""
    places: NDArray[np.uint32]
    """Of the words that changed, in any order."""
    back: Changes
    """From the new words to the old ones, in the exponent classes of the patch."""


class Kernels(Protocol):
    """Passes over one segment. Steps are *turned*: negated where the history says that the last step was down."""

    @property
    def name(self) -> str:
        """Name of the implementation, for tables."""

    def count(self, old: Words, word_type: WordType, top: int, history: History | None) -> tuple[int, ...]:
        """Count the words of each group."""

    def find(self, old: Words, new: Words, word_type: WordType, top: int, history: History | None) -> Changes:
        """What changes from `old` to `new`."""

    def apply(
        self, old: Words, word_type: WordType, groups: Groups, history: History | None, ranks: Ranks, steps: Words
    ) -> Words:
        """Return the new words. `ranks` are those of changed words, group after group, ascending and in range."""

    def apply_both_ways(self, old: Words, word_type: WordType, groups: Groups, ranks: Ranks, steps: Words) -> Applied:
        """As `apply` without a history, and the way back. No step is zero."""

    def symbols_of(
        self, order: BodyOrder, gaps: Values, steps: Words, word_type: WordType
    ) -> tuple[Symbols, Symbols, Values]:
        """See `body_symbols.symbols_of`."""

    def widths_of(self, order: BodyOrder, symbols: Symbols) -> Symbols:
        """See `body_symbols.widths_of`."""

    def numbers_of(
        self, order: BodyOrder, symbols: Symbols, values: Values, word_type: WordType
    ) -> tuple[Ranks, Words]:
        """See `body_symbols.numbers_of`."""

    def rans_encode(self, symbols: Symbols, runs: Runs, tables: Tables, states: States) -> Units:
        """See `entropy_coder.rans_encode`."""

    def rans_decode(self, runs: Runs, tables: Tables, states: States, units: Units) -> Symbols:
        """See `entropy_coder.rans_decode`."""

    def pack_fields(self, values: Values, widths: Symbols) -> bytes:
        """See `entropy_coder.pack_fields`."""

    def unpack_fields(self, data: bytes, widths: Symbols) -> Values:
        """See `entropy_coder.unpack_fields`."""


class NumpyKernels:
    """Reference implementation: a flag for every word of a group, 64 to a number, and counts of set bits."""

    name = "numpy"

    def count(self, old: Words, word_type: WordType, top: int, history: History | None) -> tuple[int, ...]:
        return tuple(map(_count, _members(old, word_type, top, history)))

    def find(self, old: Words, new: Words, word_type: WordType, top: int, history: History | None) -> Changes:
        different = packed_flags(old != new)
        words, gaps, places = [], [], []
        for flags in _members(old, word_type, top, history):
            words.append(_count(flags))
            places.append(_places(flags & different))
            gaps.append((np.diff(_ranks(flags, places[-1]), prepend=-1) - 1).astype(np.uint32))
        where = np.concatenate(places)
        steps = steps_between(old[where], new[where], word_type)
        groups = Groups(top, tuple(words), tuple(map(len, places)))
        return Changes(groups, np.concatenate(gaps), _turned(steps, where, history))

    def apply(
        self, old: Words, word_type: WordType, groups: Groups, history: History | None, ranks: Ranks, steps: Words
    ) -> Words:
        return _applied(old, word_type, groups, history, ranks, steps)[0]

    def apply_both_ways(self, old: Words, word_type: WordType, groups: Groups, ranks: Ranks, steps: Words) -> Applied:
        new, where = _applied(old, word_type, groups, None, ranks, steps)
        return Applied(new, where.astype(np.uint32), self.find(new, old, word_type, groups.top, None))

    symbols_of = staticmethod(body_symbols.symbols_of)
    widths_of = staticmethod(body_symbols.widths_of)
    numbers_of = staticmethod(body_symbols.numbers_of)
    rans_encode = staticmethod(entropy_coder.rans_encode)
    rans_decode = staticmethod(entropy_coder.rans_decode)
    pack_fields = staticmethod(entropy_coder.pack_fields)
    unpack_fields = staticmethod(entropy_coder.unpack_fields)


def _applied(
    old: Words, word_type: WordType, groups: Groups, history: History | None, ranks: Ranks, steps: Words
) -> tuple[Words, NDArray[np.int64]]:
    """(new words, places of those that changed)."""
    places, at = [], 0
    for flags, n in zip(_members(old, word_type, groups.top, history), groups.changed, strict=True):
        places.append(_places_of_ranks(flags, ranks[at : at + n]))
        at += n
    where = np.concatenate(places)
    new = old.copy()
    new[where] = stepped(old[where], _turned(steps, where, history), word_type)
    return new, where


def _members(old: Words, word_type: WordType, top: int, history: History | None) -> list[Flags]:
    """The flags of each group's words."""
    below, above = class_window(top)
    table = np.minimum(np.maximum(np.arange(word_type.exponents) - below, 0), CLASSES - 1 - above) + above
    classes = table.astype(np.uint8)[exponents_of(old, word_type)]
    flags = [packed_flags(classes == number) for number in range(CLASSES)]
    if history is None:
        return flags
    return [own & ~history.moved for own in flags] + [own & history.moved for own in flags]


def _count(flags: Flags) -> int:
    return int(np.bitwise_count(flags).sum(dtype=np.int64))


def _places(flags: Flags) -> NDArray[np.int64]:
    """Places of the set flags, ascending."""
    blocks = np.flatnonzero(flags)
    bits = np.unpackbits(flags[blocks].astype("<u8").view(np.uint8), bitorder="little")
    within = np.flatnonzero(bits)
    places: NDArray[np.int64] = blocks[within >> 6] * BLOCK_WORDS + (within & 63)
    return places


def _ranks(flags: Flags, places: NDArray[np.int64]) -> Ranks:
    """How many set flags precede each place."""
    counts = np.bitwise_count(flags)
    before = np.cumsum(counts, dtype=np.int64) - counts
    block = places >> 6
    lower = (np.uint64(1) << (places & 63).astype(np.uint64)) - np.uint64(1)
    ranks: Ranks = before[block] + np.bitwise_count(flags[block] & lower)
    return ranks


def _places_of_ranks(flags: Flags, ranks: Ranks) -> NDArray[np.int64]:
    """Places of the set flags of these ranks, all below the number of set flags."""
    until = np.cumsum(np.bitwise_count(flags), dtype=np.int64)
    block = np.searchsorted(until, ranks, side="right")
    rest = flags[block]
    rank = ranks - until[block] + np.bitwise_count(rest)
    place = block * BLOCK_WORDS
    for half in (32, 16, 8, 4, 2, 1):  # the wanted flag is in the lower half, or beyond all of its flags
        lower = rest & np.uint64((1 << half) - 1)
        count = np.bitwise_count(lower)
        beyond = rank >= count
        rank = rank - np.where(beyond, count, 0)
        place = place + np.where(beyond, half, 0)
        rest = np.where(beyond, rest >> np.uint64(half), lower)
    found: NDArray[np.int64] = place
    return found


def _turned(steps: Words, where: NDArray[np.int64], history: History | None) -> Words:
    """Steps with those of words that last went down negated; its own inverse."""
    if history is None:
        return steps
    down = (history.down[where >> 6] >> (where & 63).astype(np.uint64)) & np.uint64(1)
    turned: Words = np.where(down.astype(bool), steps.dtype.type(0) - steps, steps)
    return turned


NUMPY_KERNELS: Kernels = NumpyKernels()
