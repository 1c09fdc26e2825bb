"""Digests of a version's weights, computed while they go by: of all of them, and of the tree over their chunks."""

from __future__ import annotations

from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, top_of
from p2prl.protocol.manifests import BlobRef


class WeightNames:
    """Takes the weights in order, in pieces of any length."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._whole, self._size = blake3(), 0
        self._chunk = blake3()
        """Of the chunk that has begun."""
        self._tree = TreeBuilder()

    def add(self, data: memoryview) -> None:
        """The next bytes."""
        self._whole.update(data)
        while data:
            part = data[: self._chunk_bytes - self._size % self._chunk_bytes]
            self._chunk.update(part)
            self._size += len(part)
            data = data[len(part) :]
            if self._size % self._chunk_bytes == 0:
                self._end_chunk()

    def end(self) -> None:
        """There are no more bytes: the last chunk may be a short one."""
        if self._size % self._chunk_bytes:
            self._end_chunk()

    @property
    def blob(self) -> BlobRef:
        """The weights as a blob."""
        top = top_of(self.nodes)
        return BlobRef(self._size, self._chunk_bytes, bound_top(self._size, self._chunk_bytes, top))

    @property
    def nodes(self) -> bytes:
        """Nodes of the blob's tree."""
        return self._tree.nodes

    @property
    def digest(self) -> Digest:
        """Digest of the weights."""
        return Digest(self._whole.digest())

    def _end_chunk(self) -> None:
        self._tree.add(self._chunk.digest())
        self._chunk = blake3()
