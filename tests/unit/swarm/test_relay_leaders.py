"""First copies to public peers: who leads, who waits for them, and what a liar gets."""

from __future__ import annotations

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import BlobQuery, ChunkGrant, ChunkRequest, Have, LinkRates
from p2prl.protocol.manifests import BlobRef
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.leaders import HOARD_S, REST_S, FirstCopy, Leaders, carry_it
from p2prl.swarm.relay.relay_config import COPIES_BESIDE_LEADERS, SOURCE_PATIENCE_S, RelayConfig
from tests.unit.swarm.relays import SOURCE, A, B, C, RelayMesh, bitmap, blob, sent, server

MBIT = 1_000
CONFIG = RelayConfig(upload_bytes_s=12.5e6)
PATIENCE_S = SOURCE_PATIENCE_S


def learner(
    chunks: int, *, public: set[PeerId], uploads: dict[PeerId, int], config: RelayConfig = CONFIG
) -> tuple[Relay, BlobRef]:
    """A learner with 100 Mbit/s whose neighbors have stated these uplinks, Mbit/s, and want a blob."""
    data, ref = blob(chunks)
    relay = server(data, ref, config=config, origin=True)
    relay.feed_public_first(lambda peer: peer in public)
    for peer, upload in uploads.items():
        relay.add_neighbor(peer, is_source=False)
        relay.receive(LinkRates(upload * MBIT, 0), peer, 0.0)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    return relay, ref


def granted(relay: Relay, now: float) -> set[PeerId]:
    """Peers granted a chunk now."""
    relay.handle_timer(now)
    return {peer for peer, _ in sent(relay, ChunkGrant, now)}


def take(relay: Relay, ref: BlobRef, now: float) -> list[tuple[PeerId, int]]:
    """Every peer requests what it is granted now, and is sent it; returns (peer, chunk) pairs."""
    found = []
    for peer, grant in sent(relay, ChunkGrant, now):
        index = max(grant.index, 0)  # −1: any it lacks
        relay.receive(ChunkRequest(ref.root, index), peer, now)
        found.append((peer, index))
    relay.flush(now)
    relay.outbox[:] = [(peer, message) for peer, message in relay.outbox if isinstance(message, ChunkGrant)]
    for peer, _ in found:
        relay.upload_done(peer)
    return found


def test_homes_wait_while_public_peers_take_the_first_copy() -> None:
    relay, _ = learner(40, public={A}, uploads={A: 100, B: 20, C: 500})
    assert {peer for peer, _ in sent(relay, ChunkGrant)} == {A}
    due = relay.next_deadline()
    assert due is not None
    assert due <= PATIENCE_S
    assert granted(relay, PATIENCE_S - 0.01) <= {A}
    assert granted(relay, PATIENCE_S) >= {B, C}, "nobody waits longer than for a volunteer"


@pytest.mark.parametrize("uploads", [{A: 99, B: 20, C: 20}, {A: 0, B: 20, C: 20}])
def test_leaders_slower_than_the_learner_lead_nobody(uploads: dict[PeerId, int]) -> None:
    relay, _ = learner(40, public={A}, uploads=uploads)
    assert {peer for peer, _ in sent(relay, ChunkGrant)} == {A, B, C}


def test_two_leaders_lead_together() -> None:
    relay, _ = learner(40, public={A, B}, uploads={A: 50, B: 50, C: 20})
    assert {peer for peer, _ in sent(relay, ChunkGrant)} == {A, B}


def test_small_blobs_are_not_late_before_a_leader_can_pass_them_on() -> None:
    """The learner could send this blob to everybody within a millisecond."""
    relay, ref = learner(2, public={A}, uploads={A: 100, B: 20, C: 20})
    assert {peer for peer, _ in take(relay, ref, 0.0)} == {A}
    relay.receive(Have(ref.root, bitmap((0, 1), 2)), A, 0.2)
    relay.receive(Have(ref.root, bitmap((0,), 2)), B, 0.3)
    relay.receive(Have(ref.root, bitmap((1,), 2)), C, 0.3)
    assert not granted(relay, 1.0)
    assert granted(relay, 0.3 + PATIENCE_S) == {B, C}, "each had a chunk from elsewhere at 0.3 s, and none since"
    plain, ref = learner(2, public=set(), uploads={A: 100, B: 20, C: 20})
    assert len(take(plain, ref, 0.0)) > 2, "without leaders the learner helps at once"


def test_beside_leaders_the_learner_sends_fewer_copies() -> None:
    relay, ref = learner(4, public={A}, uploads={A: 100, B: 20, C: 20})
    now, copies = 0.0, 0
    while now < 5.0:
        copies += len(take(relay, ref, now))
        relay.receive(Have(ref.root, bitmap(range(4), 4)), A, now)
        for peer in (B, C):
            relay.receive(Have(ref.root, bitmap(range(int(now) % 4), 4)), peer, now)
        now += 0.1
        relay.handle_timer(now)
    assert copies <= COPIES_BESIDE_LEADERS * 4 + 8


