"""Batch size: grows while throughput grows, and shrinks when a batch takes too long."""

from __future__ import annotations

from p2prl.client.batch_size import BatchSize


def settle(batching: BatchSize, machine: float, *, saturates_at: int, in_demand: bool = True) -> int:
    """Feed it measurements of a machine that decodes `machine` · min(count, saturates_at) slots per second."""
    for _ in range(50):
        count = batching.count
        rate = machine * min(count, saturates_at)
        batching.measured(count, tokens=count * 48, seconds=count / rate, in_demand=in_demand)
    return batching.count


def test_grows_until_the_machine_is_full() -> None:
    assert settle(BatchSize.chosen(0), 10.0, saturates_at=2) == 4  # 4 was tried and gained nothing over 2
    assert settle(BatchSize.chosen(0), 10.0, saturates_at=1) == 2


def test_a_batch_never_delays_new_weights_for_long() -> None:
    batching = BatchSize.chosen(0)
    count = settle(batching, 0.2, saturates_at=1_000)
    assert count / (0.2 * count) <= 5.0
    slow = BatchSize(count=8)
    slow.measured(8, tokens=100, seconds=9.0, in_demand=True)
    assert slow.count == 4
    slow.measured(4, tokens=100, seconds=0.1, in_demand=True)
    assert slow.count == 4, "twice as large was too slow a moment ago"


def test_does_not_grow_while_the_learner_has_enough() -> None:
    assert settle(BatchSize.chosen(0), 10.0, saturates_at=1_000, in_demand=False) == 1


def test_a_chosen_size_is_kept() -> None:
    assert settle(BatchSize.chosen(3), 10.0, saturates_at=1_000) == 3
