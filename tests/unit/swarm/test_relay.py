"""The chunk relay: one copy from the source, rarest first, hashes before belief, and no waiting for the silent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import (
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    GrantDeclined,
    Have,
    LinkRates,
)
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.memory_blobs import MemoryBlobs
from p2prl.swarm.relay.chunk_sets import bits_of, indices_of, of_bitmap, to_bitmap
from p2prl.swarm.relay.relay import ForeignChunkError, Relay
from p2prl.swarm.relay.state import Holder, RelayConfig

CHUNK = 4096
W = TypeVar("W", bound=Wire)
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


def bitmap(indices: Iterable[int], total: int) -> bytes:
    return to_bitmap(bits_of(indices), total)


def fetcher(ref: BlobRef, *peers: PeerId, config: RelayConfig | None = None) -> Relay:
    """A relay that fetches `ref`, with neighbours that said nothing yet."""
    relay = Relay(MemoryBlobs(), random.Random(1), config or RelayConfig())
    for peer in peers:
        relay.add_neighbour(peer, is_source=peer == SOURCE)
    relay.fetch(ref, 0.0)
    relay.outbox.clear()
    return relay


def server(data: bytes, ref: BlobRef, *peers: PeerId, config: RelayConfig | None = None, origin: bool = False) -> Relay:
    """A relay that holds `ref` whole, asked about it by its neighbours."""
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), config or RelayConfig())
    if origin:
        relay.offer(ref, 0.0)
    else:
        relay.fetch(ref, 0.0)
    for peer in peers:
        relay.add_neighbour(peer, is_source=False)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    return relay


def sent(relay: Relay, kind: type[W], now: float = 0.0) -> list[tuple[PeerId, W]]:
    """Messages of a kind the relay sends now; what else it sends is lost."""
    relay.flush(now)
    found = [(peer, message) for peer, message in relay.outbox if isinstance(message, kind)]
    relay.outbox.clear()
    return found


def piece(data: bytes, ref: BlobRef, index: int) -> bytes:
    start, size = ref.span(index)
    return data[start : start + size]


def test_the_rarest_chunk_is_asked_first() -> None:
    _, ref = blob(4)
    relay = fetcher(ref, A, B, C)
    relay.receive(Have(ref.root, bitmap({0, 1, 2, 3}, 4)), A, 0.0)
    relay.receive(Have(ref.root, bitmap({0, 1, 3}, 4)), B, 0.0)
    relay.receive(Have(ref.root, bitmap({0, 3}, 4)), C, 0.0)
    for peer in (A, B, C):
        relay.receive(ChunkGrant(ref.root, b""), peer, 0.0)
    asked = {peer: message.chunk for peer, message in sent(relay, ChunkRequest)}
    assert asked[A] == ref.chunks[2]
    assert asked[B] == ref.chunks[1]
    assert asked[C] in (ref.chunks[0], ref.chunks[3])


def test_nothing_is_asked_without_a_grant_and_nothing_sent_without_one() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.0)
    assert not sent(relay, ChunkRequest)
    server_ = server(data, ref, A)
    grants = sent(server_, ChunkGrant)
    assert [peer for peer, _ in grants] == [A, A]
    for chunk in ref.chunks[:3]:
        server_.receive(ChunkRequest(chunk), A, 0.0)
    server_.flush(0.0)
    answers = [type(message) for _, message in server_.outbox]
    assert answers.count(Chunk) == 2
    assert answers.count(ChunkRefused) == 1


def test_the_source_reserves_each_chunk_for_one_peer_until_all_were_sent() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, B, C, origin=True)
    grants = sent(relay, ChunkGrant)
    shown = [index for _, grant in grants for index in indices_of(of_bitmap(grant.bitmap, 8))]
    assert len(shown) == len(set(shown)) == len(grants) == 6, "two a neighbour, each of one chunk of its own"
    # Whoever asks for another chunk than its own gets nothing.
    holder = {index: peer for peer, grant in grants for index in indices_of(of_bitmap(grant.bitmap, 8))}
    foreign = next(index for index, peer in holder.items() if peer != A)
    relay.receive(ChunkRequest(ref.chunks[foreign]), A, 0.0)
    assert not sent(relay, Chunk)
    # Grants that nobody uses lapse, and their chunks go to others.
    relay.handle_timer(RelayConfig().grant_s)
    late = RelayConfig().grant_s + RelayConfig().stall_s
    relay.handle_timer(late)
    again = {index for _, grant in sent(relay, ChunkGrant, late) for index in indices_of(of_bitmap(grant.bitmap, 8))}
    assert len(again) == 6


def test_the_source_has_done_its_part_after_one_copy_while_volunteers_deliver() -> None:
    data, ref = blob(4)
    relay = server(data, ref, A, origin=True)
    now, held = 0.0, 0
    while relay.outbox or held != 0b1111:
        relay.flush(now)
        messages, relay.outbox[:] = list(relay.outbox), []
        assert messages, "the source stopped before it gave every chunk"
        for _, message in messages:
            if isinstance(message, ChunkGrant):
                (index,) = indices_of(of_bitmap(message.bitmap, 4))
                relay.receive(ChunkRequest(ref.chunks[index]), A, now)
            elif isinstance(message, Chunk):
                relay.upload_done(A)
                held |= 1 << ref.chunks.index(chunk_digest(message.data))
        relay.receive(Have(ref.root, to_bitmap(held, 4)), A, now)
    assert held == 0b1111
    relay.add_neighbour(B, is_source=False)
    relay.receive(BlobQuery(ref.root), B, now)
    assert not sent(relay, ChunkGrant, now)
    # B gets a chunk elsewhere every second: the learner keeps out.
    for second in range(1, 4):
        now = float(second)
        relay.receive(Have(ref.root, bitmap(range(second), 4)), B, now)
        relay.handle_timer(now)
        assert not sent(relay, ChunkGrant, now)
    # Then no more: after its patience, which is also its next deadline, the learner helps.
    due = relay.next_deadline()
    assert due is not None
    assert due <= now + RelayConfig().source_patience_s
    now += RelayConfig().source_patience_s
    relay.handle_timer(now)
    assert [peer for peer, _ in sent(relay, ChunkGrant, now)] == [B]


def test_newcomers_go_first_the_largest_uplink_before_the_others_then_those_nearly_there() -> None:
    data, ref = blob(40)
    relay = server(data, ref, config=RelayConfig(upload_bytes_s=1.25e6))
    small, large = PeerId("small"), PeerId("large")
    uploads = {A: 20_000, B: 20_000, C: 20_000, small: 1_000, large: 90_000}
    held = {A: range(30), B: range(38), C: range(20), small: (7,), large: ()}
    for peer, upload in uploads.items():
        relay.add_neighbour(peer, is_source=False)
        relay.receive(LinkRates(upload, 100_000), peer, 0.0)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
        relay.receive(Have(ref.root, bitmap(held[peer], 40)), peer, 0.0)
    served: list[PeerId] = []
    while grants := sent(relay, ChunkGrant):
        for peer, _ in grants:
            served.append(peer)
            relay.receive(GrantDeclined(ref.root, 10_000), peer, 0.0)
    assert list(dict.fromkeys(served)) == [large, small, B, A, C]


def test_wrong_bytes_prove_their_sender() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.0)
    for _ in range(2):
        relay.receive(ChunkGrant(ref.root, b""), A, 0.0)
    asked = [message.chunk for _, message in sent(relay, ChunkRequest)]
    assert len(asked) == 2
    with pytest.raises(ForeignChunkError):
        relay.receive(Chunk(b"poison"), A, 0.0)
    for index in range(4):
        if ref.chunks[index] in asked:
            relay.receive(Chunk(piece(data, ref, index)), A, 0.0)
        else:
            with pytest.raises(ForeignChunkError):
                relay.receive(Chunk(piece(data, ref, index)), A, 0.0)
    assert relay.progress(ref.root) == (2, 4)


def test_an_answer_that_outlives_its_link_is_no_fault() -> None:
    data, ref = blob(1)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    relay.receive(ChunkGrant(ref.root, b""), A, 0.0)
    assert sent(relay, ChunkRequest)
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
    relay.receive(Have(ref.root, bitmap(range(6), 6)), A, 0.0)
    for _ in range(6):
        relay.receive(ChunkGrant(ref.root, b""), A, 0.0)
    asked = [m.chunk for _, m in sent(relay, ChunkRequest)]
    assert sorted(asked) == sorted(ref.chunks[i] for i in (0, 2, 4, 5))


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
    relay = fetcher(ref, A)

    def answers_a_grant(now: float) -> bool:
        relay.receive(ChunkGrant(ref.root, b""), A, now)
        return bool(sent(relay, ChunkRequest, now))

    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    assert answers_a_grant(0.0)
    relay.receive(ChunkRefused(ref.chunks[0], 500), A, 0.0)
    assert not answers_a_grant(0.1)
    relay.handle_timer(0.5)
    assert answers_a_grant(0.5)
    relay.receive(ChunkRefused(ref.chunks[0], 0), A, 0.6)
    assert not answers_a_grant(2.0)


def test_uploads_are_bounded_by_the_slots_and_go_on_as_slots_come_free() -> None:
    data, ref = blob(40)
    peers = [PeerId(f"peer{number}") for number in range(12)]
    relay = server(data, ref, *peers, config=RelayConfig(upload_bytes_s=1000.0))  # one slot
    passed, wanted = 0, iter(ref.chunks)
    for _ in range(30):
        relay.flush(0.0)
        messages, relay.outbox[:] = list(relay.outbox), []
        passed += sum(isinstance(message, Chunk) for _, message in messages)
        for peer, message in messages:
            if isinstance(message, ChunkGrant):
                relay.receive(ChunkRequest(next(wanted)), peer, 0.0)
    assert passed == 2, "one for the slot, and one behind it"
    assert len(list(wanted)) == 40 - 3, "and one asked for ahead"
    for peer in peers:
        relay.upload_done(peer)
    assert len(sent(relay, Chunk)) == 1


def test_a_slot_comes_free_although_nobody_says_so() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, config=RelayConfig(upload_bytes_s=1.25e6))
    now, passed, wanted = 0.0, 0, iter(ref.chunks)
    while passed < 6:
        relay.flush(now)
        messages, relay.outbox[:] = list(relay.outbox), []
        for peer, message in messages:
            passed += isinstance(message, Chunk)
            if isinstance(message, ChunkGrant):
                relay.receive(ChunkRequest(next(wanted)), peer, now)
        if not messages:
            due = relay.next_deadline()
            assert due is not None
            now = due
            assert now < 60, f"{passed} chunks and no more"
            relay.handle_timer(now)
    assert now > 0


def test_a_cancelled_request_is_not_served() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, B, config=RelayConfig(upload_bytes_s=1000.0))  # one slot, and one behind it
    chunks = iter(ref.chunks)
    asked = []
    for _ in range(3):
        for peer, _ in sent(relay, ChunkGrant):
            asked.append((peer, next(chunks)))
            relay.receive(ChunkRequest(asked[-1][1]), peer, 0.0)
    relay.receive(ChunkCancel(asked[-1][1]), asked[-1][0], 0.0)
    for peer in (A, B, A, B):
        relay.upload_done(peer)
    data_sent = [message.data for _, message in sent(relay, Chunk)]
    assert piece(data, ref, len(asked) - 1) not in data_sent


def test_no_uploads_while_the_budget_is_spent() -> None:
    data, ref = blob(4)
    relay = server(data, ref, A)
    relay.allow_uploads(False)
    assert not sent(relay, ChunkGrant)
    relay.allow_uploads(True)
    assert sent(relay, ChunkGrant)


def test_a_second_request_only_for_a_chunk_that_is_much_later_than_its_copy_would_be() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A, B)
    for peer in (A, B):
        relay.receive(Have(ref.root, bitmap(range(4), 4)), peer, 0.0)

    def grant(peer: PeerId, now: float) -> list[bytes]:
        relay.receive(ChunkGrant(ref.root, b""), peer, now)
        return [message.chunk for _, message in sent(relay, ChunkRequest, now)]

    def deliver(peer: PeerId, chunk: bytes, now: float) -> None:
        relay.receive(Chunk(piece(data, ref, ref.chunks.index(chunk))), peer, now)

    deliver(A, grant(A, 0.0)[0], 2.0)  # two seconds a chunk
    deliver(B, grant(B, 2.0)[0], 2.5)  # half a second
    slow, last = grant(A, 3.0)[0], grant(B, 3.0)[0]
    deliver(B, last, 3.5)
    assert relay.progress(ref.root) == (3, 4)
    assert not grant(B, 4.4), "it comes in 0.6 s, and a copy would take 0.5"
    relay.handle_timer(4.4)
    assert grant(B, 7.4) == [slow], "it is 2.4 s late already"
    assert not grant(B, 7.4), "there are two copies under way"
    deliver(B, slow, 7.9)
    assert relay.completed == [ref.root]
    relay.receive(Chunk(piece(data, ref, ref.chunks.index(slow))), A, 8.0)
    assert relay.stats.wasted == len(piece(data, ref, ref.chunks.index(slow)))


def test_the_loser_of_the_endgame_is_told() -> None:
    data, ref = blob(1)
    relay = fetcher(ref, A, B)
    for peer in (A, B):
        relay.receive(Have(ref.root, b"\x01"), peer, 0.0)
    relay.receive(ChunkGrant(ref.root, b""), A, 0.0)
    assert sent(relay, ChunkRequest)
    late = RelayConfig().request_timeout_s
    relay.handle_timer(late)
    assert sent(relay, ChunkCancel, late) == [(A, ChunkCancel(ref.chunks[0]))]
    relay.receive(ChunkGrant(ref.root, b""), B, late)
    assert [peer for peer, _ in sent(relay, ChunkRequest, late)] == [B]
    relay.receive(Chunk(data), B, late)
    assert relay.completed == [ref.root]


def test_no_more_is_under_way_than_the_downlink_takes() -> None:
    _, ref = blob(100)
    peers = [PeerId(f"peer{number}") for number in range(50)]
    config = RelayConfig(download_bytes_s=5 * CHUNK, window_s=2.0)
    relay = fetcher(ref, *peers, config=config)
    for peer in peers:
        relay.receive(Have(ref.root, bitmap(range(100), 100)), peer, 0.0)
        relay.receive(ChunkGrant(ref.root, b""), peer, 0.0)
    answers = Counter(type(message) for _, message in relay.outbox)
    assert answers[ChunkRequest] == 10
    assert answers[GrantDeclined] == 40


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
        ChunkGrant(b"", b""),
        GrantDeclined(bytes(31), 0),
        ChunkCancel(b"x"),
    ):
        with pytest.raises(RemoteProtocolError):
            relay.receive(message, A, 0.0)
    relay.receive(Have(ref.root, b"\xff"), B, 0.0)  # not a neighbour: ignored


@pytest.mark.parametrize("total", [1, 7, 8, 9, 250])
def test_bitmaps_round_trip_and_ignore_what_lies_past_the_end(total: int) -> None:
    chosen = [i for i in range(total) if i % 3 == 0]
    made = bitmap(chosen, total)
    assert [i for i in range(total) if made[i // 8] & (1 << i % 8)] == chosen
    assert list(indices_of(of_bitmap(made, total))) == chosen
    assert list(indices_of(of_bitmap(b"\xff" * 100, total))) == list(range(total))


def test_requests_remembered_of_one_neighbour_are_bounded_and_the_newest_stay() -> None:
    holder = Holder(is_source=False, ever_asked={})
    made = [Digest(number.to_bytes(32, "big")) for number in range(20_000)]
    for name in made:
        holder.note_request(name, 0.0, 1.0)
    assert list(holder.ever_asked) == made[-16_384:]


@pytest.mark.parametrize(("chunks", "asked"), [(3, 8), (12, 12), (40, 20)])
def test_a_small_blob_is_asked_of_a_few_and_of_all_when_nothing_comes(chunks: int, asked: int) -> None:
    _, ref = blob(chunks)
    relay = Relay(MemoryBlobs(), random.Random(4), RelayConfig())
    volunteers = [PeerId(f"v{number}") for number in range(20)]
    for peer in (SOURCE, *volunteers):
        relay.add_neighbour(peer, is_source=peer == SOURCE)

    def queried() -> set[PeerId]:
        peers = {peer for peer, message in relay.outbox if isinstance(message, BlobQuery)}
        relay.outbox.clear()
        return peers

    relay.fetch(ref, 0.0)
    first = queried()
    assert SOURCE in first
    assert len(first) == 1 + asked
    due = relay.next_deadline()
    assert due == RelayConfig().requery_s
    relay.handle_timer(due)
    assert queried() == {SOURCE, *volunteers}
