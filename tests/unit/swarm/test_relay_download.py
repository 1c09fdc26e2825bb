"""Download half of the chunk relay: chunk choice, wrong bytes, refusals, endgame, window."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import (
    BlobQuery,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    GrantDeclined,
    Have,
)
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import REQUERY_S, REQUEST_TIMEOUT_S, RelayConfig
from p2prl.swarm.relay.state import Neighbor
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.unit.swarm.relays import CHUNK, SOURCE, A, B, C, bitmap, blob, chunk, fetcher, piece, poisoned, sent


def test_rarest_chunk_first() -> None:
    _, ref = blob(4)
    relay = fetcher(ref, A, B, C)
    relay.receive(Have(ref.root, bitmap({0, 1, 2, 3}, 4)), A, 0.0)
    relay.receive(Have(ref.root, bitmap({0, 1, 3}, 4)), B, 0.0)
    relay.receive(Have(ref.root, bitmap({0, 3}, 4)), C, 0.0)
    for peer in (A, B, C):
        relay.receive(ChunkGrant(ref.root, -1), peer, 0.0)
    asked = {peer: message.index for peer, message in sent(relay, ChunkRequest)}
    assert asked[A] == 2
    assert asked[B] == 1
    assert asked[C] in (0, 3)


def test_wrong_bytes_and_unrequested_chunks_are_refused() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.0)
    for _ in range(2):
        relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    asked = [message.index for _, message in sent(relay, ChunkRequest)]
    assert len(asked) == 2
    with pytest.raises(BadChunkError):
        relay.receive(poisoned(chunk(data, ref, asked[0])), A, 0.0)
    for index in range(4):
        if index in asked:
            relay.receive(chunk(data, ref, index), A, 0.0)
        else:
            with pytest.raises(BadChunkError):
                relay.receive(chunk(data, ref, index), A, 0.0)
    assert relay.progress(ref.root) == (2, 4)


def test_an_answer_after_a_reconnect_is_accepted() -> None:
    data, ref = blob(1)
    relay = fetcher(ref, A)
    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    assert sent(relay, ChunkRequest)
    relay.remove_neighbor(A)
    relay.add_neighbor(A, is_source=False)
    relay.receive(chunk(data, ref, 0), A, 1.0)
    assert relay.completed == [ref.root]


def test_refusals_with_and_without_a_retry_time() -> None:
    _, ref = blob(1)
    relay = fetcher(ref, A)

    def answers_a_grant(now: float) -> bool:
        relay.receive(ChunkGrant(ref.root, -1), A, now)
        return bool(sent(relay, ChunkRequest, now))

    relay.receive(Have(ref.root, b"\x01"), A, 0.0)
    assert answers_a_grant(0.0)
    relay.receive(ChunkRefused(ref.root, 0, 500), A, 0.0)
    assert not answers_a_grant(0.1)
    relay.handle_timer(0.5)
    assert answers_a_grant(0.5)
    relay.receive(ChunkRefused(ref.root, 0, 0), A, 0.6)
    assert not answers_a_grant(2.0)


def test_endgame_duplicates_only_much_later_chunks() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A, B)
    for peer in (A, B):
        relay.receive(Have(ref.root, bitmap(range(4), 4)), peer, 0.0)

    def grant(peer: PeerId, now: float) -> list[int]:
        relay.receive(ChunkGrant(ref.root, -1), peer, now)
        return [message.index for _, message in sent(relay, ChunkRequest, now)]

    def deliver(peer: PeerId, index: int, now: float) -> None:
        relay.receive(chunk(data, ref, index), peer, now)

    deliver(A, grant(A, 0.0)[0], 2.0)  # two seconds per chunk
    deliver(B, grant(B, 2.0)[0], 2.5)  # half a second
    slow, last = grant(A, 3.0)[0], grant(B, 3.0)[0]
    deliver(B, last, 3.5)
    assert relay.progress(ref.root) == (3, 4)
    assert not grant(B, 4.4), "it arrives in 0.6 s, and a copy would take 0.5"
    relay.handle_timer(4.4)
    assert grant(B, 7.4) == [slow], "it is 2.4 s late already"
    assert not grant(B, 7.4), "two copies are on their way"
    deliver(B, slow, 7.9)
    assert relay.completed == [ref.root]
    relay.receive(chunk(data, ref, slow), A, 8.0)
    assert relay.stats.wasted == len(piece(data, ref, slow))


class LastChunks:
    """A download of which eight chunks have arrived: from A in 1 s each, from B in 3 s, from C in half a second."""

    def __init__(self, total: int) -> None:
        self.data, self.ref = blob(total)
        self.relay = fetcher(self.ref, A, B, C)
        for peer in (A, B, C):
            self.relay.receive(Have(self.ref.root, bitmap(range(total), total)), peer, 0.0)
        for number in range(6):
            self.deliver(A, self.grant(A, float(number))[0], number + 1.0)
        self.deliver(B, self.grant(B, 6.0)[0], 9.0)
        self.deliver(C, self.grant(C, 9.0)[0], 9.5)

    def grant(self, peer: PeerId, now: float) -> list[int]:
        self.relay.receive(ChunkGrant(self.ref.root, -1), peer, now)
        return [message.index for _, message in sent(self.relay, ChunkRequest, now)]

    def deliver(self, peer: PeerId, index: int, now: float) -> None:
        self.relay.receive(chunk(self.data, self.ref, index), peer, now)


def test_a_slow_neighbor_is_not_asked_for_what_would_arrive_last() -> None:
    last = LastChunks(10)
    assert len(last.grant(A, 10.0)) == 1
    assert not last.grant(B, 10.0), "two are left; A's comes in a second, and this one two seconds later"
    assert len(last.grant(C, 10.0)) == 1


def test_a_slow_neighbor_is_asked_when_nobody_else_is_sending() -> None:
    assert len(LastChunks(9).grant(B, 10.0)) == 1


def test_a_slow_neighbor_is_asked_while_much_is_left() -> None:
    last = LastChunks(30)
    assert len(last.grant(A, 10.0)) == 1
    assert len(last.grant(B, 10.0)) == 1


def test_chunks_of_a_neighbor_that_fell_silent_are_asked_of_others_beyond_the_bound() -> None:
    last = LastChunks(11)
    lying = [index for _ in range(3) for index in last.grant(A, 10.0)]
    assert len(lying) == 3
    # Its chunks took a second, so at 12.5 s it has been silent for half a second and two chunks.
    first = last.grant(C, 12.4)
    assert len(first) == 1, "one second copy is within the bound"
    last.deliver(C, first[0], 12.45)
    assert not last.grant(C, 12.45)
    assert set(last.grant(C, 12.5) + last.grant(C, 12.5)) == set(lying) - set(first)


def test_the_last_chunk_of_all_has_a_second_request_of_its_own() -> None:
    last = LastChunks(10)
    slow = last.grant(B, 10.0) + last.grant(B, 10.0)  # three seconds each
    assert len(slow) == 2
    (first,) = last.grant(C, 10.1)
    assert not last.grant(C, 10.1), "the bound is spent"
    last.deliver(C, first, 10.6)
    assert last.grant(C, 10.6) == [index for index in slow if index != first]
    assert not last.grant(A, 10.6), "two copies are on their way"


def test_a_neighbor_that_sends_others_of_its_chunks_is_not_silent() -> None:
    last = LastChunks(11)
    asked = last.grant(A, 10.0) + last.grant(A, 10.0) + last.grant(B, 10.0)
    assert len(asked) == 3
    (second,) = last.grant(C, 12.4)
    assert second in asked[:2], "one second copy is within the bound"
    last.deliver(A, second, 12.45)  # late, so that its chunks take 1.4 s on average
    assert not last.grant(C, 14.0)
    assert last.grant(C, 15.9) == [index for index in asked[:2] if index != second]


def test_only_slow_neighbors_fill_a_window_that_slow_neighbors_need() -> None:
    """A downlink of ten chunks a second: 20 in two seconds, and 13 more from neighbors that have one each."""
    _, ref = blob(200)
    peers = [PeerId(f"peer{number}") for number in range(60)]
    config = RelayConfig(download_bytes_s=10.0 * CHUNK, window_s=2.0, least_bytes_s=CHUNK / 1.65)
    relay = fetcher(ref, *peers, config=config)
    asked = Counter[PeerId]()
    for peer in [peer for peer in peers[:11] for _ in range(2)] + peers[11:] + peers[:11]:
        relay.receive(Have(ref.root, bitmap(range(200), 200)), peer, 0.0)
        relay.receive(ChunkGrant(ref.root, -1), peer, 0.0)
    asked.update(peer for peer, message in relay.outbox if isinstance(message, ChunkRequest))
    assert sum(asked.values()) == 33
    assert all(asked[peer] <= 2 for peer in peers)


def test_requests_to_slow_neighbors_keep_out_no_fast_one() -> None:
    """A window of four chunks, five neighbors that take 20 s for a chunk, and one that takes a tenth of a second."""
    data, ref = blob(60)
    slow, fast = [PeerId(f"slow{number}") for number in range(5)], A
    relay = fetcher(ref, fast, *slow, config=RelayConfig(download_bytes_s=float(CHUNK), window_s=2.0))

    def grant(peer: PeerId, now: float) -> list[int]:
        relay.receive(ChunkGrant(ref.root, -1), peer, now)
        return [message.index for _, message in sent(relay, ChunkRequest, now)]

    for number, peer in enumerate((*slow, fast)):
        relay.receive(Have(ref.root, bitmap(range(60), 60)), peer, 0.0)
        began = 21.0 * number
        relay.receive(chunk(data, ref, grant(peer, began)[0]), peer, began + (0.1 if peer == fast else 20.0))
    assert all(len(grant(peer, 130.0)) == 1 for peer in slow)
    assert sum(len(grant(fast, 130.0)) for _ in range(6)) == 4


def test_a_timed_out_request_is_cancelled_and_moved() -> None:
    data, ref = blob(1)
    relay = fetcher(ref, A, B)
    for peer in (A, B):
        relay.receive(Have(ref.root, b"\x01"), peer, 0.0)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    assert sent(relay, ChunkRequest)
    late = REQUEST_TIMEOUT_S
    relay.handle_timer(late)
    assert sent(relay, ChunkCancel, late) == [(A, ChunkCancel(ref.root, 0))]
    relay.receive(ChunkGrant(ref.root, -1), B, late)
    assert [peer for peer, _ in sent(relay, ChunkRequest, late)] == [B]
    relay.receive(chunk(data, ref, 0), B, late)
    assert relay.completed == [ref.root]


def test_requests_fit_the_downlink_window() -> None:
    _, ref = blob(100)
    peers = [PeerId(f"peer{number}") for number in range(50)]
    config = RelayConfig(download_bytes_s=5 * CHUNK, window_s=2.0)
    relay = fetcher(ref, *peers, config=config)
    for peer in peers:
        relay.receive(Have(ref.root, bitmap(range(100), 100)), peer, 0.0)
        relay.receive(ChunkGrant(ref.root, -1), peer, 0.0)
    answers = Counter(type(message) for _, message in relay.outbox)
    assert answers[ChunkRequest] == 10
    assert answers[GrantDeclined] == 40


def test_request_history_is_bounded() -> None:
    holder = Neighbor(is_source=False, request_history={})
    made = [(Digest(bytes(32)), number) for number in range(20_000)]
    for name in made:
        holder.note_request(name, 0.0, 1.0)
    assert list(holder.request_history) == made[-16_384:]


@pytest.mark.parametrize(("chunks", "asked"), [(3, 8), (12, 12), (40, 20)])
def test_queries_go_to_a_few_peers_then_to_all(chunks: int, asked: int) -> None:
    _, ref = blob(chunks)
    relay = Relay(MemoryBlobs(), random.Random(4), RelayConfig())
    volunteers = [PeerId(f"v{number}") for number in range(20)]
    for peer in (SOURCE, *volunteers):
        relay.add_neighbor(peer, is_source=peer == SOURCE)

    def queried() -> set[PeerId]:
        peers = {peer for peer, message in relay.outbox if isinstance(message, BlobQuery)}
        relay.outbox.clear()
        return peers

    relay.fetch(ref, 0.0)
    first = queried()
    assert SOURCE in first
    assert len(first) == 1 + asked
    due = relay.next_deadline()
    assert due == REQUERY_S
    relay.handle_timer(due)
    assert queried() == {SOURCE, *volunteers}
