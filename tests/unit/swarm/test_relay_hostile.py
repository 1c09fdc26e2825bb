"""Hostile and unlucky neighbors of the chunk relay: what each costs, and whom."""

from __future__ import annotations

import random

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import BlobQuery, ChunkCancel, ChunkGrant, ChunkRequest, Have, LinkRates
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.chunk_faults import BadChunkError
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.swarm.relay.relay_config import REQUEST_TIMEOUT_S, STALL_S, RelayConfig
from p2prl.swarm.relay.state import ANNOUNCED_BYTES
from p2prl.swarm.relay.upload_slots import MOST_UNDER_WAY, Grant, Upload, UploadSlots
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.hostile_neighbors import NeverAcknowledges, SilentGranter
from tests.unit.swarm.relays import CHUNK, SOURCE, A, B, RelayMesh, bitmap, blob, chunk, fetcher, poisoned, sent, server

ROOT = blob(1)[1].root


def test_a_claim_of_1_kbit_buys_no_patience() -> None:
    """At 1 kbit/s two turns of a chunk of 512 KiB would take more than two hours."""
    _, ref = blob(4)
    relay = fetcher(ref, A, B)
    relay.receive(LinkRates(1, 0), A, 0.0)
    for peer in (A, B):
        relay.receive(Have(ref.root, bitmap(range(4), 4)), peer, 0.0)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    (requested,) = sent(relay, ChunkRequest)
    late = REQUEST_TIMEOUT_S
    relay.handle_timer(late - 0.1)
    assert not sent(relay, ChunkCancel, late - 0.1)
    relay.handle_timer(late)
    assert sent(relay, ChunkCancel, late) == [(A, ChunkCancel(ref.root, requested[1].index))]


def test_patience_does_not_grow_with_what_a_neighbor_makes_one_wait() -> None:
    data, ref = blob(16)
    relay, now = fetcher(ref, A), 0.0
    relay.receive(Have(ref.root, bitmap(range(16), 16)), A, now)
    longest = REQUEST_TIMEOUT_S
    for _ in range(8):  # each chunk comes at the last moment
        relay.receive(ChunkGrant(ref.root, -1), A, now)
        ((_, request),) = sent(relay, ChunkRequest, now)
        now += longest - 0.01
        relay.handle_timer(now)
        if sent(relay, ChunkCancel, now):
            break
        relay.receive(chunk(data, ref, request.index), A, now)
    relay.receive(ChunkGrant(ref.root, -1), A, now)
    if sent(relay, ChunkRequest, now):
        relay.handle_timer(now + longest)
        assert sent(relay, ChunkCancel, now + longest)


def test_silent_granters_delay_a_download_by_seconds() -> None:
    data, ref = blob(48)
    liars = [PeerId(f"liar{number}") for number in range(3)]
    mesh = RelayMesh([SOURCE, A, B])
    for liar in liars:
        mesh.add_stranger(liar, SilentGranter(ref))
    mesh.offer(data, ref)
    for name in (A, B):
        mesh.relays[name].fetch(ref, 0.0)
    mesh.run([A, B], ref, within_s=4 * REQUEST_TIMEOUT_S)


def test_keys_that_never_acknowledge_starve_nobody() -> None:
    """Thirty of them claim 4 Gbit/s; the shell holds what it could not send."""
    data, ref = blob(48)
    liars = [PeerId(f"liar{number}") for number in range(30)]
    mesh = RelayMesh([SOURCE, A, B], config=RelayConfig(upload_bytes_s=20 * CHUNK))
    for liar in liars:
        mesh.add_stranger(liar, NeverAcknowledges(ref))
    mesh.offer(data, ref)
    for name in (A, B):
        mesh.relays[name].fetch(ref, 0.0)
    mesh.run([A, B], ref, within_s=30.0)
    held = sum(count for (_, destination), count in mesh.unreported.items() if destination in liars)
    assert held <= 3 * (16 + 20), "each of three relays holds a few chunks for them, and not one for every grant"


def test_a_restarted_node_does_not_ban_for_what_it_asked_before() -> None:
    data, ref = blob(4)
    relay = fetcher(ref, A)  # it has just restarted, and asked A for nothing yet
    with pytest.raises(BadChunkError) as early:
        relay.receive(chunk(data, ref, 0), A, 0.0)
    assert not early.value.is_proof
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.0)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    ((_, request),) = sent(relay, ChunkRequest)
    other = next(index for index in range(4) if index != request.index)
    with pytest.raises(BadChunkError) as late:
        relay.receive(chunk(data, ref, other), A, 0.1)
    assert not late.value.is_proof, "true bytes of a blob it wants"
    assert early.value.is_leftover
    assert late.value.is_leftover
    with pytest.raises(BadChunkError) as wrong:
        relay.receive(poisoned(chunk(data, ref, other)), A, 0.2)
    assert wrong.value.is_proof
    assert not wrong.value.is_leftover
    excused = 0
    for _ in range(100):
        with pytest.raises(BadChunkError) as again:
            relay.receive(chunk(data, ref, other), A, 0.3)
        assert not again.value.is_proof
        excused += again.value.is_leftover
    assert excused == MOST_UNDER_WAY - 2, "no more than it may have asked for"


