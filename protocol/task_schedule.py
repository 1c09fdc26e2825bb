"""Order of a mix's tasks over the slots of a peer. Pure.

The slots of a peer repeat one period of `PERIOD` places, each peer from a place of its own. Within it the tasks are
spread as evenly as their shares allow. So a slot's task and its number among the peer's slots of that task are known
without looking at any other slot, and a data task gets its rows in order, each once a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

PERIOD = 4096
"""Places of a period: a task's share of the slots is rounded to 1/4096, and is at least that."""


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """Task of a slot."""

    task: int
    """Its place in the mix."""
    number: int
    """How many of the peer's earlier slots have the same task."""


def task_of_slot(weights: Sequence[float], *, start: int, slot: int) -> ScheduledTask:
    """Task of slot `slot` of a peer whose slot 0 takes place `start` of the period, `0 <= start < PERIOD`."""
    places, counts = _period(tuple(weights))
    periods, place = divmod(start + slot, PERIOD)
    task, number = places[place].task, places[place].number
    return ScheduledTask(task, periods * counts[task] + number - _before(tuple(weights), start)[task])


@lru_cache(maxsize=16)
def _period(weights: tuple[float, ...]) -> tuple[tuple[ScheduledTask, ...], tuple[int, ...]]:
    """The places of a period, and the number of places of each task. Exact, so that every machine agrees."""
    counts = _place_counts(weights)
    # The k-th of n places of a task is due at (2k + 1) / 2n of the period.
    due = sorted((Fraction(2 * k + 1, 2 * n), task, k) for task, n in enumerate(counts) for k in range(n))
    return tuple(ScheduledTask(task, k) for _, task, k in due), counts


@lru_cache(maxsize=256)
def _before(weights: tuple[float, ...], start: int) -> tuple[int, ...]:
    """Number of places of each task before place `start`."""
    counts = [0] * len(weights)
    for place in _period(weights)[0][:start]:
        counts[place.task] += 1
    return tuple(counts)


def _place_counts(weights: tuple[float, ...]) -> tuple[int, ...]:
    """One place for each task, and the others by largest remainder; of equal remainders the first task's counts more.

    A mix has far fewer tasks than a period has places.
    """
    shares = [Fraction(weight) for weight in weights]
    total, free = sum(shares), PERIOD - len(shares)
    exact = [free * share / total for share in shares]
    counts = [1 + int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda task: (int(exact[task]) - exact[task], task))
    for task in by_remainder[: PERIOD - sum(counts)]:
        counts[task] += 1
    return tuple(counts)
