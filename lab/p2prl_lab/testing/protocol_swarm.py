"""A swarm of nodes without models: the learner publishes random weights, peers download them and deliver groups.

The smallest run that exercises every rule of the wire, for tests. `p2prl.sim.swarm` assembles the real roles on the
same network.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.manifests import Patch, PolicyManifest, RunManifest, blob_of
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import EnvelopeArrived, Event, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs


@dataclass(slots=True)
class Member:
    """One peer: its key, its disk, and the events of its node."""

    name: str
    identity: Identity
    role: Role
    store: MemoryBlobs = field(default_factory=MemoryBlobs)
    events: list[Event] = field(default_factory=list)
    ready_at: dict[int, float] = field(default_factory=dict)
    """Policy version → virtual time at which its weights were complete."""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    def arrived(self) -> list[EnvelopeArrived]:
        """Envelopes that reached this peer's role."""
        return [event for event in self.events if isinstance(event, EnvelopeArrived)]


class ProtocolSwarm:
    """A run with one learner, on a virtual network in which the caller can cause faults."""

    def __init__(
        self,
        network: VirtualNetwork,
        *,
        learner: str = "learner",
        manifest: RunManifest | None = None,
        weight_bytes: int = 60_000,
    ) -> None:
        """`weight_bytes` is the size of every version; a `manifest` has its own."""
        self.network = network
        self.members: dict[str, Member] = {}
        self._learner = learner
        self._key = identity_of(learner)
        self._rng = random.Random(f"weights/{network.seed}")
        self.manifest = seal(
            self._key, manifest or run_manifest_of(self._key, weight_bytes=weight_bytes), run=bytes(32), now=START
        )
        self.run = envelope_digest(self.manifest)
        self.published: list[tuple[bytes, PolicyManifest, float]] = []
        """(envelope, manifest, when) of every version so far."""

    def add(
        self,
        name: str,
        role: Role = Role.VOLUNTEER,
        *,
        bootstrap: tuple[str, ...] = (),
        config: Callable[[Role], NodeConfig] = lambda role: NodeConfig(role=role),
        build: type[Node] = Node,
        upload_bytes_s: float = 2.5e6,
        download_bytes_s: float = 12.5e6,
        dialable: bool = True,
        clock_offset_s: float = 0.0,
        store: MemoryBlobs | None = None,
    ) -> Member:
        """A peer joins now. Only the learner has the run manifest; the others have its digest and request it."""
        member = self.members[name] = Member(name, identity_of(name), role, store or MemoryBlobs())

        def make(now: float, rng: random.Random) -> Node:
            node = build(member.identity, self.run, member.store, rng, config(role), now)
            if name == self._learner:
                node.begin(self.manifest)
            return node

        self.network.host(
            member.peer,
            self.run,
            make,
            partial(self.on_event, member),
            upload_bytes_s=upload_bytes_s,
            download_bytes_s=download_bytes_s,
            dialable=dialable,
            clock_offset_s=clock_offset_s,
        )
        for other in bootstrap:
            self.network.connect(member.peer, self.members[other].peer)
        return member

    def on_event(self, member: Member, event: Event) -> None:
        """Handle an event of a member's node."""
        member.events.append(event)
        if isinstance(event, VersionReady):
            member.ready_at.setdefault(event.manifest.version, self.network.now)
        elif isinstance(event, EnvelopeArrived) and isinstance(event.opened.body, RolloutGroup):
            self._acknowledge(member, event.opened.digest)

    def publish(
        self,
        size_bytes: int,
        *,
        chunk_bytes: int = 16384,
        data: bytes | None = None,
        patches: tuple[Patch, ...] = (),
    ) -> PolicyManifest:
        """The learner publishes the next version: `data`, or random weights of `size_bytes`, with patches."""
        learner = self.members[self._learner]
        weights = self._rng.randbytes(size_bytes) if data is None else data
        ref = blob_of(weights, chunk_bytes)
        learner.store.add(ref, weights)
        version = len(self.published)
        previous = envelope_digest(self.published[-1][0]) if self.published else Digest(b"")
        beacon = self._rng.randbytes(32)
        created_ms = int(self.network.now * 1000)
        manifest = PolicyManifest(
            version, version, ref, blake3(weights).digest(), previous, beacon, created_ms, patches
        )
        raw = self.say(manifest)
        self.published.append((raw, manifest, self.network.now))
        return manifest

    def say(self, body: Wire) -> bytes:
        """Sign and publish a message as the learner. Returns the envelope."""
        learner = self.members[self._learner]
        raw = seal(self._key, body, run=self.run, now=self.network.now)
        self.network.node(learner.peer).publish(raw, self.network.now)
        self.network.wake(learner.peer)
        return raw

    def deliver(self, name: str, slot: int) -> Digest:
        """A volunteer publishes the group of a slot; returns the envelope's digest."""
        member = self.members[name]
        raw = seal(member.identity, group_of(slot), run=self.run, now=self.network.clock(member.peer).now())
        self.network.node(member.peer).publish(raw, self.network.now)
        self.network.wake(member.peer)
        return envelope_digest(raw)

    def _acknowledge(self, member: Member, group: Digest) -> None:
        if member.role is Role.LEARNER:
            receipt = seal(member.identity, StorageReceipt((group,)), run=self.run, now=self.network.now)
            self.network.node(member.peer).publish(receipt, self.network.now)
            self.network.wake(member.peer)


def group_of(slot: int, *, version: int = 0, policy: bytes = bytes(32)) -> RolloutGroup:
    """A well-formed group without content."""
    completion = Completion(tokens=slot.to_bytes(4, "little"), logprobs=bytes(2), finished=True, reward=0.0)
    return RolloutGroup(
        version=version,
        policy=policy,
        slot=slot,
        task="chain4",
        prompt=bytes(4),
        completions=(completion,) * 4,
        engine=EngineClass("none", "1", "float32", "cpu"),
        seconds=0.0,
    )
