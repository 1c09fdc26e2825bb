"""Neighbors that follow the letter of the chunk relay's messages, and mean harm; pure, for meshes of relays in a test.

Each has the methods of `p2prl.swarm.relay.chunk_relay.Relay` that move messages, so that it takes a relay's place.
"""

from __future__ import annotations

import math

from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import BlobQuery, ChunkGrant, ChunkRequest, Have, LinkRates
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.relay.chunk_sets import indices_of, of_bitmap, to_bitmap


class HostileNeighbor:
    """Links to everybody, and does nothing."""

    def __init__(self, ref: BlobRef, *, claims_kbit_s: int = 0) -> None:
        """`claims_kbit_s` is the uplink it states."""
        self.ref = ref
        self.outbox: list[tuple[PeerId, Wire]] = []
        self.claims_kbit_s = claims_kbit_s

    def add_neighbor(self, peer: PeerId, *, is_source: bool) -> None:
        """State the uplink."""
        if is_source or self.claims_kbit_s:
            self.outbox.append((peer, LinkRates(self.claims_kbit_s, 0)))

    def receive(self, message: Wire, source: PeerId, now: float) -> None:
        """Ignore it."""

    def upload_done(self, peer: PeerId, delivered: bool = True) -> None:
        """Ignore it."""

    def flush(self, now: float) -> None:
        """Add what it sends unasked."""

    def handle_timer(self, now: float) -> None:
        """Do nothing."""

    def next_deadline(self) -> float | None:
        """Never."""
        return None


class SilentGranter(HostileNeighbor):
    """Claims to hold everything, grants as much as anybody takes, and never sends a chunk."""

    def receive(self, message: Wire, source: PeerId, now: float) -> None:  # noqa: ARG002
        """Answer a query with all chunks."""
        if isinstance(message, BlobQuery):
            total = self.ref.total
            self.outbox.append((source, Have(self.ref.root, to_bitmap((1 << total) - 1, total))))
            self._victims[source] = None

    def __init__(self, ref: BlobRef, *, claims_kbit_s: int = 1, every_s: float = 0.5) -> None:
        """Grants a few chunks to each victim every `every_s`."""
        super().__init__(ref, claims_kbit_s=claims_kbit_s)
        self._victims: dict[PeerId, None] = {}
        self._every_s = every_s
        self._next = -math.inf

    def flush(self, now: float) -> None:
        """Grant four chunks to each victim."""
        if now >= self._next:
            self._next = now + self._every_s
            self.outbox += [(peer, ChunkGrant(self.ref.root, -1)) for peer in self._victims for _ in range(4)]


class NeverAcknowledges(HostileNeighbor):
    """Claims a huge uplink and no chunk, requests what it is granted, and acknowledges none: what moves the messages
    never reports a chunk to it as sent."""

    def __init__(self, ref: BlobRef, *, claims_kbit_s: int = 4_000_000) -> None:
        super().__init__(ref, claims_kbit_s=claims_kbit_s)
        self._held: dict[PeerId, int] = {}
        self._asked: dict[PeerId, int] = {}

    def add_neighbor(self, peer: PeerId, *, is_source: bool) -> None:
        """State the uplink and ask for the blob."""
        super().add_neighbor(peer, is_source=is_source)
        self.outbox.append((peer, BlobQuery(self.ref.root)))

    def receive(self, message: Wire, source: PeerId, now: float) -> None:  # noqa: ARG002
        """Use every grant."""
        total = self.ref.total
        if isinstance(message, Have):
            self._held[source] = of_bitmap(message.bitmap, total)
        elif isinstance(message, ChunkGrant):
            offered = (
                1 << message.index if message.index >= 0 else self._held.get(source, 0) & ~self._asked.get(source, 0)
            )
            index = next(indices_of(offered), None)
            if index is not None:
                self._asked[source] = self._asked.get(source, 0) | 1 << index
                self.outbox.append((source, ChunkRequest(self.ref.root, index)))
