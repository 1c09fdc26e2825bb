"""Limits on pushes and queries: soft in quiet times, shared in floods."""

from __future__ import annotations

import pytest

from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.ledger_messages import LedgerHead, StorageReceipt
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.envelope_store import ReceiptCache
from p2prl.swarm.message_limits import LIMITS, SCARCE, MessageLimits, Traffic, traffic_of
from p2prl_lab.testing.protocol_swarm import group_of

A, B = PeerId("A"), PeerId("B")


def admitted(limits: MessageLimits, kind: Traffic, peer: PeerId, count: int, now: float, **more: object) -> int:
    subnet, is_known = str(more.get("subnet", "")), bool(more.get("is_known", False))
    return sum(limits.admits(kind, peer, subnet, now, is_known=is_known) for _ in range(count))


@pytest.mark.parametrize("kind", Traffic)
def test_one_busy_peer_alone_is_not_limited(kind: Traffic) -> None:
    entry = MessageLimits()
    rate, burst = LIMITS[kind].total.per_s, LIMITS[kind].total.burst
    assert admitted(entry, kind, A, int(burst * (1 - SCARCE)), 0.0) == int(burst * (1 - SCARCE))
    per_second = int(rate * 0.99)
    for second in range(1, 60):
        assert admitted(entry, kind, A, per_second, float(second)) == per_second


@pytest.mark.parametrize("kind", Traffic)
def test_a_flood_leaves_others_their_share(kind: Traffic) -> None:
    entry = MessageLimits()
    limit = LIMITS[kind]
    for tenth in range(100):
        now = tenth / 10
        admitted(entry, kind, A, 2000, now, subnet="flood")
        if tenth % 10 == 0:
            assert admitted(entry, kind, B, 1, now, subnet="home") == 1
    sum_over_keys = 0
    for index in range(300):
        peer = PeerId(f"key{index}")
        sum_over_keys += admitted(entry, kind, peer, 50, 10.0, subnet="flood")
    assert sum_over_keys <= limit.subnet.burst + SCARCE * limit.total.burst
    assert admitted(entry, kind, B, 1, 10.0, subnet="home", is_known=True) == 1


@pytest.mark.parametrize("kind", Traffic)
def test_the_total_bounds_any_number_of_subnets(kind: Traffic) -> None:
    entry = MessageLimits()
    limit = LIMITS[kind].total
    taken = sum(
        admitted(entry, kind, PeerId(f"{second}-{index}"), 20, float(second), subnet=f"{second}-{index}")
        for second in range(5)
        for index in range(200)
    )
    assert taken <= limit.burst + 5 * limit.per_s


@pytest.mark.parametrize("kind", Traffic)
def test_many_subnets_within_their_shares_leave_room_for_a_newcomer(kind: Traffic) -> None:
    entry = MessageLimits()
    crowd = [PeerId(f"key{number}") for number in range(64)]
    each = int(LIMITS[kind].newcomer.per_s / 10) + 1
    for tenth in range(400):
        now = tenth / 10
        for peer in crowd:
            admitted(entry, kind, peer, each, now, subnet=peer)
        if now >= 20.0:
            assert admitted(entry, kind, PeerId(f"home{tenth}"), 1, now, subnet=f"home{tenth % 40}") == 1


def test_the_kind_is_read_from_two_bytes() -> None:
    who = identity_of("who")
    assert traffic_of(seal(who, group_of(1), run=bytes(32), now=1e9)) is Traffic.GROUP
    for body in (LedgerHead(0, bytes(32), 0, False), StorageReceipt((bytes(32),))):
        assert traffic_of(seal(who, body, run=bytes(32), now=1e9)) is Traffic.OTHER
    assert traffic_of(b"") is Traffic.OTHER
    assert traffic_of(b"\x96") is Traffic.OTHER
    assert traffic_of(bytes((0x96, 38))) is Traffic.VERDICT
    assert traffic_of(bytes((0x96, 42))) is Traffic.GROUP


def test_receipts_are_remembered_newest_last() -> None:
    cache = ReceiptCache(3)
    names = [bytes((index,)) * 32 for index in range(5)]
    cache.note(tuple(names[:3]), b"first")
    cache.note((names[0], names[3]), b"second")
    assert [cache.receipt_for(name) for name in names] == [b"second", b"", b"first", b"second", b""]  # type: ignore[arg-type]
    assert len(cache) == 3
