"""Shares of a batch of completions, one for each replayer. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby


def deal(prompts: Sequence[Sequence[Hashable]], lengths: Sequence[int], count: int) -> list[list[int]]:
    """Indices of the completions in at most `count` shares of about as many tokens, none empty.

    `lengths` are tokens of each completion. Neighbors with one prompt stay together, because their prompt is computed
    once, unless there are fewer prompts than shares.
    """
    runs = [list(run) for _, run in groupby(range(len(prompts)), key=lambda index: prompts[index])]
    pieces = -(-count // max(1, len(runs)))
    units = [unit for run in runs for unit in _cut(run, pieces)]
    costs = [len(prompts[unit[0]]) + sum(lengths[index] for index in unit) for unit in units]
    shares: list[list[int]] = [[] for _ in range(min(count, len(units)))]
    filled = [0] * len(shares)
    for place in sorted(range(len(units)), key=lambda place: -costs[place]):
        lightest = filled.index(min(filled))
        shares[lightest] += units[place]
        filled[lightest] += costs[place]
    return [sorted(share) for share in shares]


def _cut(run: list[int], pieces: int) -> list[list[int]]:
    """A run in at most this many parts of about the same size."""
    size = -(-len(run) // pieces)
    return [run[start : start + size] for start in range(0, len(run), size)]
