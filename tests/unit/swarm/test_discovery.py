"""Peer discovery: the address book, dialing, introductions, lookups."""

from __future__ import annotations

import itertools

import pytest

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Dial, LookUp, Register
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from tests.unit.swarm.peer_links import (
    ME,
    NOW,
    RUN,
    A,
    B,
    connections,
    dialed,
    hello,
    introduction_of,
    record,
    with_learner,
)


def test_learner_is_dialed_first_within_the_link_limit() -> None:
    links = connections(max_neighbors=3)
    strangers = [identity_of(f"v{i}") for i in range(9)]
    links.discovery.on_records([*(record(s) for s in strangers), record(A, role=Role.LEARNER)], NOW)
    order = dialed(links)
    assert len(order) == 3
    assert order[0] == A.peer_id
    for peer in order:
        links.connected(peer, NOW, dialed=True)
    links.discovery.on_records([record(B)], NOW)
    assert dialed(links) == [], "full"


def test_a_false_learner_is_not_preferred() -> None:
    strangers = [identity_of(f"v{i}") for i in range(30)]
    links = connections(max_neighbors=1)
    links.discovery.on_records([*(record(s, role=Role.LEARNER) for s in strangers), record(A, role=Role.LEARNER)], NOW)
    assert dialed(links) == [A.peer_id]
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=Role.LEARNER), B.peer_id, NOW)
    links.commands.clear()
    links.refresh(NOW + 1)
    assert [type(command) for command in links.commands] == [Register, LookUp], "the learner is still looked for"


def test_links_wait_for_introductions_for_a_while() -> None:
    strangers = [record(identity_of(f"v{i}")) for i in range(30)]
    links = with_learner(max_neighbors=16, random_links=8, introduction_wait_s=15.0, own_links=7)
    links.discovery.on_records(strangers, NOW)
    assert len(dialed(links)) == 7, "eight links, with the learner's"
    links.handle_timer(NOW + 14)
    assert len(dialed(links)) == 0
    links.handle_timer(NOW + 15)
    assert len(dialed(links)) == 15, "no introduction came: the rest at random, and the first dials have timed out"
    alone = connections(max_neighbors=16, random_links=8, introduction_wait_s=15.0, own_links=7)
    alone.discovery.on_records(strangers, NOW + 15)
    assert len(dialed(alone)) == 16, "without the learner there is no introduction to wait for"
    alone.connected(A.peer_id, NOW + 40)
    alone.handle_timer(NOW + 41)
    assert len(dialed(alone)) == 7, "now it may introduce some"


def test_introduced_peers_are_dialed_first_and_beyond_the_limit() -> None:
    friends = [identity_of(f"f{i}") for i in range(5)]
    links = with_learner(max_neighbors=3, random_links=3)
    for index in range(4):
        links.connected(identity_of(f"v{index}").peer_id, NOW, dialed=True)
    links.discovery.on_records([record(who) for who in (*friends, *(identity_of(f"w{i}") for i in range(20)))], NOW)
    assert dialed(links) == [], "full"
    links.discovery.on_introduction(introduction_of(*friends), 1, NOW)
    assert sorted(dialed(links)) == sorted(friend.peer_id for friend in friends)


def test_repeated_introductions_keep_links_bounded() -> None:
    links = with_learner(max_neighbors=16, max_with_introduced=40)
    everybody = [record(identity_of(f"v{index}"), address=f"/ip4/1.2.{index}.4/tcp/4001") for index in range(100)]
    for first in range(0, 100, 10):  # as in a run of few
        links.discovery.on_records(everybody[first : first + 10], NOW)
    for round_ in range(6):
        links.discovery.on_introduction(
            introduction_of(*(identity_of(f"v{12 * round_ + index}") for index in range(12))), round_ + 1, NOW
        )
        for peer in dialed(links):
            links.connected(peer, NOW, dialed=True)
    assert len(links.links) == 40


