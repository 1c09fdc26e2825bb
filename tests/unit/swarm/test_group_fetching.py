"""Bodies that a node fetches: windows, sources, silence, and the budgets on disk."""

from __future__ import annotations

import math

import pytest

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, proof_among, top_of
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk, ChunkRequest
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.groups.group_bodies import GroupBodies
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl.swarm.groups.requests import PartRequests
from tests.unit.swarm.group_bench import NOW, OTHER, PART, PARTS, THIRD, Bench, Group
from tests.unit.swarm.relays import poisoned


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
        first.bodies.on_part(group.author, group.parts[part[1]], first.now)
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
    assert not bench.bodies.on_part(group.author, group.parts[3], bench.now)
    with pytest.raises(BadChunkError):
        bench.bodies.on_part(group.author, poisoned(group.parts[0]), bench.now)
    assert bench.store.size_bytes == 0


def test_a_part_asked_for_is_known_however_many_peers_were_asked_meanwhile() -> None:
    requests = PartRequests(GroupBodyConfig(), [])
    late = Digest(bytes(32)), 0
    requests.send(late, OTHER, NOW)
    for number in range(1_000):
        peer, root = PeerId(f"peer {number}"), Digest(number.to_bytes(32, "big"))
        for index in range(GroupBodyConfig().window):
            requests.end(requests.send((root, index), peer, NOW))
    assert requests.has_asked(OTHER, late), "a part that comes now is no fault of its sender"


def test_the_parts_remembered_are_bounded_for_one_peer_and_over_all() -> None:
    requests = PartRequests(GroupBodyConfig(), [])
    parts = [(Digest(number.to_bytes(32, "big")), 0) for number in range(400)]
    peers = [PeerId(f"peer {number}") for number in range(200)]
    for peer in peers:
        for part in parts:
            requests.end(requests.send(part, peer, NOW))
    known = [sum(requests.has_asked(peer, part) for part in parts) for peer in peers]
    assert set(known) == {0, 256}
    assert known == sorted(known), "the peers asked last are remembered"
    assert 20_000 < sum(known) <= 32_768


def test_a_part_of_another_size_than_its_header_says_is_a_fault() -> None:
    """Its author signed the hash of 4 MiB as one of 128 KiB: neither the disk nor a relay may carry them."""
    huge = bytes(limits.MAX_CHUNK_BYTES)
    names = [chunk_digest(huge), *(chunk_digest(bytes(PART)) for _ in range(PARTS - 1))]
    nodes = TreeBuilder(names).nodes
    ref = BlobRef(PARTS * PART, PART, bound_top(PARTS * PART, PART, top_of(nodes)))
    group = Group(1, ref=ref)
    bench = Bench(window=1)
    bench.fetch(group)
    bench.bodies.on_request(OTHER, (ref.root, 0), bench.now)
    assert bench.requests(group.author) == [(ref.root, 0)]
    with pytest.raises(BadChunkError) as caught:
        bench.bodies.on_part(group.author, Chunk(ref.root, 0, proof_among(nodes, 0, PARTS), huge), bench.now)
    assert caught.value.is_proof
    assert bench.store.size_bytes == 0
    assert bench.sent(Chunk) == []


def test_bodies_are_bounded_in_number() -> None:
    bench = Bench(bodies=2)
    for author in (1, 2, 3):
        bench.fetch(Group(author))
    assert len(bench.store._chunks) == 2
    bench.wait(31.0)
    bench.fetch(Group(4))
    assert len(bench.store._chunks) == 2, "a stalled one made room"
    assert bench.requests(Group(4).author)


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
    assert bench.sent(Chunk, OTHER) == [group.parts[0]]
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
