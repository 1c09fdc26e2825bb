"""Upload half of the chunk relay: grants, super-seeding, upload order, slots."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from p2prl.errors import StaleWorkError
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
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.chunk_sets import indices_of, to_bitmap
from p2prl.swarm.relay.relay_config import GRANT_S, SOURCE_PATIENCE_S, STALL_S, RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.unit.swarm.relays import CHUNK, A, B, C, bitmap, blob, fetcher, piece, sent, server


def test_no_request_and_no_chunk_without_a_grant() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.0)
    assert not sent(relay, ChunkRequest)
    server_ = server(data, ref, A)
    grants = sent(server_, ChunkGrant)
    assert [peer for peer, _ in grants] == [A, A]
    for index in range(3):
        server_.receive(ChunkRequest(ref.root, index), A, 0.0)
    server_.flush(0.0)
    answers = [type(message) for _, message in server_.outbox]
    assert answers.count(Chunk) == 2
    assert answers.count(ChunkRefused) == 1


def test_source_reserves_each_chunk_for_one_peer() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, B, C, origin=True, config=RelayConfig(upload_bytes_s=12.5e6))
    grants = sent(relay, ChunkGrant)
    shown = [grant.index for _, grant in grants if grant.index >= 0]
    assert len(shown) == len(set(shown)) == len(grants) == 6, "two per neighbor, each for one chunk of its own"
    # A request for a chunk reserved for another peer is refused.
    holder = {grant.index: peer for peer, grant in grants if grant.index >= 0}
    foreign = next(index for index, peer in holder.items() if peer != A)
    relay.receive(ChunkRequest(ref.root, foreign), A, 0.0)
    assert not sent(relay, Chunk)
    # Unused grants expire, and their chunks are granted again.
    relay.handle_timer(GRANT_S)
    late = GRANT_S + STALL_S
    relay.handle_timer(late)
    again = {grant.index for _, grant in sent(relay, ChunkGrant, late) if grant.index >= 0}
    assert len(again) == 6


def test_source_stops_after_one_copy_while_volunteers_upload() -> None:
    data, ref = blob(4)
    relay = server(data, ref, A, origin=True)
    now, held = 0.0, 0
    while relay.outbox or held != 0b1111:
        relay.flush(now)
        messages, relay.outbox[:] = list(relay.outbox), []
        assert messages, "the source stopped before it sent every chunk"
        for _, message in messages:
            if isinstance(message, ChunkGrant):
                index = message.index
                relay.receive(ChunkRequest(ref.root, index), A, now)
            elif isinstance(message, Chunk):
                relay.upload_done(A)
                held |= 1 << message.index
        relay.receive(Have(ref.root, to_bitmap(held, 4)), A, now)
    assert held == 0b1111
    relay.add_neighbor(B, is_source=False)
    relay.receive(BlobQuery(ref.root), B, now)
    assert not sent(relay, ChunkGrant, now)
    # B gets a chunk from others every second: the learner does not help.
    for second in range(1, 4):
        now = float(second)
        relay.receive(Have(ref.root, bitmap(range(second), 4)), B, now)
        relay.handle_timer(now)
        assert not sent(relay, ChunkGrant, now)
    # Then none: the learner helps after its patience, which is also its next deadline.
    due = relay.next_deadline()
    assert due is not None
    assert due <= now + SOURCE_PATIENCE_S
    now += SOURCE_PATIENCE_S
    relay.handle_timer(now)
    assert [peer for peer, _ in sent(relay, ChunkGrant, now)] == [B]


def test_upload_order() -> None:
    data, ref = blob(40)
    relay = server(data, ref, config=RelayConfig(upload_bytes_s=1.25e6))
    small, large = PeerId("small"), PeerId("large")
    uploads = {A: 20_000, B: 20_000, C: 20_000, small: 1_000, large: 90_000}
    held = {A: range(30), B: range(38), C: range(20), small: (7,), large: ()}
    for peer, upload in uploads.items():
        relay.add_neighbor(peer, is_source=False)
        relay.receive(LinkRates(upload, 100_000), peer, 0.0)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
        relay.receive(Have(ref.root, bitmap(held[peer], 40)), peer, 0.0)
    served: list[PeerId] = []
    while grants := sent(relay, ChunkGrant):
        for peer, _ in grants:
            served.append(peer)
            relay.receive(GrantDeclined(ref.root, 10_000), peer, 0.0)
    assert list(dict.fromkeys(served)) == [large, small, C, A, B], "the fewest chunks first, whatever is stated"


@pytest.mark.parametrize("repeats", [False, True])
def test_who_hides_what_a_sender_sent_it_gains_nothing_there(repeats: bool) -> None:
    data, ref = blob(40)
    relay = server(data, ref, A, B, config=RelayConfig(upload_bytes_s=1000.0))
    got: dict[PeerId, int] = {A: 0, B: 0}
    for step in range(20):
        now = step / 4
        for peer, _ in sent(relay, ChunkGrant, now):
            index = 0 if repeats and peer == A else got[peer]  # A may ask for one chunk again and again
            relay.receive(ChunkRequest(ref.root, index), peer, now)
            got[peer] += 1
            relay.flush(now)
            relay.upload_done(peer)
        relay.receive(Have(ref.root, bitmap(range(got[B]), 40)), B, now)  # A announces none
        relay.handle_timer(now)
    assert sum(got.values()) >= 20
    assert abs(got[A] - got[B]) <= 2


class LearnerOf100:
    """A learner that could send 100 chunks a second, and peers that get some from each other as well. It sends no
    copies to late peers, only its share."""

    def __init__(self, peers: int) -> None:
        data, self.ref = blob(400)
        self.got: dict[PeerId, int] = {PeerId(f"peer{number}"): 0 for number in range(peers)}
        config = RelayConfig(upload_bytes_s=100.0 * CHUNK, source_copies=0.0)
        self.relay = server(data, self.ref, *self.got, origin=True, config=config)

    def tenth(self, now: float, *, from_others: int) -> int:
        """Ten chunks' time; each peer also gets as many as given from others. Returns the chunks that it sent."""
        self.relay.handle_timer(now)
        count = 0
        while count < 10 and (grants := sent(self.relay, ChunkGrant, now)):
            for peer, grant in grants:
                lacks = (1 << grant.index if grant.index >= 0 else (1 << 400) - 1) & ~self.got[peer]
                if count == 10 or not lacks:
                    self.relay.receive(GrantDeclined(self.ref.root, 50), peer, now)
                    continue
                index = next(iter(indices_of(lacks)))
                self.relay.receive(ChunkRequest(self.ref.root, index), peer, now)
                self.got[peer] |= 1 << index
                self.relay.flush(now)
                self.relay.upload_done(peer)
                count += 1
        spread = 0
        for chunks in self.got.values():
            spread |= chunks
        for peer in self.got:
            for index in list(indices_of(spread & ~self.got[peer]))[:from_others]:
                self.got[peer] |= 1 << index
            self.relay.receive(Have(self.ref.root, to_bitmap(self.got[peer], 400)), peer, now)
        return count


