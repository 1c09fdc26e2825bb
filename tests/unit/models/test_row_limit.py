"""Rows that fit the memory, and what running out of it changes."""

from __future__ import annotations

import torch

from p2prl.models.row_limit import RowLimit, cache_budget


def _limit(budget: int, most: int = 100) -> RowLimit:
    return RowLimit(budget_bytes=budget, token_bytes=10, vocabulary=5, most_rows=most)


def test_rows_fit_with_their_logits() -> None:
    row = 7 * 10 + 5 * 32
    assert _limit(6 * row).rows(7) == 6
    assert _limit(6 * row - 1).rows(7) == 5
    assert _limit(6 * row).rows(8) == 5
    assert _limit(0).rows(7) == 1, "one goes on whatever the budget"
    assert _limit(10**9).rows(7) == 100


def test_running_out_halves_and_steps_restore() -> None:
    limit = _limit(10**9)
    limit.ran_out(60)
    assert limit.rows(7) == 30
    for _ in range(4095):
        limit.stepped()
    assert limit.rows(7) == 30
    limit.stepped()
    assert limit.rows(7) == 60
    for _ in range(4096):
        limit.stepped()
    assert limit.rows(7) == 100
    limit.ran_out(1)
    assert limit.rows(7) == 1


def test_granted_memory_includes_the_weights() -> None:
    cpu = torch.device("cpu")
    free = cache_budget(cpu, weight_bytes=10**6, memory_bytes=None)
    assert free > 0
    assert cache_budget(cpu, weight_bytes=1000, memory_bytes=5000) == 4000
    assert cache_budget(cpu, weight_bytes=1000, memory_bytes=900) == 0
