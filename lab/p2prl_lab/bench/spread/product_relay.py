"""The product's relay on simulated home links: a real `Relay` for each peer, without the rest of the node.

No relay is told a link's rate: each finds its own while it sends, as over sockets, and introductions know none. The
learner is linked to everybody, up to the product's limit of links. Control messages are charged to the uplinks with the
bytes of their frames. A chunk is a few bytes that stand for many: links charge its full size and its proof, and the
relay checks every proof.
"""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet

from p2prl.protocol import frames
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, proof_among, top_of
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.virtual_time import START, VirtualLoop
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl.swarm.peers.topology import Candidate, choose_neighbors, introduction_count
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.bench.spread.home_links import Population
from p2prl_lab.bench.spread.outcome import Outcome, Tell
from p2prl_lab.bench.spread.paced_links import PacedLink, PacedLinks

_TICK_S = 0.1
"""Interval of a peer's timers; coarser than in reality, where each deadline has its own timer."""

_FRAME_BYTES = 80
"""Bytes that the transport, TCP and IP add to a frame of control messages."""

_WORST = 12.0
"""A run ends at this multiple of the lower bound, finished or not."""


class _TokenBlobs:
    """A `BlobStore` that knows every chunk in advance."""

    def __init__(self, chunks: list[bytes], proofs: list[bytes], *, whole: bool) -> None:
        self._chunks = chunks
        self._proofs = proofs
        self._whole = whole

    def begin(self, ref: BlobRef) -> AbstractSet[int]:  # noqa: ARG002 - one blob
        return set(range(len(self._chunks))) if self._whole else set()

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        """Do nothing: `read` knows the bytes of every verified chunk."""

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - memory
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:  # noqa: ARG002 - one blob
        return self._chunks[index]

    def proof(self, ref: BlobRef, index: int) -> bytes:  # noqa: ARG002 - one blob
        return self._proofs[index]

    def room(self, ref: BlobRef) -> int:
        """See `BlobStore.room`."""
        return ref.size_bytes

    def finish(self, ref: BlobRef) -> None:
        """Do nothing."""

    def drop(self, root: Digest) -> None:
        """Do nothing."""


def _proves(ref: BlobRef, index: int, data: bytes, proof: bytes) -> bool:
    """As `BlobRef.proves`, but for the length of the bytes."""
    return ref.proves_name(index, chunk_digest(data), proof)


