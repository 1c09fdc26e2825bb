"""Reachability of a peer, by its addresses and links."""

from __future__ import annotations

import pytest

from p2prl.swarm.peers.reachability import LinkCounts, Reach, reach_of
from tests.unit.swarm.peer_links import NOW, A, B, connections, hello, record, with_learner

PUBLIC, PUBLIC6 = "/ip4/44.131.7.1/tcp/4001/p2p/X", "/ip6/3000:1::1/tcp/4001/p2p/X"
PRIVATE, LOOP = "/ip4/192.168.1.10/tcp/4001/p2p/X", "/ip4/127.0.0.1/tcp/4001/p2p/X"
CIRCUIT = "/ip4/44.130.7.1/tcp/4001/p2p/R/p2p-circuit/p2p/X"
OUTSIDE = LinkCounts(linked=3, outside=3)
MET = LinkCounts(linked=3, outside=3, met=1)


@pytest.mark.parametrize(
    ("addresses", "links", "own", "is_public", "expected"),
    [
        ((PUBLIC, PRIVATE), OUTSIDE, ("44.131.7.1",), False, Reach.DIRECT),
        ((PUBLIC6,), OUTSIDE, ("3000:1::1",), False, Reach.DIRECT),
        ((PRIVATE,), OUTSIDE, (), True, Reach.DIRECT),
        ((PUBLIC, PRIVATE), OUTSIDE, ("192.168.1.10",), False, Reach.MAPPED),
        ((PUBLIC, PRIVATE), MET, ("192.168.1.10",), False, Reach.MAPPED),
        ((PRIVATE, CIRCUIT), MET, ("192.168.1.10",), False, Reach.PUNCHED),
        ((PRIVATE, CIRCUIT), OUTSIDE, ("192.168.1.10", "44.130.7.1"), False, Reach.RELAYED),
        ((PRIVATE,), OUTSIDE, ("192.168.1.10",), False, Reach.OUTGOING),
        ((PRIVATE, LOOP), LinkCounts(linked=1), ("192.168.1.10",), False, Reach.LOCAL),
        ((PUBLIC, PRIVATE, CIRCUIT), LinkCounts(), ("44.131.7.1",), True, Reach.CUT_OFF),
        ((), OUTSIDE, (), False, Reach.OUTGOING),
    ],
)
def test_reach(
    addresses: tuple[str, ...], links: LinkCounts, own: tuple[str, ...], is_public: bool, expected: Reach
) -> None:
    assert reach_of(addresses, links, own_hosts=own, is_public=is_public) is expected


def test_links_are_counted_by_how_they_came_about() -> None:
    links = connections()
    links.connected(B.peer_id, NOW)
    assert links.link_counts() == LinkCounts(), "no hello, no link"
    links = with_learner()
    assert links.link_counts() == LinkCounts(linked=1)
    links.note_address(A.peer_id, "/ip4/44.130.7.1/tcp/4001")
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=1), B.peer_id, NOW)
    assert links.link_counts() == LinkCounts(linked=2, outside=1)
    links.note_address(B.peer_id, CIRCUIT)
    assert links.link_counts() == LinkCounts(linked=2, outside=2)
    links.note_address(B.peer_id, "/ip4/44.131.7.1/tcp/30001")
    assert links.link_counts() == LinkCounts(linked=2, outside=2), "nothing is known of how others reach it"
    links.discovery.on_records([record(B, address="/ip4/192.168.1.10/tcp/4001")], NOW)
    assert links.link_counts() == LinkCounts(linked=2, outside=2, met=1)
    links.discovery.on_records([record(B, at=NOW + 1, address="/ip4/44.131.7.1/tcp/4001")], NOW + 1)
    assert links.link_counts() == LinkCounts(linked=2, outside=2), "anybody can dial that one"
