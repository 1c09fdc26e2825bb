"""Symbols of a body: gaps and steps as intervals and plain bits, group after group; in each the gaps, then the steps.

`numba_symbols` has the same three functions in compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import RemoteProtocolError
from p2prl.patches.entropy_coder import Runs
from p2prl.patches.exponent_classes import Groups
from p2prl.patches.intervals import FIRST, WIDTH, Symbols, Values, intervals_of, plain_bits
from p2prl.patches.words import Words, WordType

Ranks = NDArray[np.int64]


@dataclass(frozen=True)
class BodyOrder:
    """The runs of a body's symbols: for each group with changes one of gaps, then one of steps."""

    lengths: Ranks
    """Symbols of each run."""
    words: Ranks
    """For a run of gaps the words of its group, for one of steps 0."""

    @classmethod
    def of(cls, groups: Groups) -> BodyOrder:
        runs = [run for total, n in zip(groups.words, groups.changed, strict=True) for run in ((n, total), (n, 0)) if n]
        lengths, words = np.array(runs, dtype=np.int64).reshape(-1, 2).T
        return cls(np.ascontiguousarray(lengths), np.ascontiguousarray(words))

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(gaps, words) of each group with changes."""
        return list(zip(self.lengths[::2].tolist(), self.words[::2].tolist(), strict=True))

    def runs(self, step_tables: list[int]) -> Runs:
        """The runs of symbols, if the groups' tables of gaps are numbered from 0 and these are those of steps."""
        return Runs.of([each for pair in enumerate(step_tables) for each in pair], self.lengths.tolist())

    def merged(self, gaps: NDArray[Any], steps: NDArray[Any]) -> NDArray[Any]:
        """Both in the order of the body, from arrays of one kind each, group after group."""
        ends = np.cumsum(self.lengths[::2])
        starts = ends - self.lengths[::2]
        pieces = [piece for a, b in zip(starts, ends, strict=True) for piece in (gaps[a:b], steps[a:b])]
        return np.concatenate([gaps[:0], *pieces])

    def parted(self, both: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(gaps, steps), the inverse of `merged`."""
        pieces = np.split(both, np.cumsum(self.lengths))
        return np.concatenate([both[:0], *pieces[:-1:2]]), np.concatenate([both[:0], *pieces[1::2]])


def symbols_of(order: BodyOrder, gaps: Values, steps: Words, word_type: WordType) -> tuple[Symbols, Symbols, Values]:
    """(symbols, widths of their plain bits, plain bits) in the order of the body. No step is zero."""
    down = steps >> (word_type.bits - 1)
    # Two's complement by hand: where down is 1, negate modulo 2^bits.
    sizes = ((steps ^ (steps.dtype.type(0) - down)) + down - steps.dtype.type(1)).astype(np.uint32)
    gap_intervals, step_intervals = intervals_of(gaps), intervals_of(sizes)
    gap_widths, step_widths = WIDTH[gap_intervals], WIDTH[step_intervals]
    return (
        order.merged(gap_intervals, step_intervals << 1 | down.astype(np.uint8)),
        order.merged(gap_widths, step_widths),
        order.merged(plain_bits(gaps, gap_widths), plain_bits(sizes, step_widths)),
    )


def widths_of(order: BodyOrder, symbols: Symbols) -> Symbols:
    """Widths of the plain bits of each symbol."""
    gap_intervals, turned = order.parted(symbols)
    return order.merged(WIDTH[gap_intervals], WIDTH[turned >> 1])


def numbers_of(order: BodyOrder, symbols: Symbols, values: Values, word_type: WordType) -> tuple[Ranks, Words]:
    """(ranks, ascending in each group; steps) of symbols and their plain bits, group after group.

    `RemoteProtocolError` unless every rank is below the group's words.
    """
    gap_intervals, turned = order.parted(symbols)
    gap_bits, step_bits = order.parted(values)
    ranks = np.cumsum((FIRST[gap_intervals] + gap_bits).astype(np.int64) + 1) - 1
    at, before = 0, 0
    for n, total in zip(order.lengths[::2], order.words[::2], strict=True):
        own = ranks[at : at + n]
        last = int(own[-1])
        own -= before
        if int(own[-1]) >= total:
            raise rank_beyond(int(own[-1]), int(total))
        at, before = at + n, last + 1
    dtype = word_type.dtype
    size = (FIRST[turned >> 1] + step_bits).astype(dtype) + dtype.type(1)
    sign = (turned & 1).astype(dtype)
    return ranks, (size ^ (dtype.type(0) - sign)) + sign


def rank_beyond(rank: int, words: int) -> RemoteProtocolError:
    """The error for a change of a word that its group does not have."""
    return RemoteProtocolError(f"patch: position {rank} in a group of {words} words")
