"""Shares of a full directory key: whose record makes room for whose. Pure.

All peers of a run publish under one key, whose size is bounded. When it is full, a new owner is not refused: it takes
the place of another, so that a flood of keys cannot shut anybody out. The learner and linked peers of standing keep
their records; of the others the subnet with most bytes loses its largest record, at random among equals. An honest
record has a few hundred bytes and is written again every 30 s, so it comes back when the lot falls on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from p2prl.swarm.peers.subnets import Subnet
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A stored record."""

    size_bytes: int
    subnet: Subnet
    importance: int
    """0 for a peer without a link."""


def displaced(
    held: Mapping[str, HeldRecord], newcomer: HeldRecord, *, max_bytes: int, rng: Randomness
) -> list[str] | None:
    """The owners whose records make room for a new one, by owner; None when it has to be refused."""
    missing = sum(record.size_bytes for record in held.values()) + newcomer.size_bytes - max_bytes
    left, gone = dict(held), list[str]()
    while missing > 0:
        candidates = {owner: record for owner, record in left.items() if record.importance <= newcomer.importance}
        if not candidates:
            return None
        least = min(record.importance for record in candidates.values())
        candidates = {owner: record for owner, record in candidates.items() if record.importance == least}
        by_subnet: Counter[Subnet] = Counter()
        for record in candidates.values():
            by_subnet[record.subnet] += record.size_bytes
        crowded = max(by_subnet.values())
        sizes = {
            owner: record.size_bytes for owner, record in candidates.items() if by_subnet[record.subnet] == crowded
        }
        largest = sorted(owner for owner, size in sizes.items() if size == max(sizes.values()))
        owner = draw_one(largest, rng)
        missing -= left.pop(owner).size_bytes
        gone.append(owner)
    return gone