def test_a_weak_swarm_has_the_learner_s_uplink_to_the_end() -> None:
    """The others send 10 chunks a second, and then have nothing left for each other."""
    learner = LearnerOf100(2)
    served = [learner.tenth(tenth / 10, from_others=int(tenth % 2 and tenth < 50)) for tenth in range(70)]
    assert sum(served[:40]) >= 350, "the first copy"
    assert sum(served[50:60]) >= 80, "and after the others have stopped"


def test_a_strong_swarm_spares_the_learner() -> None:
    """The others send forty times as much as the learner could: its help would not make anybody faster."""
    learner = LearnerOf100(100)
    served = [learner.tenth(tenth / 10, from_others=4) for tenth in range(70)]
    assert sum(served[:42]) >= 380, "the first copy"
    assert sum(served[42:]) <= 40


def test_the_learner_s_share_is_of_the_time_in_which_somebody_wanted_the_blob() -> None:
    learner = LearnerOf100(20)  # the others send four times as much as it could
    served = [learner.tenth(tenth / 10, from_others=2) for tenth in range(70)]
    # A fifth of all uplinks: 1.03 - .03/.2 = .88 of what its own could have sent.
    assert 0.84 * 700 <= sum(served) <= 0.92 * 700


@pytest.mark.parametrize(("peers", "from_others", "least", "most"), [(2, 1, 8, 20), (20, 1, 1, 2), (2, 0, 1, 2)])
def test_the_last_peers_of_a_weak_swarm_fill_the_learner_s_line(
    peers: int, from_others: int, least: int, most: int
) -> None:
    """Thirty chunks leave in a round trip: two peers need many grants each for that, and twenty the usual two. Two that
    pass nothing on are helped out."""
    learner = LearnerOf100(peers)
    for tenth in range(45):
        learner.tenth(tenth / 10, from_others=from_others * (tenth % 2))
    learner.relay.handle_timer(6.0)
    grants = Counter(peer for peer, _ in sent(learner.relay, ChunkGrant, 6.0))
    assert least <= max(grants.values()) <= most


