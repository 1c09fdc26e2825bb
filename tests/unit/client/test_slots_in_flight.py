"""Slots in flight: their number grows while throughput grows."""

from __future__ import annotations

import pytest

from p2prl.client.slots_in_flight import SlotsInFlight


def settle(slots: SlotsInFlight, machine: float, *, saturates_at: int, in_demand: bool = True, missing: int = 0) -> int:
    """Feed it turns of .1 s on a machine that decodes `machine` · min(count, saturates_at) tokens per second."""
    for _ in range(300):
        tokens = round(0.1 * machine * min(slots.count, saturates_at))
        slots.measured(slots.count - missing, tokens=tokens, steps=4, seconds=0.1, in_demand=in_demand)
    return slots.count


@pytest.mark.parametrize("saturates_at", [1, 2, 4, 8])
def test_grows_until_the_machine_is_full(saturates_at: int) -> None:
    assert settle(SlotsInFlight.chosen(0), 1000.0, saturates_at=saturates_at) == saturates_at


def test_growth_is_bounded() -> None:
    assert settle(SlotsInFlight.chosen(0), 1000.0, saturates_at=10_000) == 32


def test_does_not_grow_while_the_learner_has_enough() -> None:
    assert settle(SlotsInFlight.chosen(0), 1000.0, saturates_at=1_000, in_demand=False) == 1


def test_does_not_grow_when_memory_holds_no_more() -> None:
    assert settle(SlotsInFlight(count=4), 1000.0, saturates_at=1_000, missing=1) == 4
    assert settle(SlotsInFlight(count=4), 1000.0, saturates_at=1_000) == 32


def test_a_moment_is_no_measurement() -> None:
    slots = SlotsInFlight.chosen(0)
    for _ in range(9):
        slots.measured(1, tokens=100, steps=40, seconds=0.1, in_demand=True)
    assert slots.count == 1
    slots.measured(1, tokens=100, steps=40, seconds=0.2, in_demand=True)
    assert slots.count == 2
    slots.measured(2, tokens=100, steps=31, seconds=9.0, in_demand=True)
    assert slots.count == 2
    slots.measured(2, tokens=100_000, steps=1, seconds=0.1, in_demand=True)
    assert slots.count == 4


def test_a_chosen_number_is_kept() -> None:
    assert settle(SlotsInFlight.chosen(3), 1000.0, saturates_at=1_000) == 3


@pytest.mark.parametrize(("count", "lot"), [(1, 1), (4, 1), (8, 2), (32, 8)])
def test_lots_are_a_quarter(count: int, lot: int) -> None:
    assert SlotsInFlight(count=count).lot == lot
