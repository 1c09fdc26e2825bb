"""A learner that signs and serves anything, for tests of what its volunteers' machines put up with."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.hash_tree import TreeBuilder, proof_among
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.link_messages import Hello, Push
from p2prl.protocol.manifests import BlobRef, PolicyManifest, RunManifest
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.swarm.node import Node

_HEAD_LIFE_MS = 900_000


class RepeatedBytes:
    """A `BlobStore` whose blobs repeat a few bytes: gigabytes cost no more than those."""

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._nodes: dict[Digest, bytes] = {}

    def add(self, ref: BlobRef, data: bytes) -> None:
        """Add a blob that is `data`, again and again: a number of whole chunks, or the whole blob."""
        self._blobs[ref.root] = data

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """See `BlobStore.begin`."""
        return frozenset(range(ref.total)) if ref.root in self._blobs else frozenset()

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        """Nothing is fetched."""

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - memory
        """See `BlobStore.ready`."""
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.read`."""
        data = self._blobs[ref.root]
        offset, length = ref.span(index)
        return data[offset % len(data) :][:length]

    def proof(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.proof`."""
        root = ref.root
        if root not in self._nodes:
            self._nodes[root] = TreeBuilder(chunk_digest(self.read(ref, each)) for each in range(ref.total)).nodes
        return proof_among(self._nodes[root], index, ref.total)

    def room(self, ref: BlobRef) -> int:
        """See `BlobStore.room`."""
        return ref.size_bytes

    def finish(self, ref: BlobRef) -> None:
        """Nothing to do."""

    def drop(self, root: Digest) -> None:
        """Keep everything."""


@dataclass
class HostileRun:
    """A run, its versions, and the chunks that its learner has."""

    key: Identity
    manifest: RunManifest
    versions: list[PolicyManifest] = field(default_factory=list)
    """Version numbers, steps and predecessors are filled in when they are sealed."""
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    """(version, base, claimed bytes) of the patches that its policy head lists; no head when empty."""
    blobs: list[BlobRef] = field(default_factory=list)
    """Blobs that it serves: run files, data, weights, patches."""
    store: RepeatedBytes = field(default_factory=RepeatedBytes)

    def serve(self, data: bytes, ref: BlobRef) -> BlobRef:
        """Serve a blob that is `data`, again and again."""
        self.store.add(ref, data)
        self.blobs.append(ref)
        return ref

    def sealed(self, now: float) -> tuple[bytes, list[bytes]]:
        """The run manifest's envelope, and those of the head and the versions, in the order to be sent."""
        manifest = seal(self.key, self.manifest, run=bytes(32), now=now)
        run = envelope_digest(manifest)
        said: list[bytes] = []
        for number, version in enumerate(self.versions):
            previous = envelope_digest(said[-1]) if said else b""
            body = msgspec.structs.replace(version, version=number, step=number, previous=previous)
            said.append(seal(self.key, body, run=run, now=now))
        if self.edges:
            names = [envelope_digest(raw) for raw in said]
            now_ms = int(now * 1000)
            head = PolicyHead(
                version=len(said) - 1,
                manifest=names[-1],
                oldest=0,
                weight_bytes=self.manifest.weight_bytes,
                edges=tuple(PatchEdge(version, base, size, names[version]) for version, base, size in self.edges),
                target_ms=now_ms,
                expires_ms=now_ms + _HEAD_LIFE_MS,
            )
            said.insert(0, seal(self.key, head, run=run, now=now))
        return manifest, said


class HostileNode(Node):
    """Pushes whatever its learner signed to every peer that greets it, and serves the blobs without a check."""

    _said: tuple[bytes, ...] = ()

    def play(self, run: HostileRun, now: float) -> None:
        """Be the learner of this run."""
        manifest, said = run.sealed(now)
        self._core.gossip.pin(manifest, envelope_digest(manifest))
        for raw in said:
            self._core.gossip.pin(raw, envelope_digest(raw))
        self._said = tuple(said)
        for ref in run.blobs:
            self._core.relay.offer(ref, now)

    @property
    def sent_bytes(self) -> int:
        """Bytes of chunks sent so far."""
        return self._core.relay.stats.sent

    def _on_hello(self, message: Hello, source: PeerId, now: float) -> None:
        super()._on_hello(message, source, now)
        if source in self._core.connections.links:
            for raw in self._said:
                self._core.send(source, Push(raw))
