"""Relays, blobs and messages for the chunk relay's tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar, cast

from msgspec import structs

from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import BlobQuery, Chunk, ChunkRequest
from p2prl.protocol.manifests import BlobRef, blob_of, tree_of
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.hostile_neighbors import HostileNeighbor

CHUNK = 4096
W = TypeVar("W", bound=Wire)
SOURCE, A, B, C = (PeerId(name) for name in ("source", "A", "B", "C"))


def blob(chunks: int, seed: int = 0) -> tuple[bytes, BlobRef]:
    data = random.Random(seed).randbytes(chunks * CHUNK - 7)
    return data, blob_of(data, CHUNK)


class RelayMesh:
    """Relays with instant links, in rounds of `step_s`."""

    def __init__(self, names: list[PeerId], *, config: RelayConfig | None = None, step_s: float = 0.05) -> None:
        self.now = 0.0
        self.step_s = step_s
        self.silent: set[PeerId] = set()
        """Peers that answer no request for a chunk."""
        self.stores = {name: MemoryBlobs() for name in names}
        self.relays = {
            name: Relay(self.stores[name], random.Random(str(name)), config or RelayConfig()) for name in names
        }
        self.sent: Counter[tuple[PeerId, int]] = Counter()
        self.strangers: set[PeerId] = set()
        """Adversaries among the relays: chunks to them are never reported as sent."""
        self.unreported: Counter[tuple[PeerId, PeerId]] = Counter()
        """Chunks that a relay's shell still holds, by sender and receiver."""
        for name, relay in self.relays.items():
            for other in names:
                if other != name:
                    relay.add_neighbor(other, is_source=other == SOURCE)

    def add_stranger(self, name: PeerId, stranger: HostileNeighbor) -> None:
        """Link an adversary with every relay."""
        for other, relay in self.relays.items():
            if other not in self.strangers:
                relay.add_neighbor(name, is_source=False)
                stranger.add_neighbor(other, is_source=other == SOURCE)
        self.relays[name] = cast(Relay, stranger)
        self.strangers.add(name)

    def offer(self, data: bytes, ref: BlobRef, name: PeerId = SOURCE) -> None:
        self.stores[name].add(ref, data)
        self.relays[name].offer(ref, self.now)

    def round(self) -> None:
        self.now += self.step_s
        messages: list[tuple[PeerId, PeerId, Wire]] = []
        for name, relay in self.relays.items():
            due = relay.next_deadline()
            if due is not None and due <= self.now:
                relay.handle_timer(self.now)
            relay.flush(self.now)
            messages += [(name, peer, message) for peer, message in relay.outbox]
            relay.outbox.clear()
        for source, destination, message in messages:
            if isinstance(message, Chunk):
                if destination in self.strangers:
                    self.unreported[source, destination] += 1
                else:
                    self.relays[source].upload_done(destination)
                self.sent[source, len(message.data)] += 1
            if not (isinstance(message, ChunkRequest) and destination in self.silent):
                self.relays[destination].receive(message, source, self.now)

    def run(self, names: list[PeerId], ref: BlobRef, *, within_s: float) -> float:
        start = self.now
        while any(ref.root not in self.relays[name].completed for name in names):
            assert self.now - start < within_s, {name: self.relays[name].progress(ref.root) for name in names}
            self.round()
        return self.now - start


def bitmap(indices: Iterable[int], total: int) -> bytes:
    """The wire's bitmap of these chunks."""
    return to_bitmap(sum(1 << index for index in set(indices)), total)


def fetcher(ref: BlobRef, *peers: PeerId, config: RelayConfig | None = None) -> Relay:
    """A relay that fetches `ref`, with neighbors that have sent nothing yet."""
    relay = Relay(MemoryBlobs(), random.Random(1), config or RelayConfig())
    for peer in peers:
        relay.add_neighbor(peer, is_source=peer == SOURCE)
    relay.fetch(ref, 0.0)
    relay.outbox.clear()
    return relay


def server(data: bytes, ref: BlobRef, *peers: PeerId, config: RelayConfig | None = None, origin: bool = False) -> Relay:
    """A relay that holds all of `ref`, queried by its neighbors."""
    store = MemoryBlobs()
    store.add(ref, data)
    relay = Relay(store, random.Random(1), config or RelayConfig())
    if origin:
        relay.offer(ref, 0.0)
    else:
        relay.fetch(ref, 0.0)
    for peer in peers:
        relay.add_neighbor(peer, is_source=False)
        relay.receive(BlobQuery(ref.root), peer, 0.0)
    return relay


def sent(relay: Relay, kind: type[W], now: float = 0.0) -> list[tuple[PeerId, W]]:
    """Messages of a kind the relay sends now; other messages are dropped."""
    relay.flush(now)
    found = [(peer, message) for peer, message in relay.outbox if isinstance(message, kind)]
    relay.outbox.clear()
    return found


def chunk(data: bytes, ref: BlobRef, index: int) -> Chunk:
    """A chunk of a blob with its proof."""
    proof = proof_among(tree_of(data, ref.chunk_bytes)[1], index, ref.total)
    return Chunk(ref.root, index, proof, piece(data, ref, index))


def poisoned(message: Chunk) -> Chunk:
    """The chunk with one bit changed."""
    return structs.replace(message, data=bytes((message.data[0] ^ 1,)) + message.data[1:])


def piece(data: bytes, ref: BlobRef, index: int) -> bytes:
    start, size = ref.span(index)
    return data[start : start + size]
