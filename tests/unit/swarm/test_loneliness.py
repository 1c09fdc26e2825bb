"""A node that has lost everybody says so once."""

from __future__ import annotations

from p2prl.swarm.peers.reachability import ALONE_S, Loneliness


def told(*linked_at: float, until: float = 1_000.0) -> list[float]:
    """When it is told, looking every 2 s, with a link at these times alone."""
    loneliness = Loneliness()
    times = [2.0 * step for step in range(int(until / 2))]
    return [now for now in times if loneliness.begins([1] if now in linked_at else [], now)]


def test_who_never_had_a_link_waits_for_the_first() -> None:
    assert told() == []


def test_a_loss_is_told_once_and_the_next_one_again() -> None:
    assert told(10.0, until=10.0 + ALONE_S) == []
    assert told(10.0) == [10.0 + ALONE_S]
    assert told(10.0, 10.0 + ALONE_S - 2.0) == [10.0 + 2 * ALONE_S - 2.0]
    assert told(10.0, 500.0) == [10.0 + ALONE_S, 500.0 + ALONE_S]