def test_a_circuit_carries_chunks_only_to_a_peer_that_gets_none_from_elsewhere() -> None:
    data, ref = blob(8)
    config = RelayConfig(circuit_patience_s=30.0)
    relay = server(data, ref, A, B, config=config)
    relay.use_circuits_last(lambda peer: peer == A)
    assert {peer for peer, _ in sent(relay, ChunkGrant)} == {B}
    relay.handle_timer(29.9)
    assert A not in {peer for peer, _ in sent(relay, ChunkGrant, 29.9)}
    assert relay.next_deadline() == pytest.approx(30.0)
    relay.receive(Have(ref.root, bitmap((0,), 8)), A, 29.9)  # a chunk from elsewhere: it waits anew
    relay.handle_timer(59.8)
    assert A not in {peer for peer, _ in sent(relay, ChunkGrant, 59.8)}
    relay.handle_timer(59.9)
    assert A in {peer for peer, _ in sent(relay, ChunkGrant, 59.9)}


def test_uploads_are_bounded_by_slots() -> None:
    data, ref = blob(40)
    peers = [PeerId(f"peer{number}") for number in range(12)]
    relay = server(data, ref, *peers, config=RelayConfig(upload_bytes_s=1000.0))  # one slot
    passed, wanted = 0, iter(range(ref.total))
    for _ in range(30):
        relay.flush(0.0)
        messages, relay.outbox[:] = list(relay.outbox), []
        passed += sum(isinstance(message, Chunk) for _, message in messages)
        for peer, message in messages:
            if isinstance(message, ChunkGrant):
                relay.receive(ChunkRequest(ref.root, next(wanted)), peer, 0.0)
    assert passed == 2, "one for the slot, and one behind it"
    assert len(list(wanted)) == 40 - 2, "and none requested ahead: a chunk takes four seconds"
    for peer in peers:
        relay.upload_done(peer)
    assert len(sent(relay, ChunkGrant)) == 2


def test_an_unreported_upload_frees_its_slot() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, config=RelayConfig(upload_bytes_s=1.25e6))
    now, passed, wanted = 0.0, 0, iter(range(ref.total))
    while passed < 6:
        relay.flush(now)
        messages, relay.outbox[:] = list(relay.outbox), []
        for peer, message in messages:
            passed += isinstance(message, Chunk)
            if isinstance(message, ChunkGrant):
                relay.receive(ChunkRequest(ref.root, next(wanted)), peer, now)
        if not messages:
            due = relay.next_deadline()
            assert due is not None
            now = due
            assert now < 60, f"{passed} chunks and no more"
            relay.handle_timer(now)
    assert now > 0


