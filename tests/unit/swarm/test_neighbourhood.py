"""Links, the address book, liveness, clocks and bans."""

from __future__ import annotations

import itertools
import random

import pytest

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.peer_messages import Introduction, PeerRecord
from p2prl.sim.broadcast_swarm import identity_of
from p2prl.swarm.events import Dial, LookUp, Register
from p2prl.swarm.peers.connections import Connections, ConnectionsConfig, LocalPeer

RUN = Digest(bytes(range(32)))
NOW = 1_800_000_000.0
ME = identity_of("me")
A, B = identity_of("A"), identity_of("B")


def neighbourhood(role: Role = Role.VOLUNTEER, **config: float) -> Connections:
    """A node of the run whose learner is A."""
    dials = ConnectionsConfig(**config)  # type: ignore[arg-type]
    return Connections(LocalPeer(ME, role, RUN, learner=A.peer_id), random.Random(1), dials, NOW)


def record(
    who: Identity, *, role: int = Role.VOLUNTEER, at: float = NOW, run: bytes = RUN, address: str = "/ip4/1.2.3.4"
) -> bytes:
    return seal(who, PeerRecord(int(role), (address,), 0), run=run, now=at)


def hello(*, role: int = Role.LEARNER, run: bytes = RUN, clock: float = NOW, height: int = 0) -> Hello:
    return Hello(limits.WIRE_VERSION, run, int(role), int(clock * 1000), -1, height)


def dialled(links: Connections) -> list[PeerId]:
    peers = [command.peer for command in links.commands if isinstance(command, Dial)]
    links.commands.clear()
    return peers


def test_learners_are_dialled_first_and_only_while_there_is_room() -> None:
    links = neighbourhood(max_neighbours=3)
    strangers = [identity_of(f"v{i}") for i in range(9)]
    links.on_records([*(record(s) for s in strangers), record(A, role=Role.LEARNER)], NOW)
    order = dialled(links)
    assert len(order) == 3
    assert order[0] == A.peer_id
    for stranger in strangers[:3]:
        links.connected(stranger.peer_id, NOW)
    links.on_records([record(B)], NOW)
    assert dialled(links) == [], "full"


def test_whoever_merely_calls_itself_a_learner_is_neither_preferred_nor_enough() -> None:
    strangers = [identity_of(f"v{i}") for i in range(30)]
    links = neighbourhood(max_neighbours=1)
    links.on_records([*(record(s, role=Role.LEARNER) for s in strangers), record(A, role=Role.LEARNER)], NOW)
    assert dialled(links) == [A.peer_id]
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=Role.LEARNER), B.peer_id, NOW)
    links.commands.clear()
    links.refresh(NOW + 1)
    assert [type(command) for command in links.commands] == [Register, LookUp], "the learner is still looked for"


def with_learner(**config: float) -> Connections:
    links = neighbourhood(Role.VOLUNTEER, **config)
    links.connected(A.peer_id, NOW)
    links.on_hello(hello(), A.peer_id, NOW)
    return links


def named(*others: Identity, to: Identity = ME) -> Introduction:
    return Introduction(to.public_key, tuple(other.public_key for other in others))


def test_links_are_kept_free_for_those_the_learner_will_name_but_not_for_ever() -> None:
    strangers = [record(identity_of(f"v{i}")) for i in range(30)]
    links = with_learner(max_neighbours=16, strangers=8, introduction_s=15.0)
    links.on_records(strangers, NOW)
    assert len(dialled(links)) == 7, "eight links, with the learner's"
    links.handle_timer(NOW + 14)
    assert len(dialled(links)) == 0
    links.handle_timer(NOW + 15)
    assert len(dialled(links)) == 15, "no name came: the rest at random, and the first dials have run out of time"
    alone = neighbourhood(max_neighbours=16, strangers=8, introduction_s=15.0)
    alone.on_records(strangers, NOW + 15)
    assert len(dialled(alone)) == 16, "without the learner there is nobody to wait for any longer"
    alone.connected(A.peer_id, NOW + 40)
    alone.handle_timer(NOW + 41)
    assert len(dialled(alone)) == 7, "now it may name some"


def test_the_named_are_dialled_first_and_beyond_the_links_there_are() -> None:
    friends = [identity_of(f"f{i}") for i in range(5)]
    links = with_learner(max_neighbours=3, strangers=3)
    for index in range(4):
        links.connected(identity_of(f"v{index}").peer_id, NOW)
    links.on_records([record(who) for who in (*friends, *(identity_of(f"w{i}") for i in range(20)))], NOW)
    assert dialled(links) == [], "full"
    links.on_introduction(named(*friends), 1, NOW)
    assert sorted(dialled(links)) == sorted(friend.peer_id for friend in friends)


