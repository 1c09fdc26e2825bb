"""Churn: nobody is away twice at once, everybody is back at the end, and memory is told of whole lives alone."""

from __future__ import annotations

import random
from itertools import pairwise

from p2prl_lab.home_networks.churn import LINE_WAYS, PROCESS_WAYS, MemorySample, absences, memory_rows

HOMES = ["a", "b", "c"]


def test_every_home_goes_and_comes_back_before_the_end() -> None:
    for seed in range(20):
        planned = absences(HOMES, "learner", 3_600.0, random.Random(seed))
        assert [a.from_s for a in planned] == sorted(a.from_s for a in planned)
        assert [(a.from_s, a.way) for a in planned if a.name == "learner"] == [(1_200.0, "killed"), (2_400.0, "killed")]
        for number, name in enumerate(HOMES):
            own = [a for a in planned if a.name == name]
            assert len(own) >= 8
            assert {a.way for a in own} <= set(PROCESS_WAYS if number % 2 else LINE_WAYS)
            assert all(earlier.until_s + 90.0 <= later.from_s for earlier, later in pairwise(own))
            assert all(20.0 <= a.until_s - a.from_s <= 120.0 for a in own)
            assert own[-1].until_s < 3_480.0


def life(name: str, pid: int, sizes: list[int], every_s: float = 100.0) -> list[MemorySample]:
    return [MemorySample(at * every_s, name, "daemon", pid, size * 1_000_000) for at, size in enumerate(sizes)]


def test_memory_compares_the_second_quarter_with_the_last() -> None:
    samples = [*life("a", 1, [10, 20, 40, 40, 50, 50, 60, 60, 60]), *life("a", 2, [9, 9, 9])]
    assert memory_rows(samples, 800.0) == [
        {"name": "a", "part": "daemon", "lived_s": 800, "early_mb": 40.0, "late_mb": 60.0, "growth": 1.5}
    ]
    assert memory_rows(samples, 801.0) == []
