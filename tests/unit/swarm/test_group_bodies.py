"""Bodies of large groups at one node: windows, budgets, refusals, and parts passed on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.link_messages import Chunk, ChunkRefused, ChunkRequest
from p2prl.protocol.manifests import blob_of
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.swarm.groups.config import GroupBodyConfig
from p2prl.swarm.groups.group_bodies import GroupBodies
from p2prl.testing.memory_blobs import MemoryBlobs

NOW, PART = 1_800_000_000.0, limits.GROUP_PART_BYTES
PARTS = 20
LEARNER, OTHER, THIRD = (Identity(bytes([n]) * 16).peer_id for n in range(100, 103))


class Group:
    """A header of some author, with the body it names."""

    def __init__(self, author: int, slot: int = 0, content: int | None = None) -> None:
        key = Identity(bytes([author]) * 16)
        self.author = key.peer_id
        number = author * 7 + slot if content is None else content
        self.parts = [bytes([number % 251, index]) + bytes(PART - 2) for index in range(PARTS)]
        self.body = b"".join(self.parts)
        header = GroupHeader(0, bytes(32), slot, blob_of(self.body, PART))
        self.opened: Opened = open_envelope(seal(key, header, run=bytes(32), now=NOW), now=NOW)
        self.name = self.opened.digest
        self.names = [chunk_digest(part) for part in self.parts]


class Bench:
    """One node's bodies, with what they send."""

    def __init__(self, **config: object) -> None:
        self.store = MemoryBlobs()
        self.bodies = GroupBodies(
            self.store, GroupBodyConfig(**config), is_learner=lambda peer: peer == LEARNER  # type: ignore[arg-type]
        )  # fmt: skip
        self.now = NOW

    def sent(self, kind: type, peer: PeerId | None = None) -> Sequence[object]:
        """Messages of a kind sent since the last call, to one peer or all."""
        self.bodies.flush(self.now)
        found = [m for to, m in self.bodies.outbox if isinstance(m, kind) and peer in (None, to)]
        self.bodies.outbox.clear()
        return found

    def requests(self, peer: PeerId | None = None) -> list[Digest]:
        return [Digest(m.chunk) for m in self.sent(ChunkRequest, peer)]  # type: ignore[attr-defined]

    def announce(self, group: Group, source: PeerId | None = None) -> None:
        self.bodies.note(group.opened, group.author if source is None else source)

    def fetch(self, group: Group, source: PeerId | None = None) -> None:
        self.announce(group, source)
        self.bodies.fetch(group.name, self.now)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.bodies.next_deadline()) <= until:
            self.now = max(due, self.now)
            self.bodies.handle_timer(self.now)
        self.now = until

    def deliver(self, group: Group) -> None:
        """The author answers every request until none comes."""
        while wanted := self.requests(group.author):
            for part in wanted:
                assert self.bodies.on_part(group.author, group.parts[group.names.index(part)], self.now)

    def own(self, group: Group) -> None:
        self.bodies.hold(group.name, group.body)
        self.bodies.note(group.opened, None)


def test_requests_keep_to_the_window_and_follow_the_parts() -> None:
    bench, group = Bench(window=3), Group(1)
    bench.fetch(group)
    assert bench.requests() == group.names[:3]
    assert bench.requests() == []
    bench.bodies.on_part(group.author, group.parts[1], bench.now)
    assert bench.requests() == group.names[3:4]
    bench.bodies.on_part(group.author, group.parts[1], bench.now)
    assert bench.requests() == [], "a part that comes twice makes no room"


def test_a_complete_body_is_reported_and_read_again_after_a_repeat() -> None:
    bench, group = Bench(), Group(1)
    bench.fetch(group)
    bench.deliver(group)
    assert [header.name for header in bench.bodies.take_completed()] == [group.name]
    assert bench.store.by_root(blob_of(group.body, PART).root) == group.body
    assert bench.bodies.take_completed() == []
    bench.bodies.fetch(group.name, bench.now)
    assert [header.name for header in bench.bodies.take_completed()] == [group.name]