class _Swarm:
    """One blob, one relay for each peer, the learner last."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.loop = VirtualLoop()
        everyone = (*population.peers, population.source)
        self.source = len(population.peers)
        self.network = PacedLinks(
            self.loop, [PacedLink(p.upload_bytes_s, p.download_bytes_s, p.region) for p in everyone]
        )
        self.names = [PeerId(str(number)) for number in range(len(everyone))]
        tokens = [f"{population.seed}/{index}".encode() for index in range(population.chunks)]
        nodes = TreeBuilder(map(chunk_digest, tokens)).nodes
        size, chunk_bytes = population.size_bytes, population.chunk_bytes
        self.ref = BlobRef(size, chunk_bytes, bound_top(size, chunk_bytes, top_of(nodes)))
        self.root = self.ref.root
        proofs = [proof_among(nodes, index, len(tokens)) for index in range(len(tokens))]
        self.relays = [
            Relay(
                _TokenBlobs(tokens, proofs, whole=number == self.source),
                random.Random(f"relay/{population.seed}/{number}"),  # noqa: S311
                RelayConfig(),
            )
            for number in range(len(everyone))
        ]
        for relay in self.relays:
            relay.check_with(_proves)
        self.finished_at: dict[int, float] = {}
        self.arrived_bytes = 0

    def introduce(self) -> None:
        rng = random.Random(f"handout/{self.population.seed}")  # noqa: S311
        swarm = {number: Candidate(0.0, link.region) for number, link in enumerate(self.population.peers)}
        most = ConnectionsConfig().max_links
        pairs = {(self.source, peer) for peer in rng.sample(sorted(swarm), min(most, len(swarm)))}
        for peer in swarm:
            others = choose_neighbors(peer, swarm, rng, count=introduction_count(0.0, 0.0))
            pairs |= {(max(peer, other), min(peer, other)) for other in others}
        for one, other in sorted(pairs):
            self.relays[one].add_neighbor(self.names[other], is_source=False)
            self.relays[other].add_neighbor(self.names[one], is_source=one == self.source)

    def run(self, tell: Tell) -> None:
        self.introduce()
        self.relays[self.source].offer(self.ref, START)
        for number in range(self.source):
            self.relays[number].fetch(self.ref, START)
        for number in range(self.source + 1):
            self.loop.at(START + _TICK_S * number / (self.source + 1), lambda peer=number: self._tick(peer))  # type: ignore[misc]
        for peer, at in self.population.deaths.items():
            self.loop.at(START + at, lambda peer=peer: self.network.kill(peer))  # type: ignore[misc]
        waiting = set(self.population.survivors)
        limit = START + _WORST * self.population.lower_bound_s()
        while waiting and self.loop.now < limit:
            self.loop.run_until(self.loop.now + 0.5)
            waiting -= self.finished_at.keys()
            tell(1.0 - len(waiting) / len(self.population.survivors))

    def _tick(self, peer: int) -> None:
        if not self.network.links[peer].alive:
            return
        self.relays[peer].handle_timer(self.loop.now)
        self._pump(peer)
        self.loop.at(self.loop.now + _TICK_S, lambda: self._tick(peer))

    def _pump(self, peer: int) -> None:
        relay, network = self.relays[peer], self.network
        relay.flush(self.loop.now)
        if relay.completed:
            relay.completed.clear()
            self.finished_at[peer] = self.loop.now - START
        if not relay.outbox:
            return
        batches: dict[float, list[tuple[int, Wire]]] = {}
        spoken: set[int] = set()
        for name, message in relay.outbox:
            other = int(name)
            if isinstance(message, Chunk):
                self._send_chunk(peer, other, message)
            else:
                # Messages of one flush to one peer share a frame.
                overhead = 0 if other in spoken else _FRAME_BYTES
                spoken.add(other)
                network.charge(peer, overhead + len(frames.pack(message)))
                batches.setdefault(network.latency_s(peer, other), []).append((other, message))
        relay.outbox.clear()
        for latency_s, batch in batches.items():
            network.tell(latency_s, lambda batch=batch: self._receive(peer, batch))  # type: ignore[misc]

    def _receive(self, source: int, batch: list[tuple[int, Wire]]) -> None:
        name, now, links = self.names[source], self.loop.now, self.network.links
        reached: dict[int, None] = {}
        for other, message in batch:
            if links[other].alive:
                self.relays[other].receive(message, name, now)
                reached[other] = None
        for other in reached:
            self._pump(other)

    def _send_chunk(self, peer: int, other: int, message: Chunk) -> None:
        size = self.ref.span(message.index)[1]

        def arrived() -> None:
            self.arrived_bytes += size
            self.relays[other].receive(message, self.names[peer], self.loop.now)
            self._pump(other)

        def acknowledged() -> None:
            self.relays[peer].upload_done(self.names[other])
            self._pump(peer)

        overhead = frames.CHUNK_OVERHEAD_BYTES + len(message.proof)
        self.network.send(peer, other, size + overhead, arrived, acknowledged)


def spread_by_relay(population: Population, tell: Tell) -> Outcome:
    """Run the product's relay on a population."""
    swarm = _Swarm(population)
    swarm.run(tell)
    useful = sum(relay.progress(swarm.root)[0] for relay in swarm.relays[:-1]) * population.chunk_bytes
    return Outcome(
        finished_at=swarm.finished_at,
        source_bytes=swarm.network.links[swarm.source].sent_bytes,
        sent_bytes=sum(link.sent_bytes for link in swarm.network.links),
        arrived_bytes=swarm.arrived_bytes,
        useful_bytes=useful,
        control_bytes=sum(link.control_bytes for link in swarm.network.links),
    )