def test_announcements_cost_what_their_rate_allows() -> None:
    """Of a burst the newest counts, soon; the others are not even looked at."""
    total = 4_096
    _, ref = blob(total)
    relay = fetcher(ref, A)
    for index in range(total):
        relay.receive(Have(ref.root, bitmap((index,), total)), A, 0.0)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
    ((_, request),) = sent(relay, ChunkRequest)
    assert request.index != total - 1, "the newest waits"
    due = relay.next_deadline()
    assert due is not None
    assert due <= 0.1
    relay.handle_timer(due)
    relay.flush(due)
    relay.outbox.clear()
    relay.receive(ChunkGrant(ref.root, -1), A, due)
    assert [request.index for _, request in sent(relay, ChunkRequest, due)] == [total - 1]


def test_announcements_of_many_large_blobs_are_remembered_within_a_bound() -> None:
    refs = [BlobRef(200_000 * CHUNK, CHUNK, bytes([number]) * 32) for number in range(5)]
    relay = fetcher(refs[0], A, B)
    for ref in refs[1:]:
        relay.fetch(ref, 0.0)
    everything = to_bitmap((1 << 200_000) - 1, 200_000)
    for ref in refs:
        relay.receive(BlobQuery(ref.root), A, 0.0)
        relay.receive(Have(ref.root, everything), A, 0.0)
    held = relay._state.neighbors[A].held
    assert list(held) == [ref.root for ref in refs[-2:]], "two of 25 kB fit, and the newest count"
    forgotten = [relay._state.transfers[ref.root] for ref in refs[:3]]
    assert all(transfer.rarity._with_copies[0] == transfer.all_chunks for transfer in forgotten), (
        "what is forgotten is not counted"
    )
    for ref in refs * 16:  # beyond the rate: some wait
        relay.receive(Have(ref.root, everything), A, 0.0)
    assert 0 < sum(map(len, relay._state.neighbors[A].late_haves.values())) <= ANNOUNCED_BYTES
    relay.remove_neighbor(A)
    assert all(transfer.rarity._with_copies[0] == transfer.all_chunks for transfer in relay._state.transfers.values())


def test_large_blobs_are_announced_less_often() -> None:
    """A set of 200,000 chunks has 25 kB: ten of them a second would take two Mbit/s for each neighbor."""
    _, small = blob(4)
    for ref, least_s in ((small, 0.1), (BlobRef(200_000 * CHUNK, CHUNK, bytes(32)), 4.8)):
        relay = fetcher(ref, A)
        relay.receive(BlobQuery(ref.root), A, 0.0)
        assert sent(relay, Have, 0.0)
        relay._state.transfers[ref.root].have_changed = True
        due = min(relay._uploads.deadlines())
        assert least_s <= due < 1.1 * least_s


def test_a_grant_comes_after_the_announcement_it_needs() -> None:
    data, ref = blob(4)
    relay = server(data, ref, A)
    relay.flush(0.0)
    kinds = [type(message) for peer, message in relay.outbox if peer == A]
    assert kinds.index(Have) < kinds.index(ChunkGrant)


def test_a_chunk_gained_since_the_last_announcement_is_announced_with_its_grant() -> None:
    data, ref = blob(4)
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig(announce_s=5.0))
    for peer in (A, B):
        relay.add_neighbor(peer, is_source=False)
    relay.fetch(ref, 0.0)
    relay.receive(BlobQuery(ref.root), B, 0.0)
    relay.flush(0.0)  # B is told: nothing yet
    relay.receive(Have(ref.root, bitmap(range(4), 4)), A, 0.1)
    relay.receive(ChunkGrant(ref.root, -1), A, 0.1)
    ((_, request),) = sent(relay, ChunkRequest, 0.1)
    relay.receive(chunk(data, ref, request.index), A, 0.2)
    relay.flush(0.2)
    to_b = [type(message) for peer, message in relay.outbox if peer == B]
    assert to_b == [Have, ChunkGrant]


def test_a_failed_send_is_no_delivery() -> None:
    slots = UploadSlots(8, 2)
    slots.pipeline, slots.share = 40, 3

    def deliver(*, delivered: bool) -> None:
        slots.enqueue(Upload(A, (ROOT, 0)))
        assert slots.next_upload(lambda _: True) == Upload(A, (ROOT, 0))
        slots.began(A, 9.0)
        slots.done(A, delivered=delivered)

    def granted() -> int:
        count = 0
        while slots.may_grant(A):
            slots.grant(Grant(A, ROOT, 0, 9.0))
            count += 1
        for _ in range(count):
            slots.redeem(A)
        return count

    for _ in range(3):
        deliver(delivered=False)
    assert granted() == 2, "nothing is proven"
    for _ in range(3):
        deliver(delivered=True)
    assert granted() == 5
    deliver(delivered=False)
    assert granted() == 2, "and no longer"


def test_who_cannot_be_sent_to_rests_longer_each_time() -> None:
    data, ref = blob(64)
    relay, now = server(data, ref, A), 0.0
    rests: list[float] = []
    chunks = iter(range(ref.total))
    for _ in range(4):
        begun = now
        while not (grants := sent(relay, ChunkGrant, now)):
            due = relay.next_deadline()
            assert due is not None
            now = due
            relay.handle_timer(now)
        rests.append(now - begun)
        for _ in grants:
            relay.receive(ChunkRequest(ref.root, next(chunks)), A, now)
        relay.flush(now)
        relay.outbox.clear()
        for _ in grants:
            relay.upload_done(A, False)
        relay.flush(now)
        relay.outbox.clear()
    assert rests[0] == 0.0
    assert rests[1] >= STALL_S
    assert rests[2] >= 2 * rests[1]
    assert rests[3] >= 2 * rests[2]