def test_parts_on_disk_are_not_requested_again() -> None:
    first, group = Bench(window=5), Group(1)
    first.fetch(group)
    for part in first.requests():
        first.bodies.on_part(group.author, group.parts[group.names.index(part)], first.now)
    second = Bench(window=PARTS)
    second.bodies = GroupBodies(first.store, GroupBodyConfig(window=PARTS), is_learner=lambda _: False)
    second.fetch(group)
    assert second.requests() == group.names[5:]


def test_nothing_is_fetched_that_the_owner_does_not_want() -> None:
    bench, group = Bench(), Group(1)
    bench.announce(group)
    assert bench.sent(object) == []
    assert math.isinf(bench.bodies.next_deadline())
    bench.bodies.fetch(Group(2).name, bench.now)
    assert bench.sent(object) == [], "a header that is not known"


def test_the_author_comes_first_then_whoever_announced_the_header() -> None:
    bench, group = Bench(window=2), Group(1)
    bench.announce(group, OTHER)
    bench.announce(group, THIRD)
    bench.fetch(group)
    assert len(bench.requests(group.author)) == 2
    bench.bodies.remove_peer(group.author)
    bench.bodies.flush(bench.now)
    asked = [to for to, message in bench.bodies.outbox if isinstance(message, ChunkRequest)]
    assert sorted(asked) == sorted([OTHER, OTHER, THIRD, THIRD])


def test_a_source_without_the_part_is_not_asked_again_and_a_busy_one_later() -> None:
    bench, group = Bench(window=1), Group(1)
    bench.fetch(group)
    (first,) = bench.requests()
    assert bench.bodies.on_refused(group.author, first, 700, bench.now)
    assert bench.requests() == []
    bench.wait(0.6)
    assert bench.requests() == []
    bench.wait(0.2)
    (again,) = bench.requests()
    assert bench.bodies.on_refused(group.author, again, 0, bench.now)
    bench.wait(60.0)
    assert bench.requests() == []
    bench.announce(group)
    assert len(bench.requests()) == 1, "it announced the header again"


def test_refusals_of_others_change_nothing() -> None:
    bench, group = Bench(window=1), Group(1)
    bench.fetch(group)
    (first,) = bench.requests()
    assert not bench.bodies.on_refused(OTHER, first, 0, bench.now)
    assert not bench.bodies.on_refused(group.author, group.names[5], 0, bench.now)
    bench.bodies.on_part(group.author, group.parts[0], bench.now)
    assert len(bench.requests()) == 1


def test_silence_ends_a_request_after_half_a_minute() -> None:
    bench, group = Bench(window=2), Group(1)
    bench.fetch(group)
    bench.requests()
    bench.wait(20.0)
    bench.bodies.on_part(group.author, group.parts[0], bench.now)
    assert bench.requests() == group.names[2:3]
    bench.wait(29.0)
    assert bench.requests() == [], "it has sent a part since"
    bench.wait(6.1)
    assert sorted(bench.requests()) == sorted(group.names[1:3])
    assert bench.bodies.on_part(group.author, group.parts[1], bench.now), "a late answer is no fault"


def test_bytes_that_were_not_requested_are_not_taken() -> None:
    bench, group = Bench(window=1), Group(1)
    bench.fetch(group)
    bench.requests()
    assert not bench.bodies.on_part(OTHER, group.parts[0], bench.now)
    assert not bench.bodies.on_part(group.author, group.parts[0][:-1] + b"x", bench.now)
    assert not bench.bodies.on_part(group.author, group.parts[3], bench.now)
    assert bench.store.size_bytes == 0


