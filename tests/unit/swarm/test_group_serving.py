"""Parts that a node sends: its own groups, those it passes on, and what it remembers of headers."""

from __future__ import annotations

import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.link_messages import Chunk, ChunkRefused
from p2prl.swarm.groups.headers import HEADERS_PER_BODY, KnownHeader, KnownHeaders
from tests.unit.swarm.group_bench import LEARNER, OTHER, PART, PARTS, THIRD, Bench, Group


def test_own_groups_are_served_from_memory_the_learner_first() -> None:
    bench, group = Bench(sending=3, sending_per_peer=2), Group(1)
    bench.own(group)
    for peer in (OTHER, LEARNER):
        for part in group.names[:3]:
            bench.bodies.on_request(peer, part, bench.now)
    bench.bodies.flush(bench.now)
    sent = [(to, message) for to, message in bench.bodies.outbox if isinstance(message, Chunk)]
    assert sent == [(LEARNER, group.parts[0]), (LEARNER, group.parts[1]), (OTHER, group.parts[0])]
    bench.bodies.outbox.clear()
    bench.bodies.upload_done(OTHER)
    assert bench.sent(Chunk) == [group.parts[1]]
    bench.bodies.upload_done(LEARNER)
    assert bench.sent(Chunk, LEARNER) == [group.parts[2]]


def test_a_body_no_longer_in_memory_is_asked_of_the_owner_once() -> None:
    bench, group, other = Bench(own_bytes=PARTS * PART), Group(1), Group(1, 1)
    bench.own(group)
    bench.own(other)
    for part in group.names[:3]:
        assert bench.bodies.on_request(LEARNER, part, bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(*part, 1_000) for part in group.names[:3]]
    assert bench.bodies.take_wanted() == [group.name]
    assert bench.bodies.take_wanted() == []
    bench.now += 2.0
    bench.bodies.on_request(LEARNER, group.names[0], bench.now)
    assert bench.bodies.take_wanted() == [group.name]
    bench.bodies.hold(group.name, group.body)
    bench.bodies.on_request(LEARNER, group.names[0], bench.now)
    assert group.parts[0] in bench.sent(Chunk)


def test_waiting_requests_of_one_peer_are_bounded() -> None:
    bench, group = Bench(sending=1, queued_per_peer=2), Group(1)
    bench.own(group)
    for part in (group.names[0], *group.names[:4]):
        bench.bodies.on_request(OTHER, part, bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(*part, 500) for part in group.names[2:4]]


def test_unknown_parts_are_for_the_chunk_relay() -> None:
    bench, group = Bench(), Group(1)
    assert not bench.bodies.on_request(OTHER, group.names[0], bench.now)
    assert not bench.bodies.on_part(OTHER, group.parts[0], bench.now)
    assert not bench.bodies.on_refused(OTHER, group.names[0], 0, bench.now)
    assert bench.sent(object) == []


def test_a_relay_passes_parts_on_and_stores_none() -> None:
    bench, group = Bench(window=2, pulled=3), Group(1)
    bench.announce(group)
    for part in group.names[:3]:
        bench.bodies.on_request(LEARNER, part, bench.now)
    assert bench.requests() == group.names[:2], "its window with the author, and the asker's with it"
    bench.bodies.on_request(OTHER, group.names[0], bench.now)
    assert bench.bodies.on_part(group.author, group.parts[0], bench.now)
    bench.bodies.flush(bench.now)
    assert sorted(to for to, message in bench.bodies.outbox if message == group.parts[0]) == sorted([LEARNER, OTHER])
    assert bench.store.size_bytes == 0


def test_a_relay_refuses_what_it_cannot_get() -> None:
    bench, group = Bench(), Group(1)
    bench.announce(group, OTHER)
    bench.bodies.on_request(OTHER, group.names[0], bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(*group.names[0], 0)], "only the asker has announced it"
    bench.announce(group)
    bench.bodies.allow_relaying(False)
    bench.bodies.on_request(OTHER, group.names[1], bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(*group.names[1], 0)], "the month's uploads are used up"
    bench.bodies.allow_relaying(True)
    bench.bodies.on_request(OTHER, group.names[2], bench.now)
    assert bench.requests(group.author) == group.names[2:3]
    bench.bodies.on_refused(group.author, group.names[2], 900, bench.now)
    assert bench.sent(ChunkRefused, OTHER) == [ChunkRefused(*group.names[2], 900)]
    bench.wait(1.0)
    bench.bodies.on_request(OTHER, group.names[2], bench.now)
    assert len(bench.requests(group.author)) == 1
    bench.bodies.remove_peer(group.author)
    assert bench.sent(ChunkRefused, OTHER) == [ChunkRefused(*group.names[2], 500)]


