"""Order of tasks: shares as asked for, spread evenly, and numbers that count a task's earlier slots."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.protocol.work_slots import PERIOD, ScheduledTask, task_of_slot

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6)
STARTS = st.integers(0, PERIOD - 1)


@settings(max_examples=20)
@given(WEIGHTS, STARTS, st.integers(0, 3 * PERIOD))
def test_numbers_count_earlier_slots_of_the_task(weights: list[float], start: int, slots: int) -> None:
    seen: Counter[int] = Counter()
    for slot in range(slots):
        scheduled = task_of_slot(weights, start=start, slot=slot)
        assert scheduled.number == seen[scheduled.task]
        seen[scheduled.task] += 1


@settings(max_examples=20)
@given(WEIGHTS, STARTS, st.integers(0, 1 << 32))
def test_shares_of_a_period(weights: list[float], start: int, first: int) -> None:
    """A task has one place and its share of the rest, rounded down or up: its share of all, to less than T places."""
    counts = Counter(task_of_slot(weights, start=start, slot=first + slot).task for slot in range(PERIOD))
    total = sum(map(Fraction, weights))
    for task, weight in enumerate(weights):
        exact = (PERIOD - len(weights)) * Fraction(weight) / total
        assert counts[task] in (1 + int(exact), 2 + int(exact))
    assert counts.total() == PERIOD


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([1.0], [4096]),
        ([1.0, 1.0], [2048, 2048]),
        ([3.0, 1.0], [3072, 1024]),
        ([1.0, 3.0], [1025, 3071]),  # of two equal remainders the first task's counts
        ([1.0, 1.0, 1.0], [1366, 1365, 1365]),
        ([1e-6, 1e6], [1, 4095]),
        ([1.0] * 64, [64] * 64),
    ],
)
def test_places_of_known_mixes(weights: list[float], counts: list[int]) -> None:
    drawn = Counter(task_of_slot(weights, start=0, slot=slot).task for slot in range(PERIOD))
    assert [drawn[task] for task in range(len(weights))] == counts


@settings(max_examples=20)
@given(WEIGHTS, st.integers(1, PERIOD))
def test_every_stretch_has_each_task_by_its_share(weights: list[float], slots: int) -> None:
    drawn = Counter(task_of_slot(weights, start=0, slot=slot).task for slot in range(slots))
    period = Counter(task_of_slot(weights, start=0, slot=slot).task for slot in range(PERIOD))
    for task, count in period.items():
        assert abs(drawn[task] - Fraction(slots * count, PERIOD)) <= max(1, len(weights) - 1)


def test_three_to_one_alternates() -> None:
    assert [task_of_slot([3.0, 1.0], start=0, slot=slot).task for slot in range(8)] == [0, 0, 1, 0, 0, 0, 1, 0]


def test_start_moves_the_order_and_restarts_the_numbers() -> None:
    for start in (0, 1, 5, PERIOD - 1):
        here = [task_of_slot([3.0, 1.0], start=start, slot=slot).task for slot in range(12)]
        there = [task_of_slot([3.0, 1.0], start=0, slot=start + slot).task for slot in range(12)]
        assert here == there
    assert task_of_slot([1.0], start=17, slot=5) == ScheduledTask(0, 5)