def test_addresses_of_introduced_peers_are_looked_up() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    links.discovery.on_introduction(introduction_of(B, ME), 1, NOW)
    assert [type(c) for c in links.commands] == [LookUp]
    links.commands.clear()
    links.refresh(NOW + 3)
    assert [type(c) for c in links.commands] == [Register, LookUp], "still missing"
    links.commands.clear()
    links.discovery.on_records([record(B)], NOW + 3)
    assert dialed(links) == [B.peer_id]
    links.refresh(NOW + 6)
    assert [type(c) for c in links.commands] == [Register], "our own address is not missing"


def test_misdirected_and_stale_introductions() -> None:
    links = with_learner()
    links.discovery.on_records([record(B)], NOW)
    links.commands.clear()
    with pytest.raises(RemoteProtocolError, match="another peer"):
        links.discovery.on_introduction(introduction_of(B, to=B), 5, NOW)
    links.discovery.on_introduction(introduction_of(B), 5, NOW)
    for sent_ms in (4, 5):
        with pytest.raises(StaleWorkError):
            links.discovery.on_introduction(introduction_of(A), sent_ms, NOW)


def test_dials_back_off_and_spare_incoming_links() -> None:
    links = connections()
    links.discovery.on_records([record(A)], NOW)
    assert dialed(links) == [A.peer_id]
    links.dial_failed(A.peer_id, NOW)
    links.handle_timer(NOW + 0.5)
    assert dialed(links) == []
    assert links.connected(A.peer_id, NOW + 1)
    links.dial_failed(A.peer_id, NOW + 1)
    assert A.peer_id in links.links
    assert links.lost(A.peer_id, NOW + 2)
    assert not links.lost(A.peer_id, NOW + 2)


def test_dial_backoff_grows_to_a_minute() -> None:
    links = connections()
    links.discovery.on_records([record(A)], NOW)
    times = []
    for tenth in range(6000):
        now = NOW + tenth / 10
        links.handle_timer(now)
        if dialed(links):
            times.append(now)
            links.dial_failed(A.peer_id, now)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert 8 <= len(times) <= 40
    assert max(gaps) <= 62.1
    assert max(gaps) > 20


def test_unusable_records_are_skipped() -> None:
    links = connections()
    good = record(A)
    forged = bytearray(good)
    forged[-1] ^= 1
    bad = [
        bytes(forged),
        record(A, run=bytes(32)),
        record(A, at=NOW - limits.PEER_RECORD_TTL_S - 1),
        record(A, at=NOW + limits.MAX_CLOCK_SKEW_S + 1),
        record(A, role=77),
        record(A, address="/ip4/\x00"),
        record(ME),
        seal(A, LedgerHead(0, bytes(32), 0, False), run=RUN, now=NOW),
        b"junk",
    ]
    links.discovery.on_records(bad, NOW)
    assert dialed(links) == []
    links.discovery.on_records([*bad, good], NOW)
    assert dialed(links) == [A.peer_id]


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    links = connections()
    links.discovery.on_records([record(A, at=NOW, address="/ip4/9.9.9.9/tcp/4001")], NOW)
    links.commands.clear()
    links.discovery.on_records([record(A, at=NOW - 60, address="/ip4/6.6.6.6/tcp/4001")], NOW)
    links.handle_timer(NOW + 20)
    dials = [c for c in links.commands if isinstance(c, Dial)]
    assert dials
    assert all(d.addresses == ("/ip4/9.9.9.9/tcp/4001",) for d in dials)


def test_address_book_is_bounded_and_expires() -> None:
    links = connections(max_known=20, max_neighbors=1000, random_links=1000, forget_s=900.0)
    links.discovery.on_records([record(identity_of(f"old{i}"), at=NOW) for i in range(30)], NOW)
    assert len(dialed(links)) == 20
    links.discovery.on_records([record(A, at=NOW + 1000)], NOW + 1000)
    assert dialed(links) == [A.peer_id], "expired peers are no longer dialed"


def test_a_record_flood_keeps_the_learner_and_introduced_peers() -> None:
    links = connections(max_known=20, max_neighbors=1, random_links=1)
    links.discovery.on_records([record(who) for who in (A, B)], NOW)
    links.discovery.on_introduction(introduction_of(B), 1, NOW)
    links.discovery.on_records([record(identity_of(f"flood{i}"), at=NOW + 20) for i in range(60)], NOW + 20)
    assert links.discovery.addresses_of(A.peer_id)
    assert links.discovery.addresses_of(B.peer_id)