def test_a_cancelled_request_is_not_served() -> None:
    data, ref = blob(8)
    relay = server(data, ref, A, B)  # of an unknown uplink one slot, one behind it, and one ahead
    chunks = iter(range(ref.total))
    asked = []
    for _ in range(3):
        for peer, _ in sent(relay, ChunkGrant):
            asked.append((peer, next(chunks)))
            relay.receive(ChunkRequest(ref.root, asked[-1][1]), peer, 0.0)
    relay.receive(ChunkCancel(ref.root, asked[-1][1]), asked[-1][0], 0.0)
    for peer in (A, B, A, B):
        relay.upload_done(peer)
    data_sent = [message.data for _, message in sent(relay, Chunk)]
    assert piece(data, ref, len(asked) - 1) not in data_sent


class SlowStore(MemoryBlobs):
    """A store that has to fetch some chunks first."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: set[int] = set()
        self.asked: list[int] = []

    def ready(self, ref: BlobRef, index: int) -> bool:
        assert index < ref.total
        self.asked.append(index)
        return index not in self.slow

    def read(self, ref: BlobRef, index: int) -> bytes:
        assert index not in self.slow, "nobody waits for a chunk"
        return super().read(ref, index)


def test_chunks_that_are_not_ready_wait_and_the_others_leave() -> None:
    data, ref = blob(8)
    store = SlowStore()
    store.add(ref, data)
    store.slow = {0}
    relay = Relay(store, random.Random(1), RelayConfig(upload_bytes_s=1000.0))  # one slot, and one behind it
    relay.fetch(ref, 0.0)
    for peer in (A, B):
        relay.add_neighbor(peer, is_source=False)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    passed, asked = [], 0
    for _ in range(9):
        relay.flush(0.0)
        messages, relay.outbox[:] = list(relay.outbox), []
        for peer, message in messages:
            if isinstance(message, Chunk):
                passed.append(message.index)
                relay.upload_done(peer)
            if isinstance(message, ChunkGrant) and asked < 5:
                relay.receive(ChunkRequest(ref.root, asked), peer, 0.0)
                asked += 1
    assert passed == [1, 2, 3, 4]
    assert not sent(relay, Chunk), "nothing is due before the chunk is there"
    store.slow.clear()
    assert [message.data for _, message in sent(relay, Chunk)] == [piece(data, ref, 0)]


class ForgetfulStore(MemoryBlobs):
    """A store that has just forgotten what its node still offers."""

    def read(self, ref: BlobRef, index: int) -> bytes:
        raise StaleWorkError(f"chunk {index} of {ref.root.hex()}")


def test_a_chunk_that_the_store_has_forgotten_is_refused() -> None:
    data, ref = blob(2)
    store = ForgetfulStore()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig(upload_bytes_s=100_000.0))
    relay.fetch(ref, 0.0)
    relay.add_neighbor(A, is_source=False)
    relay.receive(BlobQuery(ref.root), A, 0.0)
    assert sent(relay, ChunkGrant)
    relay.receive(ChunkRequest(ref.root, 0), A, 0.0)
    relay.flush(0.0)
    assert (A, ChunkRefused(ref.root, 0, 0)) in relay.outbox
    assert not any(isinstance(message, Chunk) for _, message in relay.outbox)


def test_no_more_chunks_are_fetched_than_slots_are_free() -> None:
    data, ref = blob(40)
    store = SlowStore()
    store.add(ref, data)
    store.slow = set(range(40))
    peers = [PeerId(f"peer{number}") for number in range(12)]
    relay = Relay(store, random.Random(1), RelayConfig(upload_bytes_s=1000.0))  # one slot, and one behind it
    relay.fetch(ref, 0.0)
    for peer in peers:
        relay.add_neighbor(peer, is_source=False)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    wanted = iter(range(ref.total))
    for _ in range(4):
        for peer, _ in sent(relay, ChunkGrant):
            relay.receive(ChunkRequest(ref.root, next(wanted)), peer, 0.0)
    assert set(store.asked) == {0, 1}


def test_no_uploads_while_the_budget_is_spent() -> None:
    data, ref = blob(4)
    relay = server(data, ref, A)
    relay.allow_uploads(False)
    assert not sent(relay, ChunkGrant)
    relay.allow_uploads(True)
    assert sent(relay, ChunkGrant)