def test_parts_in_a_relay_are_bounded_over_all_peers() -> None:
    bench, group = Bench(window=PARTS, pulled=4), Group(1)
    bench.announce(group)
    for number, part in enumerate(group.names):
        bench.bodies.on_request((LEARNER, OTHER, THIRD)[number % 3], part, bench.now)
    assert len(bench.requests()) == 4


def test_a_body_that_many_headers_name_costs_a_request_a_bounded_number_of_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    of_body = KnownHeaders.of_body

    def counted(headers: KnownHeaders, root: Digest) -> list[KnownHeader]:
        found = of_body(headers, root)
        looks.append(len(found))
        return found

    monkeypatch.setattr(KnownHeaders, "of_body", counted)
    bench = Bench()
    for author in range(1, 97):
        bench.announce(Group(author, content=9), (OTHER, THIRD, LEARNER)[author % 3])
    looks.clear()
    for _ in range(256):
        assert bench.bodies.on_request(OTHER, Group(1, content=9).names[0], bench.now)
    assert max(looks) == HEADERS_PER_BODY
    assert len(looks) <= 256 * 4


def test_copies_through_one_link_do_not_displace_the_original_or_what_is_held() -> None:
    bench, original, wanted, own = (
        Bench(known_per_source=64),
        Group(1, content=9),
        Group(2, content=9),
        Group(3, content=9),
    )
    bench.announce(original)
    bench.own(own)
    bench.fetch(wanted, THIRD)
    for author in range(10, 60):
        bench.announce(Group(author, content=9), OTHER)
    found = {header.name for header in bench.bodies._headers.of_body(original.names[0][0])}
    assert {original.name, wanted.name, own.name} <= found
    assert len(found) == HEADERS_PER_BODY + 2


def test_a_header_that_copies_displaced_is_fetched_all_the_same() -> None:
    bench, group = Bench(known_per_source=64), Group(1, content=9)
    bench.announce(group, OTHER)
    for author in range(10, 60):
        bench.announce(Group(author, content=9), OTHER)
    assert group.name not in {header.name for header in bench.bodies._headers.of_body(group.names[0][0])}
    bench.fetch(group)
    bench.deliver(group)
    assert [header.name for header in bench.bodies.take_completed()] == [group.name]


@pytest.mark.parametrize("sources", [1, 4])
def test_headers_of_one_source_drop_each_other(sources: int) -> None:
    bench = Bench(known=8, known_per_source=3)
    old = Group(20)
    bench.announce(old, THIRD)
    flood = [Group(number, content=number) for number in range(12)]
    for number, group in enumerate(flood):
        bench.announce(group, Identity(bytes([200 + number % sources]) * 16).peer_id)
    bench.bodies.fetch(old.name, bench.now)
    assert bool(bench.requests()) == (sources == 1), "one link's flood drops only its own headers"
    bench.bodies.fetch(flood[-1].name, bench.now)
    assert len(bench.requests()) == 8


def test_a_wanted_header_and_own_ones_survive_a_flood() -> None:
    bench, own, wanted = Bench(known=4, known_per_source=4), Group(20), Group(21)
    bench.own(own)
    bench.fetch(wanted)
    for number in range(10):
        bench.announce(Group(number), Identity(bytes([200 + number]) * 16).peer_id)
    assert bench.requests(wanted.author)
    assert bench.bodies.on_request(LEARNER, own.names[0], bench.now)
    assert bench.sent(Chunk, LEARNER) == [own.parts[0]]


def test_only_own_groups_are_sent_past_the_months_budget() -> None:
    bench, fetched, own = Bench(), Group(1), Group(2)
    bench.own(own)
    bench.fetch(fetched)
    bench.deliver(fetched)
    bench.bodies.allow_relaying(False)
    for group in (fetched, own):
        bench.bodies.on_request(OTHER, group.names[0], bench.now)
    bench.bodies.flush(bench.now)
    assert [message for _, message in bench.bodies.outbox] == [
        ChunkRefused(*fetched.names[0], 0),
        own.parts[0],
    ]
