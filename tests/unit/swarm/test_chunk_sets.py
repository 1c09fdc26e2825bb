"""Bitmaps of chunk sets."""

from __future__ import annotations

import pytest

from p2prl.swarm.relay.chunk_sets import indices_of, of_bitmap
from tests.unit.swarm.relays import bitmap


@pytest.mark.parametrize("total", [1, 7, 8, 9, 250])
def test_bitmaps_round_trip_and_ignore_bits_past_the_end(total: int) -> None:
    chosen = [i for i in range(total) if i % 3 == 0]
    made = bitmap(chosen, total)
    assert [i for i in range(total) if made[i // 8] & (1 << i % 8)] == chosen
    assert list(indices_of(of_bitmap(made, total))) == chosen
    assert list(indices_of(of_bitmap(b"\xff" * 100, total))) == list(range(total))
