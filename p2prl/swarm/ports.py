"""What the swarm's cores need from outside: a place for chunks, and randomness."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import BlobRef


class BlobStore(Protocol):
    """Content-addressed chunks, by blob. `p2prl.net.storage.disk_blobs` keeps them on disk, the simulator in memory."""

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """Make room for a blob; return the chunks of it that are present and hash to their names."""
        ...

    def write(self, ref: BlobRef, index: int, data: bytes) -> None:
        """Store a chunk whose hash the caller has checked. Raises `MachineError` when the disk is full."""
        ...

    def read(self, ref: BlobRef, index: int) -> bytes:
        """A chunk that `begin` or `write` reported present."""
        ...

    def finish(self, ref: BlobRef) -> None:
        """Every chunk is present: make the blob readable as a whole."""
        ...

    def drop(self, root: Digest) -> None:
        """Forget a blob and free its space."""
        ...


class Randomness(Protocol):
    """The part of `random.Random` the cores use; the shell or the simulator passes a seeded one."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...