def test_one_author_gets_two_bodies_at_a_time() -> None:
    bench = Bench(author_bytes=2 * PARTS * PART, window=1)
    groups = [Group(1, slot) for slot in range(3)]
    for group in groups:
        bench.fetch(group)
    assert len(bench.store._chunks) == 2
    for part in groups[0].parts:
        bench.requests()
        bench.bodies.on_part(groups[0].author, part, bench.now)
    assert len(bench.bodies.take_completed()) == 1
    bench.bodies.fetch(groups[2].name, bench.now)
    assert len(bench.store._chunks) == 2, "complete, but the owner has not read it"
    bench.bodies.release(groups[0].name, bench.now)
    bench.bodies.fetch(groups[2].name, bench.now)
    assert len(bench.store._chunks) == 3
    bench.fetch(Group(2))
    assert len(bench.store._chunks) == 4, "another author"


def test_a_full_disk_budget_drops_what_is_done_then_what_stalls() -> None:
    bench = Bench(disk_bytes=2 * PARTS * PART)
    done, stalled, fresh, late = Group(1), Group(2), Group(3), Group(4)
    for group in (done, stalled):
        bench.fetch(group)
    bench.deliver(done)
    bench.fetch(fresh)
    assert not bench.requests(fresh.author), "nothing makes room yet"
    bench.bodies.release(done.name, bench.now)
    bench.bodies.fetch(fresh.name, bench.now)
    assert len(bench.requests(fresh.author)) == 8
    bench.wait(29.0)
    bench.bodies.on_part(fresh.author, fresh.parts[0], bench.now)
    bench.fetch(late)
    assert not bench.requests(late.author)
    bench.wait(1.1)
    bench.bodies.fetch(late.name, bench.now)
    assert len(bench.requests(late.author)) == 8, "the stalled one made room"
    assert blob_of(stalled.body, PART).root not in bench.store._chunks
    assert blob_of(fresh.body, PART).root in bench.store._chunks


def test_a_trickle_makes_room_too() -> None:
    bench, slow = Bench(disk_bytes=PARTS * PART), Group(1)
    bench.fetch(slow)
    for index in range(4):
        bench.wait(15.0)
        bench.requests()
        bench.bodies.on_part(slow.author, slow.parts[index], bench.now)
    quick = Group(2)
    bench.fetch(quick)
    assert bench.requests(quick.author), "4 parts in 60 s: 8.7 kB/s"


def test_a_body_gaining_nothing_for_a_quarter_of_an_hour_is_deleted() -> None:
    bench, group = Bench(), Group(1)
    bench.fetch(group)
    bench.requests()
    bench.bodies.on_part(group.author, group.parts[0], bench.now)
    bench.wait(899.0)
    assert bench.store.size_bytes == PART
    bench.wait(2.0)
    assert bench.store.size_bytes == 0


def test_a_body_that_was_read_is_served_for_a_while() -> None:
    bench, group = Bench(), Group(1)
    bench.fetch(group)
    bench.deliver(group)
    bench.bodies.release(group.name, bench.now)
    bench.wait(299.0)
    assert bench.bodies.on_request(OTHER, group.names[0], bench.now)
    assert bench.sent(Chunk, OTHER) == [Chunk(group.parts[0])]
    bench.wait(2.0)
    assert bench.store.size_bytes == 0


def test_a_copied_header_shares_the_parts_and_outlives_the_other() -> None:
    bench, group, copy = Bench(), Group(1, content=5), Group(2, content=5)
    bench.fetch(copy)
    bench.fetch(group)
    assert bench.requests(copy.author) == group.names[:8]
    bench.bodies.on_part(group.author, group.parts[0], bench.now)
    assert bench.requests(group.author) == group.names[8:9], "eight others were requested from it with the first"
    for part in group.parts:
        bench.requests()
        bench.bodies.on_part(group.author, part, bench.now)
    assert len(bench.bodies.take_completed()) == 2, "the author of the copy has sent nothing"
    bench.bodies.release(copy.name, bench.now)
    bench.wait(301.0)
    assert bench.store.size_bytes == PARTS * PART, "the other still needs it"
    bench.bodies.release(group.name, bench.now)
    bench.wait(301.0)
    assert bench.store.size_bytes == 0


