"""Peer links: hellos, liveness, clocks and incoming links."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from tests.unit.swarm.peer_links import (
    ME,
    NOW,
    RUN,
    A,
    B,
    connections,
    hello,
)


def test_incoming_links_are_bounded() -> None:
    links = connections(max_links=5)
    took = [links.connected(PeerId(f"p{i}"), NOW) for i in range(9)]
    assert took == [True] * 5 + [False] * 4
    assert not links.connected(ME.peer_id, NOW)


def test_silent_peers_are_dropped() -> None:
    links = connections(silence_s=50.0)
    links.connected(A.peer_id, NOW)
    links.connected(B.peer_id, NOW)
    links.links[B.peer_id].heard_at = NOW + 30
    assert links.handle_timer(NOW + 51) == [A.peer_id]
    assert list(links.links) == [B.peer_id]


def test_hellos_on_link_on_time_and_on_change() -> None:
    links = connections(hello_s=15.0)
    links.connected(A.peer_id, NOW)
    (first,) = links.outbox
    assert first == (A.peer_id, Hello(limits.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(NOW * 1000), -1, 0))
    links.outbox.clear()
    links.handle_timer(NOW + 14)
    assert links.outbox == []
    links._local.changed = True
    links.handle_timer(NOW + 14.5)
    links.handle_timer(NOW + 30)
    assert len(links.outbox) == 2


def test_hello_of_another_run_or_unknown_role() -> None:
    links = connections()
    links.connected(A.peer_id, NOW)
    assert links.on_hello(hello(run=bytes(32)), A.peer_id, NOW) is None
    assert A.peer_id not in links.links
    links.connected(B.peer_id, NOW)
    with pytest.raises(RemoteProtocolError):
        links.on_hello(hello(role=99), B.peer_id, NOW)


def test_our_clock_is_judged_by_the_median() -> None:
    links = connections()
    for index in range(5):
        peer = PeerId(f"p{index}")
        links.connected(peer, NOW)
        links.on_hello(hello(clock=NOW + (86_400 if index == 0 else 0.5)), peer, NOW)
    assert links.clock_offset_s() is None
    for index in range(1, 4):
        links.on_hello(hello(clock=NOW + 120), PeerId(f"p{index}"), NOW)
    assert links.clock_offset_s() == pytest.approx(120)
