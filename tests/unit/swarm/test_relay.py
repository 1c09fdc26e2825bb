"""The chunk relay: one copy from the source, rarest first, hashes before belief, and no waiting for the silent."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.codec import Wire
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.protocol.messages import BlobQuery, Chunk, ChunkRefused, ChunkRequest, Have
from p2prl.sim.blobs import MemoryBlobs
from p2prl.swarm.relay import ForeignChunkError, Relay
from p2prl.swarm.transfers import Holder, RelayConfig, bitmap_of, indices_of

CHUNK = 4096
SOURCE, A, B, C = (PeerId(name) for name in ("source", "A", "B", "C"))


def blob(chunks: int, seed: int = 0) -> tuple[bytes, BlobRef]:
    data = random.Random(seed).randbytes(chunks * CHUNK - 7)
    return data, blob_of(data, CHUNK)


class Room:
    """Relays that hear each other at once, in rounds of `step_s`."""

    def __init__(self, names: list[PeerId], *, config: RelayConfig | None = None, step_s: float = 0.05) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.silent: set[PeerId] = set()
        """Peers that answer no request for a chunk."""
        self.stores = {name: MemoryBlobs() for name in names}
        self.relays = {
            name: Relay(self.stores[name], random.Random(str(name)), config or RelayConfig()) for name in names
        }
        self.sent: Counter[tuple[PeerId, int]] = Counter()
        for name, relay in self.relays.items():
            for other in names:
                if other != name:
                    relay.add_neighbour(other, is_source=other == SOURCE)

    def offer(self, data: bytes, ref: BlobRef, name: PeerId = SOURCE) -> None:
        self.stores[name].add(ref, data)
        self.relays[name].offer(ref, self.now)

    def round(self) -> None:
        self.now += self.step_s
        letters: list[tuple[PeerId, PeerId, Wire]] = []
        for name, relay in self.relays.items():
            due = relay.next_deadline()
            if due is not None and due <= self.now:
                relay.handle_timer(self.now)
            relay.flush(self.now)
            letters += [(name, peer, message) for peer, message in relay.outbox]
            relay.outbox.clear()
        for source, destination, message in letters:
            if isinstance(message, Chunk):
                self.relays[source].upload_done(destination)
                self.sent[source, len(message.data)] += 1
            if not (isinstance(message, ChunkRequest) and destination in self.silent):
                self.relays[destination].receive(message, source, self.now)

    def run(self, names: list[PeerId], ref: BlobRef, *, within_s: float) -> float:
        start = self.now
        while any(ref.root not in self.relays[name].completed for name in names):
            assert self.now - start < within_s, {name: self.relays[name].progress(ref.root) for name in names}
            self.round()
        return self.now - start


def test_everybody_gets_the_bytes_and_the_source_sends_hardly_more_than_one_copy() -> None:
    data, ref = blob(64)
    peers = [PeerId(f"peer{i}") for i in range(8)]
    room = Room([SOURCE, *peers])
    room.offer(data, ref)
    for peer in peers:
        room.relays[peer].fetch(ref, 0.0)
    room.run(peers, ref, within_s=30)
    assert all(room.stores[peer].whole(ref) == data for peer in peers)
    copies = room.relays[SOURCE].stats.sent / len(data)
    assert 1.0 <= copies <= 1.3, copies
    assert sum(room.relays[peer].stats.wasted for peer in peers) <= 0.01 * 8 * len(data)


def test_a_lone_volunteer_does_not_wait_for_volunteers_that_do_not_exist() -> None:
    data, ref = blob(64)
    room = Room([SOURCE, A])
    room.offer(data, ref)
    room.relays[A].fetch(ref, 0.0)
    room.run([A], ref, within_s=64 / 2 * 3 * room.step_s + 1)


def test_a_latecomer_is_served_by_volunteers() -> None:
    data, ref = blob(32)
    room = Room([SOURCE, A, B])
    room.offer(data, ref)
    room.relays[A].fetch(ref, 0.0)
    room.run([A], ref, within_s=20)
    before = room.relays[SOURCE].stats.sent
    room.relays[B].fetch(ref, room.now)
    room.run([B], ref, within_s=20)
    assert room.relays[SOURCE].stats.sent == before
    assert room.relays[B].stats.received_from_peers == len(data)


def test_the_rarest_chunk_is_asked_first() -> None:
    _, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig(pipeline_depth=1))
    for peer in (A, B, C):
        relay.add_neighbour(peer, is_source=False)
    relay.fetch(ref, 0.0)
    relay.receive(Have(ref.root, bitmap_of({0, 1, 2, 3}, 4)), A, 0.0)
    relay.receive(Have(ref.root, bitmap_of({0, 1, 3}, 4)), B, 0.0)
    relay.receive(Have(ref.root, bitmap_of({0, 3}, 4)), C, 0.0)
    relay.flush(0.0)
    asked = {peer: message.chunk for peer, message in relay.outbox if isinstance(message, ChunkRequest)}
    assert asked[A] == ref.chunks[2]
    assert asked[B] == ref.chunks[1]
    assert asked[C] in (ref.chunks[0], ref.chunks[3])


def test_the_source_shows_each_chunk_to_one_peer_until_all_were_sent() -> None:
    data, ref = blob(8)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig(reveal_window=2))
    relay.offer(ref, 0.0)
    shown: dict[PeerId, set[int]] = {}
    for peer in (A, B, C):
        relay.add_neighbour(peer, is_source=False)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    relay.flush(0.0)
    for peer, message in relay.outbox:
        assert isinstance(message, Have)
        shown[peer] = indices_of(message.bitmap, 8)
    assert [len(s) for s in shown.values()] == [2, 2, 2]
    assert len(set.union(*shown.values())) == 6
    relay.outbox.clear()
    relay.handle_timer(4.0)
    relay.flush(4.0)
    again = [indices_of(m.bitmap, 8) for _, m in relay.outbox if isinstance(m, Have)]
    assert sorted(map(len, again)) == [2, 2, 2], "what nobody fetched is shown to others"


def test_wrong_bytes_prove_their_sender() -> None:
    data, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbour(A, is_source=False)
    relay.fetch(ref, 0.0)
    relay.receive(Have(ref.root, bitmap_of(range(4), 4)), A, 0.0)
    relay.flush(0.0)
    asked = [m.chunk for _, m in relay.outbox if isinstance(m, ChunkRequest)]
    assert len(asked) == 2
    with pytest.raises(ForeignChunkError):
        relay.receive(Chunk(b"poison"), A, 0.0)
    for index in range(4):
        start, size = ref.span(index)
        piece = data[start : start + size]
        if ref.chunks[index] in asked:
            relay.receive(Chunk(piece), A, 0.0)
        else:
            with pytest.raises(ForeignChunkError):
                relay.receive(Chunk(piece), A, 0.0)
    assert relay.progress(ref.root) == (2, 4)


def test_an_answer_that_outlives_its_link_is_no_fault() -> None:
    data, ref = blob(1)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbour(A, is_source=False)
    relay.fetch(ref, 0.0)
    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    relay.flush(0.0)
    relay.remove_neighbour(A)
    relay.add_neighbour(A, is_source=False)
    relay.receive(Chunk(data), A, 1.0)
    assert relay.completed == [ref.root]


def test_a_silent_holder_costs_one_timeout_and_then_its_turn() -> None:
    data, ref = blob(24)
    room = Room([A, B, C], config=RelayConfig(strikes=2))
    for holder in (A, B):
        room.offer(data, ref, holder)
    room.silent = {A}
    room.relays[C].fetch(ref, 0.0)
    taken = room.run([C], ref, within_s=20)
    assert taken < 2 * RelayConfig().request_timeout_s
    assert room.stores[C].whole(ref) == data


def test_a_transfer_resumes_from_the_disk_and_believes_nothing_on_it() -> None:
    data, ref = blob(6)
    store = MemoryBlobs()
    store.begin(ref)
    for index in (1, 3):
        start, size = ref.span(index)
        store.write(ref, index, data[start : start + size])
    store.write(ref, 4, b"torn write")
    relay = Relay(store, random.Random(1), RelayConfig(pipeline_depth=10))
    relay.fetch(ref, 0.0)
    assert relay.progress(ref.root) == (2, 6)
    relay.add_neighbour(A, is_source=False)
    relay.receive(Have(ref.root, bitmap_of(range(6), 6)), A, 0.0)
    relay.flush(0.0)
    asked = {m.chunk for _, m in relay.outbox if isinstance(m, ChunkRequest)}
    assert asked == {ref.chunks[i] for i in (0, 2, 4, 5)}


def test_a_blob_that_is_whole_already_completes_at_once_and_again_when_asked_again() -> None:
    data, ref = blob(3)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig())
    relay.fetch(ref, 0.0)
    relay.fetch(ref, 1.0)
    assert relay.completed == [ref.root, ref.root]


def test_equal_chunks_travel_once() -> None:
    data = bytes(5 * CHUNK)
    ref = blob_of(data, CHUNK)
    room = Room([SOURCE, A])
    room.offer(data, ref)
    room.relays[A].fetch(ref, 0.0)
    room.run([A], ref, within_s=5)
    assert room.sent[SOURCE, CHUNK] == 1
    # The next version shares a chunk with this one: only the other is fetched.
    changed = bytes(CHUNK) + b"\x01" * CHUNK
    room.offer(changed, blob_of(changed, CHUNK))
    room.relays[A].fetch(blob_of(changed, CHUNK), room.now)
    room.run([A], blob_of(changed, CHUNK), within_s=10)
    assert room.sent[SOURCE, CHUNK] == 2
    assert room.stores[A].whole(blob_of(changed, CHUNK)) == changed


def test_a_refusal_is_final_without_a_retry_time_and_a_pause_with_one() -> None:
    _, ref = blob(1)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbour(A, is_source=False)
    relay.fetch(ref, 0.0)

    def requests(now: float) -> int:
        relay.flush(now)
        count = sum(isinstance(m, ChunkRequest) for _, m in relay.outbox)
        relay.outbox.clear()
        return count

    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    assert requests(0.0) == 1
    relay.receive(ChunkRefused(Digest(ref.chunks[0]), 500), A, 0.0)
    assert requests(0.1) == 0
    assert relay.next_deadline() == 0.5
    relay.handle_timer(0.5)
    assert requests(0.5) == 1
    relay.receive(ChunkRefused(Digest(ref.chunks[0]), 0), A, 0.6)
    relay.handle_timer(2.0)
    assert requests(2.0) == 0


def test_uploads_to_one_peer_are_bounded() -> None:
    data, ref = blob(10)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig(uploads_per_peer=4))
    relay.offer(ref, 0.0)
    relay.add_neighbour(A, is_source=False)
    for chunk in ref.chunks:
        relay.receive(ChunkRequest(chunk), A, 0.0)
    assert Counter(type(m) for _, m in relay.outbox) == {Chunk: 4, ChunkRefused: 6}
    relay.upload_done(A)
    relay.outbox.clear()
    relay.receive(ChunkRequest(ref.chunks[0]), A, 0.0)
    assert [type(m) for _, m in relay.outbox] == [Chunk]


def test_no_deadline_lies_in_the_past_of_the_last_timer() -> None:
    _, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbour(A, is_source=True)
    relay.fetch(ref, 0.0)
    now, timers = 0.0, 0
    while now < 60.0:
        due = relay.next_deadline()
        assert due is not None
        assert due > now
        now = due
        relay.handle_timer(now)
        relay.flush(now)
        timers += 1
    queries = sum(isinstance(m, BlobQuery) for _, m in relay.outbox)
    assert 10 <= queries <= 13, "asked again every five seconds while nothing comes"
    assert timers < 20


def test_dropped_blobs_are_neither_served_nor_kept() -> None:
    data, ref = blob(3)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig())
    relay.offer(ref, 0.0)
    relay.add_neighbour(A, is_source=False)
    relay.drop(ref.root)
    relay.drop(ref.root)
    relay.receive(ChunkRequest(ref.chunks[0]), A, 0.0)
    relay.receive(BlobQuery(ref.root), A, 0.0)
    assert [m for _, m in relay.outbox] == [ChunkRefused(ref.chunks[0], 0), Have(ref.root, b"")]
    assert store.size_bytes == 0


def test_malformed_relay_messages_are_the_senders_fault() -> None:
    _, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbour(A, is_source=False)
    relay.fetch(ref, 0.0)
    for message in (
        Have(ref.root, b"\xff\xff"),
        Have(b"x", b""),
        BlobQuery(b""),
        ChunkRequest(bytes(33)),
        ChunkRefused(b"", 0),
    ):
        with pytest.raises(RemoteProtocolError):
            relay.receive(message, A, 0.0)
    relay.receive(Have(ref.root, b"\xff"), B, 0.0)  # not a neighbour: ignored


@pytest.mark.parametrize("total", [1, 7, 8, 9, 250])
def test_bitmaps_round_trip_and_ignore_what_lies_past_the_end(total: int) -> None:
    chosen = {i for i in range(total) if i % 3 == 0}
    assert indices_of(bitmap_of(chosen, total), total) == chosen
    assert indices_of(b"\xff" * 100, total) == set(range(total))


def test_requests_remembered_of_one_neighbour_are_bounded_and_the_newest_stay() -> None:
    holder = Holder(is_source=False, ever_asked={})
    made = [Digest(number.to_bytes(32, "big")) for number in range(20_000)]
    for name in made:
        holder.note_request(name, 1.0)
    assert list(holder.ever_asked) == made[-16_384:]