def test_own_groups_are_served_from_memory_the_learner_first() -> None:
    bench, group = Bench(sending=3, sending_per_peer=2), Group(1)
    bench.own(group)
    for peer in (OTHER, LEARNER):
        for part in group.names[:3]:
            bench.bodies.on_request(peer, part, bench.now)
    bench.bodies.flush(bench.now)
    sent = [(to, message) for to, message in bench.bodies.outbox if isinstance(message, Chunk)]
    assert sent == [(LEARNER, Chunk(group.parts[0])), (LEARNER, Chunk(group.parts[1])), (OTHER, Chunk(group.parts[0]))]
    bench.bodies.outbox.clear()
    bench.bodies.upload_done(OTHER)
    assert bench.sent(Chunk) == [Chunk(group.parts[1])]
    bench.bodies.upload_done(LEARNER)
    assert bench.sent(Chunk, LEARNER) == [Chunk(group.parts[2])]


def test_a_body_no_longer_in_memory_is_asked_of_the_owner_once() -> None:
    bench, group, other = Bench(own_bytes=PARTS * PART), Group(1), Group(1, 1)
    bench.own(group)
    bench.own(other)
    for part in group.names[:3]:
        assert bench.bodies.on_request(LEARNER, part, bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(part, 1_000) for part in group.names[:3]]
    assert bench.bodies.take_wanted() == [group.name]
    assert bench.bodies.take_wanted() == []
    bench.now += 2.0
    bench.bodies.on_request(LEARNER, group.names[0], bench.now)
    assert bench.bodies.take_wanted() == [group.name]
    bench.bodies.hold(group.name, group.body)
    bench.bodies.on_request(LEARNER, group.names[0], bench.now)
    assert Chunk(group.parts[0]) in bench.sent(Chunk)


def test_waiting_requests_of_one_peer_are_bounded() -> None:
    bench, group = Bench(sending=1, queued_per_peer=2), Group(1)
    bench.own(group)
    for part in (group.names[0], *group.names[:4]):
        bench.bodies.on_request(OTHER, part, bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(part, 500) for part in group.names[2:4]]


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
    assert sorted(to for to, message in bench.bodies.outbox if message == Chunk(group.parts[0])) == sorted(
        [LEARNER, OTHER]
    )
    assert bench.store.size_bytes == 0


def test_a_relay_refuses_what_it_cannot_get() -> None:
    bench, group = Bench(), Group(1)
    bench.announce(group, OTHER)
    bench.bodies.on_request(OTHER, group.names[0], bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(group.names[0], 0)], "only the asker has announced it"
    bench.announce(group)
    bench.bodies.allow_relaying(False)
    bench.bodies.on_request(OTHER, group.names[1], bench.now)
    assert bench.sent(ChunkRefused) == [ChunkRefused(group.names[1], 0)], "the month's uploads are used up"
    bench.bodies.allow_relaying(True)
    bench.bodies.on_request(OTHER, group.names[2], bench.now)
    assert bench.requests(group.author) == group.names[2:3]
    bench.bodies.on_refused(group.author, group.names[2], 900, bench.now)
    assert bench.sent(ChunkRefused, OTHER) == [ChunkRefused(group.names[2], 900)]
    bench.wait(1.0)
    bench.bodies.on_request(OTHER, group.names[2], bench.now)
    assert len(bench.requests(group.author)) == 1
    bench.bodies.remove_peer(group.author)
    assert bench.sent(ChunkRefused, OTHER) == [ChunkRefused(group.names[2], 500)]


def test_parts_in_a_relay_are_bounded_over_all_peers() -> None:
    bench, group = Bench(window=PARTS, pulled=4), Group(1)
    bench.announce(group)
    for number, part in enumerate(group.names):
        bench.bodies.on_request((LEARNER, OTHER, THIRD)[number % 3], part, bench.now)
    assert len(bench.requests()) == 4


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
    assert bench.sent(Chunk, LEARNER) == [Chunk(own.parts[0])]
