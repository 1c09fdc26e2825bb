"""The storage of a DHT node: bounds, samples, and records found by name."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from p2prl.net.transports.hivemind import bounded_storage as module
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.bounded_storage import MAX_KEY_BYTES, bounded_storage, sample_of
from p2prl.protocol.directory_keys import name_key, run_key
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import encode
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.run_size import SAMPLE_BYTES

RUN = bytes(range(32))


@dataclass
class Entry:
    value: bytes


def value_of(who: Identity, subnet: int, *, run: bytes = RUN) -> bytes:
    address = f"/ip4/9.{subnet // 250}.{subnet % 250}.7/tcp/4001/p2p/{who.peer_id}"
    raw = seal(who, PeerRecord(1, (address,), 0, 0), run=run, now=1e9)
    return encode(raw) + bytes(64)  # type: ignore[arg-type]


def key_of(name: bytes) -> Any:
    return light_import.load().DHTID.generate(source=name)


def entries(item: Any) -> dict[str, bytes]:
    return {owner: entry.value for owner, entry in item.value.items()}


def test_few_records_are_read_whole_and_many_by_samples_of_every_peer() -> None:
    storage, key, expires_at = bounded_storage(None), key_of(run_key(RUN)), time.time() + 60
    stored = {str(who.peer_id): value_of(who, index) for index, who in enumerate(map(identity_of, map(str, range(60))))}
    for count, (owner, value) in enumerate(stored.items(), start=1):
        assert storage.store_subkey(key, owner, value, expires_at)
        if count <= 20:
            assert entries(storage.get(key)) == dict(list(stored.items())[:count])
    seen: Counter[str] = Counter()
    for _ in range(200):
        found = entries(storage.get(key))
        assert found.items() <= stored.items()
        assert SAMPLE_BYTES - 500 < sum(map(len, found.values())) <= SAMPLE_BYTES
        seen.update(found.keys())
    assert seen.keys() == stored.keys()
    assert max(seen.values()) < 2 * min(seen.values()), "every peer is as likely as any other"
    ((_, welcome),) = storage.items()
    assert len(entries(welcome)) < 60, "a new node of the DHT is sent no more than a reader"


def test_a_crowd_of_one_subnet_fills_no_sample() -> None:
    held = {f"crowd{index}": Entry(value_of(identity_of("crowd"), 0)) for index in range(3_000)}
    held |= {f"home{index}": Entry(value_of(identity_of("home"), 1 + index)) for index in range(300)}
    homes = [
        sum(owner.startswith("home") for owner in sample_of(held, None, random.Random(seed))) for seed in range(20)
    ]
    assert sum(homes) / 20 > 9, "of 128 drawn 12 are homes"


def test_the_peer_whose_name_a_key_is_is_always_found_there() -> None:
    storage, who, expires_at = bounded_storage(None), identity_of("who"), time.time() + 60
    key = key_of(name_key(RUN, who.peer_id))
    for index in range(400):
        other = identity_of(f"other{index % 5}")
        assert storage.store_subkey(key, f"x{index}", value_of(other, index), expires_at)
    own = value_of(who, 7)
    assert storage.store_subkey(key, str(who.peer_id), own, expires_at)
    for _ in range(20):
        assert entries(storage.get(key))[str(who.peer_id)] == own
    elsewhere = key_of(name_key(bytes(32), who.peer_id))
    for index in range(400):
        storage.store_subkey(elsewhere, f"x{index}", value_of(identity_of("other"), index), expires_at)
    storage.store_subkey(elsewhere, str(who.peer_id), own, expires_at)
    found = sum(str(who.peer_id) in entries(storage.get(elsewhere)) for _ in range(40))
    assert found < 20, "the record of another run is one of many under the name in this one"


def test_a_full_key_stays_within_its_bound_and_its_peer_in_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_KEY_BYTES", 40_000)
    storage, who, expires_at = bounded_storage(None), identity_of("who"), time.time() + 60
    key = key_of(name_key(RUN, who.peer_id))
    assert storage.store_subkey(key, str(who.peer_id), value_of(who, 0), expires_at)
    rng, other = random.Random(1), identity_of("other")
    for index in range(2_000):  # new ones, and newer values of old ones
        junk = value_of(other, index) + bytes(rng.randrange(2_000))
        storage.store_subkey(key, f"x{rng.randrange(300)}", junk, expires_at + index / 1_000)
        whole = storage.data[key].value.data
        assert sum(len(entry.value) for entry in whole.values()) <= 40_000
        assert str(who.peer_id) in whole
    assert sum(len(entry.value) for entry in whole.values()) > 30_000


def test_expired_records_make_room_for_others(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_KEY_BYTES", 4_000)
    storage, key = bounded_storage(None), key_of(run_key(RUN))
    soon = time.time() + 0.05
    for index in range(10):
        assert storage.store_subkey(key, f"old{index}", bytes(390), soon)
    while time.time() <= soon:
        pass
    for index in range(10):
        assert storage.store_subkey(key, f"new{index}", bytes(390), time.time() + 60)
    assert set(storage.data[key].value.data) == {f"new{index}" for index in range(10)}


def test_a_bound_of_memory() -> None:
    assert MAX_KEY_BYTES // 400 > 20_000 // 3, "of 20,000 peers a third is there"
