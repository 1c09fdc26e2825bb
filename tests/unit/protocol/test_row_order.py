"""Order of rows: each once a pass, in an order of each peer, run, task and pass."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.protocol.work_slots import RowOrderKey, row_of

KEY = RowOrderKey(b"r" * 32, b"p" * 32, "gsm8k")


@settings(max_examples=60)
@given(st.integers(1, 400), st.integers(0, 5), st.binary(min_size=32, max_size=32), st.text(max_size=8))
def test_each_row_comes_once_a_pass(rows: int, pass_number: int, peer: bytes, task: str) -> None:
    key = RowOrderKey(KEY.run, peer, task)
    drawn = [row_of(key, pass_number * rows + place, rows) for place in range(rows)]
    assert sorted(drawn) == list(range(rows))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 255, 256, 257, 1023, 1024, 1025, 4097])
def test_sizes_around_powers_of_two(rows: int) -> None:
    assert sorted(row_of(KEY, rows + place, rows) for place in range(rows)) == list(range(rows))


@given(st.integers(0, 1 << 40))
def test_one_slot_of_a_huge_data_set_costs_little(number: int) -> None:
    rows = 1 << 32
    assert 0 <= row_of(KEY, number, rows) < rows


def test_orders_differ() -> None:
    """By run, peer, task and pass: two orders of 200 rows agree in about one place."""
    keys = (KEY, replace(KEY, run=b"x" * 32), replace(KEY, peer=b"x" * 32), replace(KEY, task="math"))
    orders = [[row_of(key, place, 200) for place in range(200)] for key in keys]
    orders.append([row_of(KEY, 200 + place, 200) for place in range(200)])
    for one, other in itertools.combinations(orders, 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_order_is_mixed() -> None:
    """Neighbors are unrelated: over 2,000 rows the steps between them go up and down equally often."""
    order = [row_of(KEY, place, 2000) for place in range(2000)]
    ups = sum(b > a for a, b in itertools.pairwise(order))
    assert abs(ups - 1000) < 70  # variance (n + 1) / 12: five standard deviations
    assert sum(abs(a - b) for a, b in itertools.pairwise(order)) / 1999 > 600  # 667 on average
