"""Peer links: hellos, liveness, clocks and incoming links."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.wire_version import WIRE_VERSION
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.connections import GREETING_PAUSE_S, GREETINGS, Connections
from tests.unit.swarm.peer_links import (
    ME,
    NOW,
    RUN,
    A,
    B,
    connections,
    hello,
    record,
    with_learner,
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
    assert first == (
        A.peer_id,
        Hello(WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(NOW * 1000), -1, 0, 0, 0),
    )
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
    assert links.discovery.other_runs == {A.peer_id}
    links.connected(B.peer_id, NOW)
    with pytest.raises(RemoteProtocolError):
        links.on_hello(hello(role=99), B.peer_id, NOW)


def read_clock(links: Connections, peer: PeerId, *, error: float, delay: float = 0.1) -> None:
    """A peer whose clock is `error` ahead answers our last hello, which travels for `delay` as its answer does."""
    sent = [message for to, message in links.outbox if to == peer and isinstance(message, Hello)][-1]
    answered = NOW + delay + error
    answer = Hello(WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(answered * 1000), -1, 0, sent.now_ms, 0)
    links.on_hello(answer, peer, NOW + 2 * delay)


def test_our_clock_is_judged_by_a_quorum_of_subnets() -> None:
    links = connections()
    for index in range(6):
        peer = PeerId(f"p{index}")
        links.subnets.note(peer, f"/ip4/1.2.{index // 3}.{index}/tcp/1")
        links.connected(peer, NOW)
        read_clock(links, peer, error=120)
    assert links.clock_offset_s(NOW) is None, "strangers of two subnets"
    links.connected(A.peer_id, NOW)
    read_clock(links, A.peer_id, error=0.5)
    assert links.clock_offset_s(NOW) is None, "the learner says otherwise"
    links.lost(A.peer_id, NOW)
    links.connected(A.peer_id, NOW)
    read_clock(links, A.peer_id, error=-90)
    assert links.clock_offset_s(NOW) == pytest.approx(-90, abs=0.2)


def test_clocks_far_apart_are_compared_at_once_and_once_for_each_link() -> None:
    links = connections()
    links.connected(A.peer_id, NOW)
    links.outbox.clear()
    for _ in range(3):
        links.on_hello(hello(clock=NOW + 16), A.peer_id, NOW + 0.5)
    ((_, answer),) = links.outbox
    assert isinstance(answer, Hello)
    assert (answer.echo_ms, answer.held_ms) == (int((NOW + 16) * 1000), 0)
    links.connected(B.peer_id, NOW)
    links.outbox.clear()
    links.on_hello(hello(role=Role.VOLUNTEER, clock=NOW + 14), B.peer_id, NOW + 0.5)
    assert links.outbox == []


def test_a_late_hello_is_no_wrong_clock() -> None:
    links = connections()
    links.connected(A.peer_id, NOW)
    read_clock(links, A.peer_id, error=0.0, delay=40.0)
    assert links.clock_offset_s(NOW) is None
    read_clock(links, A.peer_id, error=0.0)
    read_clock(links, A.peer_id, error=-500.0, delay=400.0)
    assert links.clock_offset_s(NOW) is None, "the smallest round trip wins"


def test_a_full_table_makes_room_for_another_subnet() -> None:
    links = connections(max_links=8)
    flood = [PeerId(f"flood{index}") for index in range(8)]
    for peer in flood:
        links.subnets.note(peer, "/ip4/6.6.6.6/tcp/1")
        assert links.connected(peer, NOW)
    late = PeerId("flood8")
    links.subnets.note(late, "/ip4/6.6.6.7/tcp/1")
    assert not links.connected(late, NOW), "the same subnet waits"
    links.subnets.note(B.peer_id, "/ip4/7.7.7.7/tcp/1")
    assert links.connected(B.peer_id, NOW)
    assert links.take_displaced() == [flood[0]]
    assert links.connected(A.peer_id, NOW), "the learner never waits"
    assert len(links.links) == 8
    assert links.next_deadline() <= NOW + 2
    links.was_useful(flood[2], NOW + 20)
    links.handle_timer(NOW + 21)
    assert set(links.take_admitted()) == {late, flood[0], flood[1]}, "displaced peers wait in turn"
    assert links.take_displaced() == [flood[1], flood[3], flood[4], flood[5]]
    assert {A.peer_id, B.peer_id, flood[2]} <= set(links.links)


def test_a_peer_is_public_where_its_record_names_the_address_it_is_seen_at() -> None:
    links, seen = with_learner(), "/ip4/44.131.7.1/tcp/4001"
    circuit = f"/ip4/44.130.7.1/tcp/4001/p2p/{A.peer_id}/p2p-circuit"
    assert not links.is_public(B.peer_id)
    links.discovery.on_records([record(B, address=f"{seen}/p2p/{B.peer_id}")], NOW)
    assert not links.is_public(B.peer_id), "a record alone is a claim"
    links.note_address(B.peer_id, "/ip4/44.131.7.1/tcp/30001")
    assert not links.is_public(B.peer_id), "a router chose that port"
    links.note_address(B.peer_id, seen)
    assert links.is_public(B.peer_id)
    links.note_address(B.peer_id, circuit)
    assert not links.is_public(B.peer_id), "a circuit is in use now"


def test_many_neighbors_are_greeted_a_few_at_a_time() -> None:
    peers = [identity_of(f"n{number}").peer_id for number in range(5 * GREETINGS)]
    links = connections(hello_s=15.0)
    for peer in peers:
        links.connected(peer, NOW)
        links.links[peer].heard_at = NOW + 30
    links.outbox.clear()
    links._local.changed = True
    assert links.next_deadline() <= NOW
    at, counts = NOW + 1.0, []
    greeted: list[PeerId] = []
    for _ in range(5):
        links.handle_timer(at)
        hellos = [peer for peer, message in links.outbox if isinstance(message, Hello)]
        counts.append(len(hellos))
        greeted += hellos
        links.outbox.clear()
        assert links.next_deadline() >= at
        at += GREETING_PAUSE_S
    assert counts == [GREETINGS] * 5
    assert sorted(greeted) == sorted(peers), "each once"
    links.handle_timer(at)
    assert not links.outbox
    links.handle_timer(NOW + 15.9)
    assert not links.outbox, "the next round is a period after the last"
    links.handle_timer(NOW + 16.0)
    assert [peer for peer, _ in links.outbox] == sorted(greeted[:GREETINGS])
