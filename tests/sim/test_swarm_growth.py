"""Cost of a swarm that grows: what a peer does to join, and whom it finds."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from p2prl.sim import virtual_directory
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm
from tests.sim.node_swarm import swarm


def joined(volunteers: int) -> tuple[ProtocolSwarm, int]:
    """A swarm five seconds after all have come, and the calls of Python functions by then."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        made = swarm(volunteers=volunteers)
        made.network.run_for(5)
    finally:
        sys.setprofile(None)
    return made, calls


def test_joining_a_swarm_of_four_times_as_many_costs_a_peer_hardly_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_directory, "SAMPLE", 20)
    _, few = joined(40)
    made, many = joined(160)
    assert many / 160 < 1.5 * few / 40
    books = [made.network.node(each.peer).connections.discovery._book.peers for each in made.members.values()]
    assert max(map(len, books)) <= 60, "three lookups"
    monkeypatch.setattr(virtual_directory, "SAMPLE", 1_000)
    _, whole = joined(160)
    assert whole > 1.5 * many


def test_introduced_peers_of_a_large_swarm_are_found_by_name() -> None:
    made = swarm(volunteers=120)
    made.network.run_for(40)
    introduced = {
        peer: made.network.node(peer).connections.discovery.introduced
        for peer in (member.peer for name, member in made.members.items() if name != "learner")
    }
    missing = [
        (peer, other)
        for peer, others in introduced.items()
        for other in others
        if other not in made.network.node(peer).connections.links
    ]
    total = sum(map(len, introduced.values()))
    assert total >= 12 * 120
    assert len(missing) < 0.05 * total
    full = {peer for peer in introduced if len(made.network.node(peer).connections.links) >= 32}
    assert {peer for peer, _ in missing} <= full
