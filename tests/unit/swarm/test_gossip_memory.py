"""Bounded memory of gossip: digests, of which the newest are always there, and envelopes within a budget of bytes."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import Offer, Want
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.deduplication import RecentDigests
from p2prl.swarm.gossip.envelope_store import EnvelopeStore
from p2prl.swarm.gossip.forwarding import Gossip, GossipConfig


def digest_of(number: int) -> Digest:
    return Digest(number.to_bytes(32, "big"))


@given(st.integers(2, 20), st.lists(st.integers(0, 60), max_size=200))
def test_the_newest_half_is_remembered_within_the_capacity(capacity: int, numbers: list[int]) -> None:
    seen = RecentDigests(capacity)
    for number in numbers:
        seen.add(digest_of(number))
        assert digest_of(number) in seen
        assert len(seen) <= capacity
    last = list(dict.fromkeys(reversed(numbers)))[: capacity // 2]
    assert all(digest_of(number) in seen for number in last)
    remembered = {number for number in range(61) if digest_of(number) in seen}
    assert len(remembered) == len(seen)
    assert remembered <= set(numbers)


def test_the_oldest_are_forgotten() -> None:
    seen = RecentDigests(100)
    for number in range(1_000):
        seen.add(digest_of(number))
    assert not any(digest_of(number) in seen for number in range(900))


def test_a_forgotten_digest_is_new_again() -> None:
    seen = RecentDigests(4)
    for number in range(3):
        seen.add(digest_of(number))
    for number in (0, 2, 9):
        seen.forget(digest_of(number))
    assert [number for number in range(3) if digest_of(number) in seen] == [1]


def test_they_take_what_the_settings_say() -> None:
    tracemalloc.start()
    seen = RecentDigests(GossipConfig().seen)
    for number in range(250_000):
        seen.add(digest_of(number))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(seen) >= GossipConfig().seen // 2
    assert taken < 8.6e6


@pytest.mark.parametrize("size", [150, 1_000, 100_000])
def test_kept_envelopes_take_no_more_memory_than_their_budget(size: int) -> None:
    budget = 2 * 1024 * 1024
    opened = open_envelope(seal(identity_of("a"), StorageReceipt((bytes(32),)), run=bytes(32), now=0.0), now=None)
    tracemalloc.start()
    store = EnvelopeStore(budget)
    for number in range(3 * budget // size):
        store.add(replace(opened, raw=bytes(size), digest=digest_of(number)))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 * budget < taken < 1.05 * budget


def test_a_node_remembers_more_than_any_neighbor_keeps() -> None:
    config, store = GossipConfig(), EnvelopeStore(GossipConfig().store_bytes)
    smallest = open_envelope(seal(identity_of("a"), StorageReceipt(()), run=bytes(32), now=1.8e9), now=None)
    kept = 0
    while not kept or store.get(digest_of(0)):
        store.add(replace(smallest, digest=digest_of(kept)))
        kept += 1
    assert kept <= config.seen // 2


def test_offers_of_many_peers_take_a_bounded_memory_and_the_newest_stay() -> None:
    gossip = Gossip(Role.VALIDATOR, random.Random(1), GossipConfig(seen=4_096, offers=8_192))
    peers = [PeerId(f"peer {number}") for number in range(128)]
    offers = [Offer(tuple(digest_of(first + place) for place in range(1_024))) for first in range(0, 4_096, 1_024)]
    tracemalloc.start()
    for peer in peers:
        for offer in offers:
            gossip.on_offer(offer, peer)
        gossip.outbox.clear()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 4e6
    gossip.on_offer(Offer((digest_of(9_999),)), peers[0])
    gossip.on_offer(Offer((digest_of(9_999),)), peers[1])
    gossip.outbox.clear()
    gossip.remove_peer(peers[0])
    gossip.retry_wants()
    asked = {peer for peer, want in gossip.outbox if isinstance(want, Want) and digest_of(9_999) in want.digests}
    assert asked == {peers[1]}
