"""A full directory key: whose record goes."""

from __future__ import annotations

import random
from collections import Counter

from p2prl.net.transports.hivemind.bounded_storage import MAX_KEY_BYTES, record_subnet
from p2prl.net.transports.hivemind.directory_records import HeldRecord, displaced
from p2prl.protocol.envelope import seal
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import encode
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet

HERE, THERE = Subnet("here"), Subnet("there")


def held(count: int, size: int = 4096, subnet: Subnet = HERE, importance: int = 0) -> dict[str, HeldRecord]:
    return {f"{subnet}{importance}-{index}": HeldRecord(size, subnet, importance) for index in range(count)}


def test_room_costs_nobody() -> None:
    assert displaced(held(3), HeldRecord(4096, HERE, 0), max_bytes=4 * 4096, rng=random.Random(1)) == []


def test_the_largest_record_of_the_fullest_subnet_goes() -> None:
    records = held(10) | held(9, subnet=THERE) | {"small": HeldRecord(300, HERE, 0)}
    total = sum(record.size_bytes for record in records.values())
    for seed in range(20):
        gone = displaced(records, HeldRecord(300, THERE, 0), max_bytes=total, rng=random.Random(seed))
        assert gone is not None
        (owner,) = gone
        assert owner.startswith("here0-")


def test_linked_peers_keep_their_records() -> None:
    records = held(10, importance=3)
    full = 10 * 4096
    assert displaced(records, HeldRecord(300, THERE, 0), max_bytes=full, rng=random.Random(1)) is None
    assert displaced(records, HeldRecord(300, THERE, 3), max_bytes=full, rng=random.Random(1)) is not None
    mixed = records | held(1, subnet=THERE)
    assert displaced(mixed, HeldRecord(300, THERE, 5), max_bytes=11 * 4096, rng=random.Random(1)) == ["there0-0"]


def test_among_equals_the_lot_decides() -> None:
    fallen = Counter(
        owner
        for seed in range(400)
        for owner in displaced(held(8), HeldRecord(4096, HERE, 0), max_bytes=8 * 4096, rng=random.Random(seed)) or []
    )
    assert len(fallen) == 8
    assert max(fallen.values()) < 90


def test_a_large_record_displaces_several_small_ones() -> None:
    gone = displaced(held(10, size=1000), HeldRecord(2500, THERE, 0), max_bytes=10_000, rng=random.Random(1))
    assert gone is not None
    assert len(gone) == 3


def test_the_subnet_of_a_stored_record() -> None:
    who = identity_of("who")
    record = PeerRecord(1, ("/ip4/9.9.9.9/tcp/4001", "/ip4/8.8.8.8/tcp/1"), 0, 0)
    value = encode(seal(who, record, run=bytes(32), now=1e9)) + bytes(64)  # type: ignore[arg-type]
    assert record_subnet(value) == "9.9.9.0/24"
    for junk in (b"", bytes(64), b"\xc1" + bytes(64), encode(b"x") + bytes(64)):  # type: ignore[arg-type]
        assert record_subnet(junk) == UNKNOWN
    assert MAX_KEY_BYTES < 4 * 1024 * 1024
