"""Escrow: the newest items of each key, which can be lost at once; older ones are final."""

from __future__ import annotations

from p2prl.scoreboard.ledger.escrow import Escrow


def test_the_newest_items_of_each_key_are_held_and_emptied_at_once() -> None:
    escrow = Escrow[str, int](3)
    for item in range(5):
        escrow.add("one", item)
    escrow.add("other", 9)
    assert list(escrow.held("one")) == [2, 3, 4]
    assert list(escrow.empty("one")) == [2, 3, 4]
    assert list(escrow.held("one")) == list(escrow.empty("one")) == []
    assert list(escrow.held("other")) == [9]
    escrow.add("one", 5)
    assert list(escrow.held("one")) == [5]