def test_a_learner_that_names_others_again_and_again_does_not_fill_a_node_with_links() -> None:
    links = with_learner(max_neighbours=16, max_with_named=40)
    links.on_records([record(identity_of(f"v{index}")) for index in range(100)], NOW)
    for round_ in range(6):
        links.on_introduction(named(*(identity_of(f"v{12 * round_ + index}") for index in range(12))), round_ + 1, NOW)
        for peer in dialled(links):
            links.connected(peer, NOW)
    assert len(links.links) == 40


def test_addresses_of_the_named_are_looked_up() -> None:
    links = with_learner(max_neighbours=1)
    links.on_introduction(named(B, ME), 1, NOW)
    assert [type(c) for c in links.commands] == [LookUp]
    links.commands.clear()
    links.refresh(NOW + 3)
    assert [type(c) for c in links.commands] == [Register, LookUp], "still missing"
    links.commands.clear()
    links.on_records([record(B)], NOW + 3)
    assert dialled(links) == [B.peer_id]
    links.refresh(NOW + 6)
    assert [type(c) for c in links.commands] == [Register], "we are not looked for ourselves"


def test_an_introduction_for_another_peer_is_a_fault_and_an_older_one_is_nothing() -> None:
    links = with_learner()
    links.on_records([record(B)], NOW)
    links.commands.clear()
    with pytest.raises(RemoteProtocolError, match="another peer"):
        links.on_introduction(named(B, to=B), 5, NOW)
    links.on_introduction(named(B), 5, NOW)
    for sent_ms in (4, 5):
        with pytest.raises(StaleWorkError):
            links.on_introduction(named(A), sent_ms, NOW)


def test_dials_back_off_and_a_failed_dial_leaves_the_others_link_alone() -> None:
    links = neighbourhood()
    links.on_records([record(A)], NOW)
    assert dialled(links) == [A.peer_id]
    links.dial_failed(A.peer_id, NOW)
    links.handle_timer(NOW + 0.5)
    assert dialled(links) == []
    assert links.connected(A.peer_id, NOW + 1)
    links.dial_failed(A.peer_id, NOW + 1)
    assert A.peer_id in links.links
    assert links.lost(A.peer_id, NOW + 2)
    assert not links.lost(A.peer_id, NOW + 2)


def test_gaps_between_dials_of_a_dead_peer_grow_to_a_minute() -> None:
    links = neighbourhood()
    links.on_records([record(A)], NOW)
    times = []
    for tenth in range(6000):
        now = NOW + tenth / 10
        links.handle_timer(now)
        if dialled(links):
            times.append(now)
            links.dial_failed(A.peer_id, now)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert 8 <= len(times) <= 40
    assert max(gaps) <= 62.1
    assert max(gaps) > 20


def test_forged_foreign_stale_and_senseless_records_are_skipped() -> None:
    links = neighbourhood()
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
    links.on_records(bad, NOW)
    assert dialled(links) == []
    links.on_records([*bad, good], NOW)
    assert dialled(links) == [A.peer_id]


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    links = neighbourhood()
    links.on_records([record(A, at=NOW, address="/ip4/9.9.9.9")], NOW)
    links.commands.clear()
    links.on_records([record(A, at=NOW - 60, address="/ip4/6.6.6.6")], NOW)
    links.handle_timer(NOW + 20)
    dials = [c for c in links.commands if isinstance(c, Dial)]
    assert dials
    assert all(d.addresses == ("/ip4/9.9.9.9",) for d in dials)


def test_the_address_book_forgets_and_is_bounded() -> None:
    links = neighbourhood(max_known=20, max_neighbours=1000, strangers=1000, forget_s=900.0)
    links.on_records([record(identity_of(f"old{i}"), at=NOW) for i in range(30)], NOW)
    assert len(dialled(links)) == 20
    links.on_records([record(A, at=NOW + 1000)], NOW + 1000)
    assert dialled(links) == [A.peer_id], "the dead are no longer dialled"


def test_a_flood_of_fresh_records_does_not_push_out_the_learner_and_those_it_named() -> None:
    links = neighbourhood(max_known=20, max_neighbours=1, strangers=1)
    links.on_records([record(who) for who in (A, B)], NOW)
    links.on_introduction(named(B), 1, NOW)
    links.on_records([record(identity_of(f"flood{i}"), at=NOW + 20) for i in range(60)], NOW + 20)
    assert links.addresses_of(A.peer_id)
    assert links.addresses_of(B.peer_id)


def test_links_opened_by_others_are_bounded() -> None:
    links = neighbourhood(max_links=5)
    took = [links.connected(PeerId(f"p{i}"), NOW) for i in range(9)]
    assert took == [True] * 5 + [False] * 4
    assert not links.connected(ME.peer_id, NOW)


