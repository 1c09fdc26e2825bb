"""Interfaces the swarm needs from its owner: a chunk store and a random source."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef


class BlobStore(Protocol):
    """Content-addressed chunks, by blob. `p2prl.net.storage.disk_blobs` keeps them on disk, the simulator in memory."""

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """Make room for a blob; return the chunks of it that are present and can be proved."""
        ...

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        """Store a chunk and its proof, which the caller has checked. Raises `MachineError` when the disk is full."""
        ...

    def ready(self, ref: BlobRef, index: int) -> bool:
        """Whether `read` would return a present chunk at once. If not, the store fetches it meanwhile, as far as it has
        room, and wakes the node's owner: a node asks again whenever its commands are drained."""
        ...

    def read(self, ref: BlobRef, index: int) -> bytes:
        """Read a chunk that `begin` or `write` reported present. Takes its time unless it is `ready`."""
        ...

    def proof(self, ref: BlobRef, index: int) -> bytes:
        """The proof of a chunk that `begin` or `write` reported present, for the peers that it is sent to."""
        ...

    def room(self, ref: BlobRef) -> int:
        """Bytes that a complete blob takes on disk: its size, unless it is kept as a difference from another."""
        ...

    def finish(self, ref: BlobRef) -> None:
        """Make a blob readable as one file; every chunk is present."""
        ...

    def drop(self, root: Digest) -> None:
        """Delete a blob and free its space."""
        ...


class Randomness(Protocol):
    """The part of `random.Random` the state machines use; the owner passes a seeded one."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...
