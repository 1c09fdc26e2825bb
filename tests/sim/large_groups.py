"""A swarm whose learner stores groups of many megabytes, for tests of their transfer."""

from __future__ import annotations

import random

import msgspec

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.manifests import Sampling
from p2prl.protocol.rollout_group import Completion, RolloutGroup
from p2prl.protocol.signed_group import SignedGroup, assemble_group, seal_group
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals
from p2prl.swarm.events import EnvelopeArrived, Event, GroupFetched
from p2prl.swarm.node import Node
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm, group_of

LONGEST = limits.MAX_COMPLETION_TOKENS


def large_group(slot: int, *, completions: int = 6, tokens: int = LONGEST) -> RolloutGroup:
    """A group without content, of completions that differ; six of them have 1.2 MB."""
    rng = random.Random(slot)
    rows = [
        Completion(rng.randbytes(4 * tokens), rng.randbytes(2 * tokens), finished=False, reward=0.0)
        for _ in range(completions)
    ]
    return msgspec.structs.replace(group_of(slot), completions=tuple(rows))


class LargeGroupSwarm(ProtocolSwarm):
    """The learner fetches and acknowledges every group; volunteers supply bodies that are asked for again."""

    def __init__(self, network: VirtualNetwork) -> None:
        manifest = msgspec.structs.replace(
            run_manifest_of(identity_of("learner")), sampling=Sampling(1.0, LONGEST, limits.MAX_GROUP_SIZE)
        )
        super().__init__(network, manifest=manifest)
        self.stored: dict[Digest, SignedGroup] = {}
        self.stored_at: dict[Digest, float] = {}
        self.spool: dict[Digest, tuple[str, bytes, bytes]] = {}
        """Groups without a storage receipt, as a volunteer's disk keeps them: (author, envelope, body)."""
        self.wanted: list[tuple[str, Digest]] = []

    def deliver_large(self, name: str, group: RolloutGroup, *, raw: bytes = b"") -> Digest:
        """A volunteer stores a large group and publishes it, under an envelope sealed before if there is one."""
        member = self.members[name]
        sealed, body = seal_group(member.identity, group, run=self.run, now=self.network.now)
        raw = raw or sealed
        self.spool[envelope_digest(raw)] = name, raw, body
        self._node(member).order(signals.HoldGroup(envelope_digest(raw), body), self.network.now)
        self.publish_again(envelope_digest(raw))
        return envelope_digest(raw)

    def publish_again(self, digest: Digest) -> None:
        """A volunteer without a storage receipt announces a group again."""
        if digest in self.spool:
            name, raw, _ = self.spool[digest]
            self.tell(name, raw)

    def tell(self, name: str, raw: bytes) -> None:
        """Publish an envelope as its author."""
        member = self.members[name]
        if self.network.is_up(member.peer):
            self._node(member).publish(raw, self.network.now)
            self.network.wake(member.peer)

    def header(self, author: Identity, group: RolloutGroup) -> bytes:
        """A header without the intention to send its body."""
        return seal_group(author, group, run=self.run, now=self.network.now)[0]

    def redeliver_every(self, seconds: float) -> None:
        """Volunteers announce what they have no receipt for, forever."""

        def again() -> None:
            for digest in list(self.spool):
                self.publish_again(digest)
            self.network.after(seconds, again)

        self.network.after(seconds, again)

    def on_event(self, member: Member, event: Event) -> None:
        """Play the roles: the learner's intake, and the volunteers' spool."""
        super().on_event(member, event)
        now = self.network.now
        if isinstance(event, signals.GroupBodyWanted) and event.digest in self.spool:
            self.wanted.append((member.name, Digest(event.digest)))
            self._node(member).order(
                signals.HoldGroup(event.digest, self.spool[Digest(event.digest)][2]), self.network.now
            )
        if member.role is not Role.LEARNER:
            return
        if isinstance(event, EnvelopeArrived) and event.opened.kind is Kind.GROUP_HEADER:
            if event.opened.digest in self.stored:
                self._receipt(member, event.opened.digest)
            else:
                self._node(member).order(signals.FetchGroup(event.opened.digest), now)
                self.network.wake(member.peer)
        elif isinstance(event, GroupFetched):
            signed = assemble_group(event.opened, member.store.by_root(event.root))
            self.stored[signed.digest] = signed
            self.stored_at.setdefault(signed.digest, now)
            self._node(member).order(signals.ReleaseGroup(signed.digest), now)
            self._receipt(member, signed.digest)

    def _receipt(self, learner: Member, digest: Digest) -> None:
        self.spool.pop(digest, None)
        raw = seal(learner.identity, StorageReceipt((digest,)), run=self.run, now=self.network.now)
        self._node(learner).publish(raw, self.network.now)
        self.network.wake(learner.peer)

    def _node(self, member: Member) -> Node:
        return self.network.node(member.peer)
