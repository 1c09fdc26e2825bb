"""Drawing at random, the same way in every core. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from p2prl.swarm.ports import Randomness

T = TypeVar("T")


def draw(candidates: Iterable[T], count: int, rng: Randomness) -> list[T]:
    """`count` different ones in random order, or all there are."""
    pool = list(candidates)
    drawn: list[T] = []
    while pool and len(drawn) < count:
        at = int(rng.random() * len(pool))
        pool[at], pool[-1] = pool[-1], pool[at]
        drawn.append(pool.pop())
    return drawn


def draw_one(candidates: Sequence[T], rng: Randomness) -> T:
    """Any one of them; there must be one."""
    return candidates[int(rng.random() * len(candidates))]
