"""Chunks under way between two peers: few until they are proven, then as many as leave in a round trip."""

from __future__ import annotations

import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import ChunkGrant, ChunkRequest, Have, LinkRates
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl.swarm.relay.upload_slots import (
    Grant,
    Upload,
    UploadSlots,
    ahead_for,
    depth_beyond,
    in_flight,
    pipeline_for,
    slots_for,
)
from tests.unit.swarm.relays import CHUNK, A, bitmap, blob, chunk, fetcher, sent, server

ROOT = Digest(bytes(32))
DEPTH = RelayConfig().pipeline_depth


def granted(slots: UploadSlots) -> int:
    """Grants that A gets now, without an answer; they are taken back."""
    count = 0
    while slots.may_grant(A):
        slots.grant(Grant(A, ROOT, 0, 9.0))
        count += 1
    for _ in range(count):
        slots.redeem(A)
    return count


def deliver(slots: UploadSlots, count: int) -> None:
    for _ in range(count):
        slots.enqueue(Upload(A, (ROOT, 0)))
        assert slots.next_upload(lambda _: True) == Upload(A, (ROOT, 0))
        slots.began(A, 9.0)
        slots.done(A)


def test_chunks_of_a_round_trip() -> None:
    assert in_flight(2.5e6, 65_536) == int(2.5e6 * 0.3 / 65_536) == 11
    assert in_flight(2.5e6, 0) == 0
    assert in_flight(0.0, 65_536) == in_flight(-1.0, 0) == slots_for(0.0)
    assert pipeline_for(0.0, 65_536) == slots_for(0.0) + 1
    assert pipeline_for(2.5e6, 65_536) == slots_for(2.5e6) + 1 + 11


def test_nothing_is_granted_ahead_where_a_chunk_takes_longer_than_a_round_trip() -> None:
    assert ahead_for(0.0, 262_144) == slots_for(0.0), "the first chunk shows the rate"
    assert ahead_for(262_144 / 0.3 - 1, 262_144) == 0
    assert ahead_for(262_144 / 0.3 + 1, 262_144) == pipeline_for(262_144 / 0.3 + 1, 262_144) - 1 == 2
    slow = UploadSlots(1, DEPTH)
    slow.ahead = 0
    assert slow.room == slow.pipeline == 2
    for left in (1, 0):
        slow.grant(Grant(A, ROOT, 0, 9.0))
        assert slow.room == left


def test_depth_grows_with_what_was_delivered_up_to_the_round_trip() -> None:
    assert [depth_beyond(delivered, 5) for delivered in (-1, 0, 1, 5, 6)] == [0, 0, 1, 5, 5]
    assert depth_beyond(10_000, 10_000) == 32


def test_a_pair_gets_more_grants_as_it_proves_itself() -> None:
    slots = UploadSlots(8, DEPTH)
    slots.pipeline, slots.share = 40, 3
    seen = [granted(slots)]
    for _ in range(5):
        deliver(slots, 1)
        seen.append(granted(slots))
    assert seen == [DEPTH, DEPTH + 1, DEPTH + 2, DEPTH + 3, DEPTH + 3, DEPTH + 3]
    slots.declined(A)
    assert granted(slots) == DEPTH + 2, "half of the five it took"
    deliver(slots, 999)
    for left in (3, 3, 3, 2, 1, 0):  # of 32 at most, 16, 8, 4, 2, 1, 0
        slots.declined(A)
        assert granted(slots) == DEPTH + left
    deliver(slots, 9)
    slots.share = 0
    assert granted(slots) == DEPTH, "the round trip is shared with others now"


def test_what_was_granted_is_sent_at_its_depth_after_the_last_grant() -> None:
    slots = UploadSlots(8, DEPTH)
    slots.pipeline, slots.share = 40, 3
    deliver(slots, 5)
    slots.grants_beyond = False
    assert granted(slots) == DEPTH
    for _ in range(DEPTH + 3):
        slots.enqueue(Upload(A, (ROOT, 0)))
    sent = 0
    while slots.next_upload(lambda _: True) is not None:
        slots.began(A, 9.0)
        sent += 1
    assert sent == DEPTH + 3


def test_a_pair_has_a_round_trip_of_grants_beside_a_round_trip_of_chunks() -> None:
    slots = UploadSlots(8, DEPTH)
    slots.pipeline, slots.share = 40, 3
    deliver(slots, 5)
    for _ in range(DEPTH + 3):
        slots.began(A, 9.0)
    assert granted(slots) == DEPTH + 3
    slots.began(A, 9.0)
    assert granted(slots) == DEPTH + 2


def test_a_chunk_that_is_never_acknowledged_ends_that() -> None:
    slots = UploadSlots(8, DEPTH)
    slots.pipeline, slots.share = 40, 3
    deliver(slots, 5)
    slots.began(A, 2.0)
    slots.expire(2.0)
    assert granted(slots) == DEPTH
    slots.done(A)  # too late: its slot was free already
    assert granted(slots) == DEPTH
    deliver(slots, 2)
    slots.remove_peer(A)
    assert granted(slots) == DEPTH


@pytest.mark.parametrize(("others", "more"), [(0, True), (5, False)])
def test_one_receiver_fills_a_long_line_and_many_share_it(others: int, *, more: bool) -> None:
    data, ref = blob(64)
    rate = 5 * CHUNK / 0.3  # five chunks in a round trip
    receivers = (A, *(PeerId(f"peer{number}") for number in range(others)))
    relay = server(data, ref, *receivers, config=RelayConfig(upload_bytes_s=rate))
    chunks = iter(range(ref.total))
    for _ in range(8):
        for peer, _ in sent(relay, ChunkGrant):
            if peer == A:
                relay.receive(ChunkRequest(ref.root, next(chunks)), A, 0.0)
                relay.flush(0.0)
                relay.upload_done(A)
    relay.flush(0.0)
    grants = sum(peer == A for peer, _ in sent(relay, ChunkGrant))
    assert (grants > DEPTH) is more


def test_a_receiver_takes_more_grants_only_from_who_delivered() -> None:
    data, ref = blob(64)
    relay = fetcher(ref, A, config=RelayConfig(download_bytes_s=1e6))
    relay.receive(LinkRates(8 * CHUNK * 8 // 300, 0), A, 0.0)  # eight chunks in a round trip, it says
    relay.receive(Have(ref.root, bitmap(range(64), 64)), A, 0.0)

    def offer(count: int) -> list[int]:
        for _ in range(count):
            relay.receive(ChunkGrant(ref.root, -1), A, 0.0)
        return [message.index for _, message in sent(relay, ChunkRequest)]

    requested = offer(20)
    assert len(requested) == DEPTH + 2, "a stated uplink alone buys nothing"
    relay.receive(chunk(data, ref, requested[0]), A, 0.1)
    assert len(offer(20)) == 3, "one for the place that became free, and one each way for the chunk delivered"
