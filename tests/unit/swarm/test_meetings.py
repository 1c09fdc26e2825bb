"""Meetings: who asks whom, when, and what the third peer tells the two."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.identity import Identity, PeerId, public_key_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Meeting, MeetingRequest
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Dial, Meet
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.meetings import ALL_REQUESTS, REQUESTS, Meetings, is_direct_public
from tests.unit.swarm.peer_links import ME, NOW, A, B, connections, hello, introduction_of, record, with_learner

C = identity_of("C")
AT_A, AT_B = "/ip4/44.131.7.1/tcp/30001", "/ip4/44.132.7.1/tcp/4001"
CIRCUIT = f"/ip4/44.130.7.1/tcp/4001/p2p/{A.peer_id}/p2p-circuit"


def third(capacity: int = 100) -> Meetings:
    """A peer that sees A and B."""
    host = Meetings(C.peer_id, capacity=capacity)
    host.note(A.peer_id, AT_A)
    host.note(B.peer_id, f"{AT_B}/p2p/{B.peer_id}")
    return host


def ask(host: Meetings, now: float = NOW, links: tuple[PeerId, ...] = (A.peer_id, B.peer_id)) -> list[object]:
    return [*host.on_request(MeetingRequest(B.public_key), A.peer_id, links, now)]


def test_both_are_told_of_the_other_and_one_of_them_dials_whoever_asks() -> None:
    by_a = ask(third())
    assert by_a == [
        (A.peer_id, Meeting(B.public_key, AT_B, False)),
        (B.peer_id, Meeting(A.public_key, AT_A, True)),
    ]
    by_b = third().on_request(MeetingRequest(A.public_key), B.peer_id, (A.peer_id, B.peer_id), NOW)
    assert list(reversed(by_b)) == by_a, "two hosts that are asked by either name the same side"


def test_no_meeting_with_peers_that_are_not_linked_or_not_seen() -> None:
    assert not ask(third(), links=(A.peer_id,))
    host = Meetings(C.peer_id, capacity=9)
    host.note(A.peer_id, AT_A)
    assert not ask(host)
    host.note(B.peer_id, CIRCUIT)  # where its relay is says nothing about where it is
    assert not ask(host)
    host.note(B.peer_id, AT_B)
    assert ask(host)
    assert not host.on_request(MeetingRequest(A.public_key), A.peer_id, (A.peer_id,), NOW)
    assert not host.on_request(MeetingRequest(b"short"), A.peer_id, (A.peer_id,), NOW)


def test_two_peers_meet_over_a_family_that_both_have() -> None:
    a6, b6 = "/ip6/3000:1::1/tcp/4001", "/ip6/3000:2::1/tcp/4001"
    host = third()
    host.note(A.peer_id, a6)  # beside its IPv4 connection
    assert ask(host)[0] == (A.peer_id, Meeting(B.public_key, AT_B, False))
    host.note(B.peer_id, b6)
    assert ask(host) == [(A.peer_id, Meeting(B.public_key, b6, False)), (B.peer_id, Meeting(A.public_key, a6, True))]
    apart = Meetings(C.peer_id, capacity=9)
    apart.note(A.peer_id, AT_A)
    apart.note(B.peer_id, b6)
    assert not ask(apart)


def test_one_peer_gets_its_share_of_meetings_and_all_together_theirs() -> None:
    host = third()
    assert sum(bool(ask(host)) for _ in range(200)) == REQUESTS.burst
    assert ask(host, NOW + 1 / REQUESTS.per_s)
    assert not ask(host, NOW + 1 / REQUESTS.per_s)
    crowd = [identity_of(f"n{number}") for number in range(200)]
    host = third(capacity=1_000)
    served = 0
    for asker in crowd:
        host.note(asker.peer_id, AT_A)
        served += sum(
            bool(host.on_request(MeetingRequest(B.public_key), asker.peer_id, (B.peer_id,), NOW)) for _ in range(5)
        )
    assert served == ALL_REQUESTS.burst


def test_addresses_seen_are_bounded() -> None:
    host = third(capacity=2)
    host.note(C.peer_id, AT_A)
    assert not ask(host)  # A, seen first, is forgotten


def test_requests_wait_repeat_and_pause() -> None:
    own = Meetings(ME.peer_id, capacity=9)
    asked = []
    for tenth in range(10_000):
        now = tenth / 10
        asked += [(round(now), host) for host, _ in own.take_requests([B.peer_id], lambda: [A.peer_id], now)]
    times = [at for at, _ in asked]
    assert {host for _, host in asked} == {A.peer_id}
    assert times == [4, 16, 28, 52, 100, 196, 388, 772]
    for tenth in range(10_000, 30_000):
        times += [round(tenth / 10) for _ in own.take_requests([B.peer_id], lambda: [A.peer_id], tenth / 10)]
    assert times[8:] == [1372, 1972, 2572]


def test_a_wish_that_is_granted_starts_anew_later() -> None:
    own = Meetings(ME.peer_id, capacity=9)
    own.take_requests([B.peer_id], lambda: [A.peer_id], 0.0)
    assert own.take_requests([B.peer_id], list, 10.0) == []  # nobody to ask
    assert own.take_requests([B.peer_id], lambda: [B.peer_id], 13.0) == []  # not the peer itself
    assert own.take_requests([B.peer_id], lambda: [A.peer_id], 16.0) == [(A.peer_id, MeetingRequest(B.public_key))]
    assert own.take_requests([], lambda: [A.peer_id], 20.0) == []
    assert own.take_requests([B.peer_id], lambda: [A.peer_id], 40.0) == []
    assert len(own.take_requests([B.peer_id], lambda: [A.peer_id], 44.0)) == 1


def test_an_invitation_repeated_at_once_is_one() -> None:
    own = Meetings(ME.peer_id, capacity=2)
    assert own.is_new(A.peer_id, 0.0, by_learner=True)
    assert not own.is_new(A.peer_id, 7.9, by_learner=True)
    assert own.is_new(A.peer_id, 8.0, by_learner=True)
    assert not own.is_new(ME.peer_id, 0.0, by_learner=True)
    own.is_new(B.peer_id, 8.0, by_learner=True)
    own.is_new(C.peer_id, 8.0, by_learner=True)
    assert own.is_new(A.peer_id, 8.1, by_learner=True)  # forgotten: two are remembered


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        (AT_A, True),
        ("/ip6/2606:4700::1/tcp/4001", True),
        (CIRCUIT, False),
        ("/ip4/192.168.1.10/tcp/4001", False),
        ("/ip4/127.0.0.1/tcp/4001", False),
        ("/ip4/44.131.7.1/udp/4001", False),
        ("/dns4/example.org/tcp/4001", False),
        ("/ip4/44.131.7/tcp/4001", False),
        ("/ip4/44.131.7.1", False),
        ("", False),
    ],
)
def test_direct_public_addresses(address: str, is_one: bool) -> None:
    assert is_direct_public(address) is is_one


def test_an_introduced_peer_behind_a_router_is_asked_for_until_it_has_a_direct_link() -> None:
    links = with_learner()
    links.discovery.on_records([record(B, address="/ip4/192.168.7.7/tcp/4001")], NOW)
    links.discovery.on_introduction(introduction_of(B), int(NOW * 1000), NOW)
    links.handle_timer(NOW)
    links.outbox.clear()
    links.handle_timer(NOW + 5)
    request = (A.peer_id, MeetingRequest(B.public_key))
    assert request in links.outbox
    links.connected(B.peer_id, NOW + 6)
    links.note_address(B.peer_id, CIRCUIT)
    assert links.is_relayed(B.peer_id)
    links.outbox.clear()
    links.handle_timer(NOW + 17.5)
    assert request in links.outbox, "a circuit is no direct link"
    links.note_address(B.peer_id, AT_B)
    links.outbox.clear()
    links.handle_timer(NOW + 30)
    assert request not in links.outbox
    assert not links.is_relayed(B.peer_id)


def test_a_peer_that_can_be_dialed_is_not_asked_for() -> None:
    links = with_learner()
    links.discovery.on_records([record(B, address="/ip4/192.168.7.7/tcp/4001"), record(C)], NOW)
    links.discovery.on_introduction(introduction_of(B, C), int(NOW * 1000), NOW)
    assert links.discovery.unreached(NOW) == [B.peer_id]


def linked(links: Connections, who: Identity, role: Role, address: str) -> None:
    """A peer says hello; its connection comes from the address."""
    links.connected(who.peer_id, NOW)
    links.note_address(who.peer_id, address)
    links.on_hello(hello(role=role), who.peer_id, NOW)


def test_hosts_see_where_others_are_and_known_public_ones_come_first() -> None:
    links = connections(Role.VOLUNTEER)
    links.discovery.on_records([record(C, address=AT_B)], NOW)
    assert links._hosts() == []
    linked(links, A, Role.LEARNER, CIRCUIT)
    assert links._hosts() == [], "a learner behind a circuit sees nobody's address"
    linked(links, C, Role.SEEDER, AT_B)
    assert links._hosts() == [C.peer_id]
    linked(links, A, Role.LEARNER, AT_A)
    assert links._hosts() == [C.peer_id, A.peer_id], "a learner that a router hides sees fewer homes"
    links.discovery.on_records([record(A, address=AT_A)], NOW)
    assert links._hosts() == [A.peer_id, C.peer_id]
    linked(links, B, Role.VOLUNTEER, AT_B.replace("132", "133"))
    assert B.peer_id not in links._hosts(), "its record names no such address"


def test_a_host_that_brings_about_no_meeting_is_followed_by_the_next() -> None:
    own = Meetings(ME.peer_id, capacity=9)
    hosts = [A.peer_id, B.peer_id, C.peer_id]
    due = [own.take_requests([B.peer_id], lambda: hosts, float(now)) for now in range(40)]
    assert [host for requests in due for host, _ in requests] == [A.peer_id, C.peer_id, A.peer_id]


def test_a_learner_behind_a_router_is_met_by_those_that_it_introduces_nobody_to() -> None:
    links = connections(Role.VOLUNTEER)
    links.discovery.on_records([record(A, role=Role.LEARNER, address="/ip4/192.168.7.7/tcp/4001")], NOW)
    links.discovery.on_records([record(C, role=Role.SEEDER, address=AT_B)], NOW)
    linked(links, A, Role.LEARNER, CIRCUIT)
    linked(links, C, Role.SEEDER, AT_B)
    links.handle_timer(NOW)
    links.handle_timer(NOW + 5)
    assert (C.peer_id, MeetingRequest(A.public_key)) in links.outbox


def test_an_invitation_is_followed_once_at_public_addresses_and_within_the_budget() -> None:
    links = connections()
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW)
    assert links.commands == [Meet(B.peer_id, AT_B, True)]
    links.commands.clear()
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW + 1)
    links.on_meeting(Meeting(C.public_key, "/ip4/192.168.1.1/tcp/4001", False), A.peer_id, NOW)
    links.on_meeting(Meeting(C.public_key, "/ip4/44.1.1.1/tcp/22", False), A.peer_id, NOW)
    links.on_meeting(Meeting(ME.public_key, AT_A, False), A.peer_id, NOW)
    assert links.commands == []
    with pytest.raises(RemoteProtocolError):
        links.on_meeting(Meeting(b"short", AT_B, True), A.peer_id, NOW)
    victims = [identity_of(f"v{number}") for number in range(500)]
    for victim in victims:
        links.on_meeting(Meeting(public_key_of(victim.peer_id), "/ip4/44.9.9.9/tcp/4001", True), A.peer_id, NOW)
    assert len(links.commands) <= 24, "one subnet is not dialed without end"


def test_strangers_invitations_use_up_no_dials_and_no_meetings_of_others() -> None:
    """A is the learner; whoever is linked may send any number of invitations."""
    links = connections(local_run=False)
    for number in range(2_000):
        address = f"/ip4/44.{number % 250}.{number // 250}.9/tcp/4001"
        links.on_meeting(Meeting(identity_of(f"key {number}").public_key, address, True), C.peer_id, NOW)
    links.on_meeting(Meeting(B.public_key, "/ip4/45.1.1.1/tcp/4001", True), C.peer_id, NOW)
    assert len(links.commands) <= 32
    links.commands.clear()
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW)
    assert links.commands == [Meet(B.peer_id, AT_B, True)], "the learner's invitation"
    links.commands.clear()
    links.discovery.on_records([record(A, address="/ip4/46.1.1.1/tcp/4001")], NOW)
    assert [command.peer for command in links.commands if isinstance(command, Dial)] == [A.peer_id]


def test_an_introduced_peer_is_met_however_many_others_ask_the_learner_for_a_meeting() -> None:
    links = with_learner()
    links.discovery.on_introduction(introduction_of(B), int(NOW * 1000), NOW)
    links.commands.clear()
    for number in range(200):
        asker = Meeting(identity_of(f"key {number}").public_key, f"/ip4/44.{number}.0.9/tcp/4001", True)
        links.on_meeting(asker, A.peer_id, NOW)
    assert 0 < len(links.commands) <= 32
    links.commands.clear()
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW)
    assert links.commands == [Meet(B.peer_id, AT_B, True)]


def test_a_peer_with_a_direct_link_is_not_met_and_a_banned_one_neither() -> None:
    links = connections()
    links.connected(B.peer_id, NOW)
    links.note_address(B.peer_id, AT_B)
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW)
    assert links.commands == []
    links.note_address(B.peer_id, CIRCUIT)
    links.on_meeting(Meeting(B.public_key, AT_B, True), A.peer_id, NOW)
    assert links.commands == [Meet(B.peer_id, AT_B, True)]
    links.commands.clear()
    links.connected(C.peer_id, NOW)
    links.fault(C.peer_id, NOW, proven=True)
    links.on_meeting(Meeting(C.public_key, AT_A, False), A.peer_id, NOW)
    assert links.commands == []
