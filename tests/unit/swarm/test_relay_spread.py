"""Spread of blobs among relays: copies sent, resuming, malformed messages."""

from __future__ import annotations

import random

import pytest

from p2prl.errors import RemoteProtocolError
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
)
from p2prl.protocol.manifests import blob_of
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import REQUEST_TIMEOUT_S, RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.unit.swarm.relays import CHUNK, SOURCE, A, B, C, RelayMesh, bitmap, blob, chunk, piece, sent


def test_source_sends_about_one_copy() -> None:
    data, ref = blob(64)
    peers = [PeerId(f"peer{i}") for i in range(8)]
    mesh = RelayMesh([SOURCE, *peers])
    mesh.offer(data, ref)
    for peer in peers:
        mesh.relays[peer].fetch(ref, 0.0)
    mesh.run(peers, ref, within_s=30)
    assert all(mesh.stores[peer].whole(ref) == data for peer in peers)
    copies = mesh.relays[SOURCE].stats.sent / len(data)
    assert 1.0 <= copies <= 1.3, copies
    assert sum(mesh.relays[peer].stats.wasted for peer in peers) <= 0.01 * 8 * len(data)


def test_a_lone_volunteer_is_served_without_delay() -> None:
    data, ref = blob(64)
    mesh = RelayMesh([SOURCE, A])
    mesh.offer(data, ref)
    mesh.relays[A].fetch(ref, 0.0)
    mesh.run([A], ref, within_s=64 / 2 * 3 * mesh.step_s + 1)


def test_a_newcomer_is_served_by_volunteers() -> None:
    data, ref = blob(32)
    mesh = RelayMesh([SOURCE, A, B])
    mesh.offer(data, ref)
    mesh.relays[A].fetch(ref, 0.0)
    mesh.run([A], ref, within_s=20)
    before = mesh.relays[SOURCE].stats.sent
    mesh.relays[B].fetch(ref, mesh.now)
    mesh.run([B], ref, within_s=20)
    assert mesh.relays[SOURCE].stats.sent == before
    assert mesh.relays[B].stats.received_from_peers == len(data)


def test_what_came_over_circuits_is_counted_apart() -> None:
    """B hears A, which has the whole blob, through a circuit; the learner has left."""
    data, ref = blob(8)
    mesh = RelayMesh([SOURCE, A, B], config=RelayConfig(circuit_patience_s=0.0))
    mesh.offer(data, ref)
    mesh.relays[A].fetch(ref, 0.0)
    mesh.run([A], ref, within_s=20)
    mesh.silent.add(SOURCE)
    mesh.relays[B].use_circuits_last(lambda peer: peer == A)
    mesh.relays[B].fetch(ref, mesh.now)
    mesh.run([B], ref, within_s=60)
    stats = mesh.relays[B].stats
    assert stats.received_over_circuits == stats.received_from_peers > 0
    assert stats.received_from_peers + stats.received_from_source == len(data)
    assert mesh.relays[A].stats.received_over_circuits == 0


def test_a_silent_peer_costs_one_timeout() -> None:
    data, ref = blob(24)
    mesh = RelayMesh([A, B, C], config=RelayConfig(strikes=2))
    for holder in (A, B):
        mesh.offer(data, ref, holder)
    mesh.silent = {A}
    mesh.relays[C].fetch(ref, 0.0)
    taken = mesh.run([C], ref, within_s=20)
    assert taken < 2 * REQUEST_TIMEOUT_S
    assert mesh.stores[C].whole(ref) == data


def test_a_transfer_resumes_from_verified_chunks_on_disk() -> None:
    data, ref = blob(6)
    store = MemoryBlobs()
    store.begin(ref)
    for index in (1, 3):
        store.write(ref, index, piece(data, ref, index), chunk(data, ref, index).proof)
    store.write(ref, 4, b"torn write", chunk(data, ref, 4).proof)
    relay = Relay(store, random.Random(1), RelayConfig(pipeline_depth=10))
    relay.fetch(ref, 0.0)
    assert relay.progress(ref.root) == (2, 6)
    relay.add_neighbor(A, is_source=False)
    relay.receive(Have(ref.root, bitmap(range(6), 6)), A, 0.0)
    for _ in range(6):
        relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    asked = [m.index for _, m in sent(relay, ChunkRequest)]
    assert sorted(asked) == [0, 2, 4, 5]


def test_a_complete_blob_completes_at_once_each_time() -> None:
    data, ref = blob(3)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig())
    relay.fetch(ref, 0.0)
    relay.fetch(ref, 1.0)
    assert relay.completed == [ref.root, ref.root]


def test_a_blob_of_equal_chunks_arrives() -> None:
    data = bytes(5 * CHUNK)
    ref = blob_of(data, CHUNK)
    mesh = RelayMesh([SOURCE, A])
    mesh.offer(data, ref)
    mesh.relays[A].fetch(ref, 0.0)
    mesh.run([A], ref, within_s=5)
    assert mesh.stores[A].whole(ref) == data


def test_dropped_blobs_are_not_served_or_stored() -> None:
    data, ref = blob(3)
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), RelayConfig())
    relay.offer(ref, 0.0)
    relay.add_neighbor(A, is_source=False)
    relay.drop(ref.root)
    relay.drop(ref.root)
    relay.receive(ChunkRequest(ref.root, 0), A, 0.0)
    relay.receive(BlobQuery(ref.root), A, 0.0)
    assert [m for _, m in relay.outbox] == [ChunkRefused(ref.root, 0, 0), Have(ref.root, b"")]
    assert store.size_bytes == 0


def test_malformed_messages_are_refused() -> None:
    _, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbor(A, is_source=False)
    relay.fetch(ref, 0.0)
    for message in (
        Have(ref.root, b"\xff\xff"),
        Have(b"x", b""),
        BlobQuery(b""),
        ChunkRequest(bytes(33), 0),
        ChunkRequest(ref.root, -1),
        ChunkRequest(ref.root, 1 << 62),
        ChunkRefused(b"", 0, 0),
        Chunk(ref.root, 4, b"", b""),
        ChunkGrant(b"", -1),
        GrantDeclined(bytes(31), 0),
        ChunkCancel(b"x", 0),
    ):
        with pytest.raises(RemoteProtocolError):
            relay.receive(message, A, 0.0)
    relay.receive(Have(ref.root, b"\xff"), B, 0.0)  # not a neighbor: ignored


def test_deadlines_lie_after_the_last_timer() -> None:
    _, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    relay.add_neighbor(A, is_source=True)
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
    assert 10 <= queries <= 13, "asked again every five seconds while nothing arrives"
    assert timers < 20
