"""Delayed buffer: each verified group is ready once, after its delay in other groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2prl_lab.bench.staleness.staleness_distributions import parse_staleness
from p2prl_lab.testing.delayed_buffer import DelayedBuffer, TaskArrival
from p2prl_lab.testing.delayed_learner import groups_drawn
from tests.unit.learner.test_rollout_buffer import GROUP, ready

delay_lists = st.lists(st.integers(min_value=0, max_value=12), min_size=30, max_size=30)


def buffer(draw: Any) -> DelayedBuffer:
    return DelayedBuffer(draw, staleness_bound=1000, ready_target=64)


@given(delay_lists, st.lists(st.booleans(), min_size=30, max_size=30))
def test_a_group_is_ready_once_after_its_delay(delays: list[int], surplus: list[bool]) -> None:
    drawn = iter(delays)
    late = buffer(lambda: next(drawn))
    due = 0
    for number in range(30):
        group = ready(number, 0)
        if surplus[number]:
            assert late.add_surplus(group) is None
        else:
            late.add(group)
        due = sum(other + delays[other] <= number for other in range(number + 1))
        assert len(late) == due
        assert late.wanted == 64 - due
    taken = [int.from_bytes(group.digest, "big") for group in late.take(due)]
    assert sorted(taken) == [number for number in range(30) if number + delays[number] <= 29]
    assert len(late) == 0


def test_a_delay_of_updates_is_one_of_their_groups() -> None:
    draw = groups_drawn(parse_staleness("const:5"), groups_per_update=16)
    assert [draw() for _ in range(3)] == [80, 80, 80]


def test_tasks_arrive_one_after_another() -> None:
    arrival = TaskArrival.parse("U,V,W:32")
    assert [len(arrival.asked(update)) for update in (0, 31, 32, 63, 64, 1000)] == [1, 1, 2, 2, 3, 3]
    assert arrival.asked(40) == ("U", "V")


def test_groups_of_a_task_that_is_not_asked_are_not_trained_on() -> None:
    late = DelayedBuffer(lambda: 0, TaskArrival.parse("U,V:2"), staleness_bound=1000, ready_target=64)

    def add(tasks: str) -> None:
        for number, task in enumerate(tasks):
            late.add(replace(ready(number, 0), group=msgspec.structs.replace(GROUP, task=task)))

    def taken(count: int, step: int) -> str:
        return "".join(group.group.task for group in late.take(count, step=step))

    add("UVUV")
    assert taken(2, step=0) == "UU"
    add("VU")
    assert taken(1, step=2) == "U"
    add("VU")
    assert taken(2, step=3) == "VU"
