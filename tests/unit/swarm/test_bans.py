"""Bans: faults, and banned peers until the ban ends."""

from __future__ import annotations

from p2prl.protocol.identity import PeerId
from tests.unit.swarm.peer_links import (
    NOW,
    A,
    B,
    connections,
    dialed,
    record,
)


def test_banned_peers_are_ignored_until_the_ban_ends() -> None:
    links = connections()
    links.discovery.on_records([record(A)], NOW)
    links.commands.clear()
    links.bans.ban(A.peer_id, NOW)
    assert links.bans.is_banned(A.peer_id, NOW + 599)
    assert not links.connected(A.peer_id, NOW + 599)
    links.discovery.on_records([record(A, at=NOW + 500)], NOW + 500)
    assert dialed(links) == []
    assert not links.bans.is_banned(A.peer_id, NOW + 601)
    links.discovery.on_records([record(A, at=NOW + 601)], NOW + 601)
    assert dialed(links) == [A.peer_id]


def test_faults_ban_and_their_memory_is_bounded() -> None:
    links = connections(max_known=50)
    assert [links.fault(A.peer_id, NOW + second, proven=False) for second in range(3)] == [False, False, True]
    assert links.bans.is_banned(A.peer_id, NOW + 3)
    assert links.fault(B.peer_id, NOW, proven=True)
    for number in range(500):
        links.fault(PeerId(f"p{number}"), NOW + number, proven=False)
        links.bans.ban(PeerId(f"q{number}"), NOW + 10 * number)
    assert len(links.bans._faults) <= 50
    assert len(links.bans._until) <= 50
    assert links.bans.is_banned(PeerId("q499"), NOW + 4990)