def test_the_silent_are_dropped() -> None:
    links = neighbourhood(silence_s=50.0)
    links.connected(A.peer_id, NOW)
    links.connected(B.peer_id, NOW)
    links.links[B.peer_id].heard_at = NOW + 30
    assert links.handle_timer(NOW + 51) == [A.peer_id]
    assert list(links.links) == [B.peer_id]


def test_the_banned_are_neither_heard_nor_dialled_until_their_time_is_up() -> None:
    links = neighbourhood(ban_s=600.0)
    links.on_records([record(A)], NOW)
    links.commands.clear()
    links.ban(A.peer_id, NOW)
    assert links.is_banned(A.peer_id, NOW + 599)
    assert not links.connected(A.peer_id, NOW + 599)
    links.on_records([record(A, at=NOW + 500)], NOW + 500)
    assert dialled(links) == []
    assert not links.is_banned(A.peer_id, NOW + 601)
    links.on_records([record(A, at=NOW + 601)], NOW + 601)
    assert dialled(links) == [A.peer_id]


def test_three_faults_or_one_proof_ban_and_a_flood_of_keys_fills_no_memory() -> None:
    links = neighbourhood(max_known=50)
    assert [links.fault(A.peer_id, NOW + second, proven=False) for second in range(3)] == [False, False, True]
    assert links.is_banned(A.peer_id, NOW + 3)
    assert links.fault(B.peer_id, NOW, proven=True)
    for number in range(500):
        links.fault(PeerId(f"p{number}"), NOW + number, proven=False)
        links.ban(PeerId(f"q{number}"), NOW + 10 * number)
    assert len(links._faults) <= 50
    assert len(links._banned) <= 50
    assert links.is_banned(PeerId("q499"), NOW + 4990)


def test_hellos_go_out_on_a_link_on_time_and_on_change() -> None:
    links = neighbourhood(hello_s=15.0)
    links.connected(A.peer_id, NOW)
    (first,) = links.outbox
    assert first == (A.peer_id, Hello(limits.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(NOW * 1000), -1, 0))
    links.outbox.clear()
    links.handle_timer(NOW + 14)
    assert links.outbox == []
    links.me.changed = True
    links.handle_timer(NOW + 14.5)
    links.handle_timer(NOW + 30)
    assert len(links.outbox) == 2


def test_a_hello_of_another_run_ends_the_link_and_an_unknown_role_is_a_fault() -> None:
    links = neighbourhood()
    links.connected(A.peer_id, NOW)
    assert links.on_hello(hello(run=bytes(32)), A.peer_id, NOW) is None
    assert A.peer_id not in links.links
    links.connected(B.peer_id, NOW)
    with pytest.raises(RemoteProtocolError):
        links.on_hello(hello(role=99), B.peer_id, NOW)


def test_one_wrong_clock_among_many_is_its_own_and_ours_is_noticed() -> None:
    links = neighbourhood()
    for index in range(5):
        peer = PeerId(f"p{index}")
        links.connected(peer, NOW)
        links.on_hello(hello(clock=NOW + (86_400 if index == 0 else 0.5)), peer, NOW)
    assert links.clock_offset_s() is None
    for index in range(1, 4):
        links.on_hello(hello(clock=NOW + 120), PeerId(f"p{index}"), NOW)
    assert links.clock_offset_s() == pytest.approx(120)


def test_the_directory_is_asked_while_something_is_missing() -> None:
    links = neighbourhood(refresh_s=30.0, eager_refresh_s=3.0, max_neighbours=2)
    assert links.next_deadline() == NOW
    links.handle_timer(NOW)
    assert [type(c) for c in links.commands] == [Register, LookUp]
    assert links.next_deadline() == NOW + 3
    links.commands.clear()
    for who, role in ((A, Role.LEARNER), (B, Role.VOLUNTEER)):
        links.connected(who.peer_id, NOW)
        links.on_hello(hello(role=role), who.peer_id, NOW)
    links.refresh(NOW + 3)
    assert [type(c) for c in links.commands] == [Register], "full and with a learner: nothing to look for"
    assert links.next_deadline() == NOW + 15
    links.lost(A.peer_id, NOW + 4)
    assert links.next_deadline() == NOW + 7


def test_new_addresses_are_registered_at_once_and_old_ones_are_no_news() -> None:
    links = neighbourhood()
    links.handle_timer(NOW)
    links.readdress(("/ip4/1.1.1.1",), NOW + 1)
    assert links.next_deadline() == NOW + 1
    links.handle_timer(NOW + 1)
    links.commands.clear()
    links.readdress(("/ip4/1.1.1.1",), NOW + 2)
    assert links.next_deadline() > NOW + 2


def test_a_record_outlives_two_missed_refreshes() -> None:
    links = neighbourhood()
    links.refresh(NOW)
    (register,) = [c for c in links.commands if isinstance(c, Register)]
    assert register.expires_at - NOW >= 2 * ConnectionsConfig().refresh_s