SLOW = RelayConfig(upload_bytes_s=2_500.0)
"""With this uplink a blob of 60 chunks is not late for a minute."""


def test_a_liar_that_keeps_its_chunks_leads_no_longer() -> None:
    relay, ref = learner(400, public={A}, uploads={A: 10_000, B: 20, C: 20}, config=SLOW)
    served = []
    for second in range(8):
        now = float(second)
        relay.handle_timer(now)
        served.append({peer for peer, _ in take(relay, ref, now)})
        for peer in (B, C):  # each gets a chunk from elsewhere every second, so that it is not alone
            relay.receive(Have(ref.root, bitmap(range(390, 391 + second), 400)), peer, now + 0.5)
    assert {peer for peers in served[: int(HOARD_S)] for peer in peers} == {A}
    assert {B, C} & {peer for peers in served[int(HOARD_S) :] for peer in peers}, "the others need not wait any more"


def test_a_leader_that_passes_on_keeps_its_place() -> None:
    copy = FirstCopy()
    copy.hand(0b11, 0.0)
    copy.see(0b01, 3.0)
    assert not copy.is_hoard(3.0 + HOARD_S - 0.1)
    assert copy.is_hoard(3.0 + HOARD_S)
    copy.see(0b01, 9.0)  # the same chunk again is no progress
    assert copy.is_hoard(9.0)
    copy.see(0b110, 10.0)
    assert not copy.is_hoard(1e9), "nothing is left to pass on"
    copy.hand(0b1000, 1e9)
    assert not copy.is_hoard(1e9 + HOARD_S - 0.1), "the wait begins with the new chunk"
    assert copy.is_hoard(1e9 + HOARD_S)


def test_who_kept_chunks_rests_for_a_while() -> None:
    leaders = Leaders(lambda peer: peer != C)
    hoard = FirstCopy(handed=1, moved_at=0.0)
    assert leaders.among([A, B, C], {}, 0.0) == [A, B]
    assert leaders.among([A, B], {A: hoard}, HOARD_S) == [B]
    assert leaders.among([A, B], {}, HOARD_S + REST_S - 1) == [B]
    assert leaders.among([A, B], {}, HOARD_S + REST_S) == [A, B]


def test_a_leader_with_nobody_to_serve_is_no_hoarder() -> None:
    relay, ref = learner(60, public={A}, uploads={A: 100}, config=SLOW)
    for second in range(20):
        relay.handle_timer(float(second))
        take(relay, ref, float(second))
    relay.add_neighbor(B, is_source=False)
    relay.receive(LinkRates(20 * MBIT, 0), B, 20.0)
    relay.receive(BlobQuery(ref.root), B, 20.0)
    for tenth in range(16):
        now = 20.0 + tenth / 10
        relay.handle_timer(now)
        served = {peer for peer, _ in take(relay, ref, now)}
        assert (B in served) == (now >= 20.0 + PATIENCE_S), "the newcomer waits for the leader, and no longer"


def test_carrying_takes_stated_uplinks() -> None:
    assert not carry_it([], 0.0)
    assert not carry_it([0.0], 0.0)
    assert carry_it([1.0], 0.0)
    assert carry_it([1.0, 1.0], 2.0)
    assert not carry_it([1.0, 0.9], 2.0)


def test_everybody_gets_all_through_leaders_and_none_is_much_later() -> None:
    names = [SOURCE, *(PeerId(f"peer{number}") for number in range(8))]
    data, ref = blob(64)
    took = {}
    for public in (0, 2):
        mesh = RelayMesh(names, config=CONFIG)
        mesh.relays[SOURCE].feed_public_first(frozenset(names[1 : 1 + public]).__contains__)
        mesh.offer(data, ref)
        for name in names[1:]:
            mesh.relays[name].fetch(ref, 0.0)
        took[public] = mesh.run(names[1:], ref, within_s=20.0)
        if public:
            assert mesh.relays[SOURCE].stats.sent <= COPIES_BESIDE_LEADERS * len(data)
    assert took[2] <= took[0] + PATIENCE_S


def test_a_volunteer_sends_weights_through_circuits_within_its_budget() -> None:
    data, ref = blob(64)
    config = RelayConfig(circuit_patience_s=30.0, circuit_bytes_s=4096.0)  # one chunk a second
    relay = server(data, ref, A, B, config=config)
    relay.use_circuits_last(lambda _: True)
    chunks, passed = iter(range(ref.total)), 0
    for second in range(30, 60):
        relay.handle_timer(float(second))
        for peer, _ in sent(relay, ChunkGrant, float(second)):
            relay.receive(ChunkRequest(ref.root, next(chunks)), peer, float(second))
            relay.flush(float(second))
            relay.upload_done(peer)
            passed += 1
    assert 25 <= passed <= 31, "one for each second, over both peers"
