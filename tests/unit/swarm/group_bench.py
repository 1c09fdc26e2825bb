"""One node's bodies of large groups, with groups to move and peers to move them to."""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.link_messages import Chunk, ChunkRequest, Place, place_of
from p2prl.protocol.manifests import BlobRef, blob_of, tree_of
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.swarm.groups.group_bodies import GroupBodies
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

NOW, PART = 1_800_000_000.0, limits.GROUP_PART_BYTES
PARTS = 20
LEARNER, OTHER, THIRD = (Identity(bytes([n]) * 16).peer_id for n in range(100, 103))


class Group:
    """A header of some author, with the body it names."""

    def __init__(self, author: int, slot: int = 0, content: int | None = None, ref: BlobRef | None = None) -> None:
        key = Identity(bytes([author]) * 16)
        self.author = key.peer_id
        number = author * 7 + slot if content is None else content
        parts = [bytes([number % 251, index]) + bytes(PART - 2) for index in range(PARTS)]
        self.body = b"".join(parts)
        header = GroupHeader(0, bytes(32), slot, ref or blob_of(self.body, PART))
        self.opened: Opened = open_envelope(seal(key, header, run=bytes(32), now=NOW), now=NOW)
        self.name = self.opened.digest
        ref = header.body
        self.names: list[Place] = [(ref.root, index) for index in range(PARTS)]
        nodes = tree_of(self.body, PART)[1]
        self.parts = [
            Chunk(ref.root, index, proof_among(nodes, index, PARTS), data) for index, data in enumerate(parts)
        ]


class Bench:
    """One node's bodies, with what they send."""

    def __init__(self, **config: object) -> None:
        self.store = MemoryBlobs()
        self.bodies = GroupBodies(
            self.store, GroupBodyConfig(**config), is_learner=lambda peer: peer == LEARNER  # type: ignore[arg-type]
        )  # fmt: skip
        self.now = NOW

    def sent(self, kind: type, peer: PeerId | None = None) -> Sequence[object]:
        """Messages of a kind sent since the last call, to one peer or all."""
        self.bodies.flush(self.now)
        found = [m for to, m in self.bodies.outbox if isinstance(m, kind) and peer in (None, to)]
        self.bodies.outbox.clear()
        return found

    def requests(self, peer: PeerId | None = None) -> list[Place]:
        return [place_of(m) for m in self.sent(ChunkRequest, peer)]  # type: ignore[arg-type]

    def announce(self, group: Group, source: PeerId | None = None) -> None:
        self.bodies.note(group.opened, group.author if source is None else source)

    def fetch(self, group: Group, source: PeerId | None = None) -> None:
        self.announce(group, source)
        self.bodies.fetch(group.name, self.now)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.bodies.next_deadline()) <= until:
            self.now = max(due, self.now)
            self.bodies.handle_timer(self.now)
        self.now = until

    def deliver(self, group: Group) -> None:
        """The author answers every request until none comes."""
        while wanted := self.requests(group.author):
            for part in wanted:
                assert self.bodies.on_part(group.author, group.parts[part[1]], self.now)

    def own(self, group: Group) -> None:
        self.bodies.hold(group.name, group.body)
        self.bodies.note(group.opened, None)
