"""Split the rows of a batch among ranks, each with the same number of micro-batches. Pure: every rank computes it.

A rank that runs one micro-batch more than the others would wait forever in its next collective, so ranks with fewer
have empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.learner.training.micro_batches import micro_batches


def deal(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of rows by rank: longest first, forth and back, so no rank has much more to compute than another."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for place, row in enumerate(sorted(range(len(lengths)), key=lambda row: -lengths[row])):
        turn, within = divmod(place, ranks)
        shares[within if turn % 2 == 0 else ranks - 1 - within].append(row)
    return shares


_PARTS_OF_STAGE = 4
"""Micro-batches for each stage of a pipeline. Stages wait while it fills and empties: (S − 1) of (5 S − 1) turns."""


def split(
    lengths: Sequence[int], *, tokens: int, ranks: int, stages: int = 1, live: Sequence[bool] | None = None
) -> list[list[list[int]]]:
    """Micro-batches of row indices by rank, each within `tokens` as `micro_batches` has it; the short lists begin with
    empty ones.

    For a pipeline of several stages they are smaller, so that all stages have work at once. Rows that are not `live`
    are left out, and the others stay with the rank that they have been dealt to among all.
    """
    counted = [length for row, length in enumerate(lengths) if live is None or live[row]]
    if stages > 1:
        tokens = min(tokens, max(1, -(-sum(counted) // (ranks * _PARTS_OF_STAGE * stages))))
    parts = []
    for dealt in deal(lengths, ranks):
        share = [row for row in dealt if live is None or live[row]]
        split_share = micro_batches([lengths[row] for row in share], tokens=tokens)
        parts.append([[share[i] for i in part] for part in split_share])
    most = max(len(each) for each in parts)
    return [[[]] * (most - len(each)) + each for each in parts]


def keeps_last(last: Sequence[Sequence[int]], live: Sequence[bool], *, share: float) -> bool:
    """Whether the ranks use the graphs of the micro-batches they scored `last`: in each of these enough rows are live,
    and in one of them any."""
    counts = [(sum(live[row] for row in part), len(part)) for part in last]
    return any(found for found, _ in counts) and all(found >= share * size for found, size in counts)
