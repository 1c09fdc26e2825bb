"""Seeded random choice shared by the state machines.

The order of calls on the random source is part of a simulation's trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from p2prl.swarm.ports import Randomness

T = TypeVar("T")


def draw(candidates: Iterable[T], count: int, rng: Randomness) -> list[T]:
    """Up to `count` different candidates in random order."""
    pool = list(candidates)
    drawn: list[T] = []
    while pool and len(drawn) < count:
        at = int(rng.random() * len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        drawn.append(pool.pop())
    return drawn


def draw_one(candidates: Sequence[T], rng: Randomness) -> T:
    """One candidate of a sequence that is not empty."""
    return candidates[int(rng.random() * len(candidates))]