def test_directory_is_asked_while_links_are_missing() -> None:
    links = connections(refresh_s=30.0, eager_refresh_s=3.0, max_neighbors=2, own_links=0)
    assert links.next_deadline() == NOW
    links.handle_timer(NOW)
    assert [type(c) for c in links.commands] == [Register, LookUp]
    assert links.next_deadline() == NOW + 3
    links.commands.clear()
    for who, role in ((A, Role.LEARNER), (B, Role.VOLUNTEER)):
        links.connected(who.peer_id, NOW)
        links.on_hello(hello(role=role), who.peer_id, NOW)
    links.refresh(NOW + 3)
    assert [type(c) for c in links.commands] == [Register], "full and with a learner: no lookup"
    assert links.next_deadline() == NOW + 15
    links.lost(A.peer_id, NOW + 4)
    assert links.next_deadline() == NOW + 7


def test_new_addresses_are_registered_at_once() -> None:
    links = connections()
    links.handle_timer(NOW)
    links.discovery.set_addresses(("/ip4/1.1.1.1",), NOW + 1)
    assert links.next_deadline() == NOW + 1
    links.handle_timer(NOW + 1)
    links.commands.clear()
    links.discovery.set_addresses(("/ip4/1.1.1.1",), NOW + 2)
    assert links.next_deadline() > NOW + 2


def test_a_record_outlives_two_missed_refreshes() -> None:
    links = connections()
    links.refresh(NOW)
    (register,) = [c for c in links.commands if isinstance(c, Register)]
    assert register.expires_at - NOW >= 2 * ConnectionsConfig().refresh_s


def test_links_that_others_open_do_not_replace_own_ones() -> None:
    links = connections(own_links=8)
    for index in range(200):
        links.connected(identity_of(f"inbound{index}").peer_id, NOW)
    links.discovery.on_records([record(identity_of(f"v{index}")) for index in range(20)], NOW + 10)
    order = dialed(links)
    assert len(order) == 6, "an introduction is awaited"
    for peer in order:
        links.connected(peer, NOW + 10, dialed=True)
    links.refresh(NOW + 20)
    links.handle_timer(NOW + 20)
    assert any(isinstance(command, LookUp) for command in links.commands)
    assert len(dialed(links)) == 2


def test_a_node_that_was_alone_publishes_its_record_at_once() -> None:
    links = connections(Role.LEARNER)
    links.handle_timer(NOW)
    links.commands.clear()
    links.connected(B.peer_id, NOW + 1, dialed=True)
    links.handle_timer(NOW + 1)
    assert Register in [type(command) for command in links.commands]
    links.commands.clear()
    links.connected(identity_of("C").peer_id, NOW + 2, dialed=True)
    links.handle_timer(NOW + 2)
    assert Register not in [type(command) for command in links.commands], "it has neighbors, who pass it on"


@pytest.mark.parametrize(("who", "dials"), [(A, [A.peer_id]), (B, [])])
def test_a_new_address_of_the_learner_is_dialed_at_once_and_a_strangers_is_not(
    who: Identity, dials: list[PeerId]
) -> None:
    links = connections()
    at = NOW
    for turn in range(6):  # its old address fails again and again
        links.discovery.on_records([record(who, at=at)], at)
        assert dialed(links) == [who.peer_id], turn
        links.dial_failed(who.peer_id, at)
        at += 70
    links.discovery.on_records([record(who, at=at)], at)
    assert dialed(links) == [who.peer_id]
    links.dial_failed(who.peer_id, at)
    links.discovery.on_records([record(who, at=at + 0.5, address="/ip4/9.8.7.6/tcp/4001")], at + 0.5)
    assert dialed(links) == dials


def test_a_node_with_all_its_links_reads_records_every_ten_minutes() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    lookups = []
    for second in range(0, 3_000, 30):
        links.commands.clear()
        links.refresh(NOW + second)
        lookups += [second] * any(isinstance(command, LookUp) for command in links.commands)
    assert lookups == [600, 1200, 1800, 2400]
