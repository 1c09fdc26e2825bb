"""Tasks that arrive one after another: which are asked when, and that no other slot is sampled."""

from __future__ import annotations

import pytest

from p2prl.client.sampler import SlotSampler
from p2prl_lab.testing.arriving_volunteer import TaskArrival, arriving_sampler


def test_tasks_arrive_one_after_another() -> None:
    arrival = TaskArrival.parse("U,V,W:32")
    assert [len(arrival.asked(update)) for update in (0, 31, 32, 63, 64, 1000)] == [1, 1, 2, 2, 3, 3]
    assert arrival.asked(40) == ("U", "V")


@pytest.mark.parametrize(("step", "expected"), [(0, {0, 3, 6}), (10, {0, 1, 3, 4, 6, 7}), (20, set(range(9)))])
def test_slots_of_tasks_that_are_not_asked_are_skipped(
    monkeypatch: pytest.MonkeyPatch, step: int, expected: set[int]
) -> None:
    submitted: set[int] = set()

    def submit(_self: SlotSampler, _tools: object, _policy: object, slots: list[int]) -> set[int]:
        submitted.update(slots)
        return {3}  # its prompt is too long

    class Work:
        task = "UVW"
        slot = 0

        def assign(self, *, beacon: bytes, peer: bytes, slot: int) -> object:
            del beacon, peer
            return type("Assignment", (), {"task": self.task[slot % 3]})

    monkeypatch.setattr(SlotSampler, "submit", submit)
    sampler = object.__new__(arriving_sampler(TaskArrival.parse("U,V,W:10")))
    sampler._identity = type("Key", (), {"public_key": bytes(32)})  # type: ignore[assignment]
    tools = type("Tools", (), {"work": Work()})
    policy = type("Policy", (), {"manifest": type("Manifest", (), {"beacon": bytes(32), "step": step})})

    skipped = sampler.submit(tools, policy, range(9))  # type: ignore[arg-type]

    assert submitted == expected
    assert skipped == set(range(9)) - expected | {3}
