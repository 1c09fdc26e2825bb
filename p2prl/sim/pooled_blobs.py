"""Chunk stores of simulated peers that share one copy of the bytes: each knows which chunks it holds."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from p2prl.protocol.digests import Digest
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.manifests import BlobRef, tree_of


class BlobPool:
    """The bytes of every blob of a simulation, with their proofs."""

    def __init__(self) -> None:
        self._chunks: dict[Digest, list[tuple[bytes, bytes]]] = {}

    def add(self, ref: BlobRef, data: bytes) -> None:
        """Add a blob."""
        nodes = tree_of(data, ref.chunk_bytes)[1]
        spans = map(ref.span, range(ref.total))
        self._chunks[ref.root] = [
            (data[start : start + size], proof_among(nodes, index, ref.total))
            for index, (start, size) in enumerate(spans)
        ]

    def chunk(self, root: Digest, index: int) -> tuple[bytes, bytes]:
        """A chunk and its proof."""
        return self._chunks[root][index]


class PooledBlobs:
    """The `BlobStore` of one peer. It survives a simulated crash, as a disk would."""

    def __init__(self, pool: BlobPool) -> None:
        self._pool = pool
        self._held: dict[Digest, set[int]] = {}

    def hold(self, ref: BlobRef) -> None:
        """Hold all of a blob: its author does."""
        self._held[ref.root] = set(range(ref.total))

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """See `BlobStore.begin`."""
        return set(self._held.setdefault(ref.root, set()))

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:  # noqa: ARG002 - checked bytes
        """See `BlobStore.write`. The caller has proved that the bytes are those of the pool."""
        self._held[ref.root].add(index)

    def proof(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.proof`."""
        return self._pool.chunk(ref.root, index)[1]

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - memory
        """See `BlobStore.ready`."""
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.read`."""
        return self._pool.chunk(ref.root, index)[0]

    def room(self, ref: BlobRef) -> int:
        """See `BlobStore.room`."""
        return ref.size_bytes

    def finish(self, ref: BlobRef) -> None:
        """See `BlobStore.finish`."""

    def drop(self, root: Digest) -> None:
        """See `BlobStore.drop`."""
        self._held.pop(root, None)
