"""The simulator's `BlobStore`, in memory. It survives a simulated crash, as a disk would."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from p2prl.protocol.digests import Digest
from p2prl.protocol.hash_tree import proof_among
from p2prl.protocol.manifests import BlobRef, tree_of


class MemoryBlobs:
    """A `BlobStore` in one dictionary. Chunks are kept by blob and index, as in a file."""

    def __init__(self) -> None:
        self._chunks: dict[Digest, dict[int, bytes]] = {}
        self._proofs: dict[tuple[Digest, int], bytes] = {}
        self._finished: dict[Digest, None] = {}

    def add(self, ref: BlobRef, data: bytes | memoryview) -> None:
        """Add a complete blob."""
        view = memoryview(data)
        root, nodes = ref.root, tree_of(data, ref.chunk_bytes)[1]
        spans = [ref.span(index) for index in range(ref.total)]
        self._chunks[root] = {i: bytes(view[start : start + size]) for i, (start, size) in enumerate(spans)}
        self._proofs |= {(root, index): proof_among(nodes, index, ref.total) for index in range(ref.total)}
        self._finished[root] = None

    def lay(self, name: Digest, data: bytes) -> None:
        """Add bytes under a name that is not a blob of the run: a local base."""
        self._chunks[name] = {0: data}

    def whole(self, ref: BlobRef) -> bytes:
        """The bytes of a finished blob. Raises `KeyError` while a chunk is missing."""
        chunks = self._chunks[ref.root]
        return b"".join(chunks[index] for index in range(ref.total))

    def by_root(self, root: Digest) -> bytes:
        """The bytes of a finished blob by its root. Raises `KeyError` when it is missing."""
        chunks = self._chunks[root]
        return b"".join(chunks[index] for index in sorted(chunks))

    def holds(self, root: Digest) -> bool:
        """Whether a blob is here and complete."""
        return root in self._finished

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks kept."""
        return sum(len(data) for chunks in self._chunks.values() for data in chunks.values())

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """See `BlobStore.begin`."""
        root = ref.root
        present = self._chunks.setdefault(root, {})
        return {i for i, data in present.items() if ref.proves(i, data, self._proofs.get((root, i), b""))}

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        """See `BlobStore.write`."""
        root = ref.root
        self._chunks[root][index], self._proofs[root, index] = data, proof

    def proof(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.proof`."""
        return self._proofs[ref.root, index]

    def ready(self, ref: BlobRef, index: int) -> bool:  # noqa: ARG002 - memory
        """See `BlobStore.ready`."""
        return True

    def read(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.read`."""
        return self._chunks[ref.root][index]

    def room(self, ref: BlobRef) -> int:
        """See `BlobStore.room`."""
        return ref.size_bytes

    def finish(self, ref: BlobRef) -> None:
        """See `BlobStore.finish`."""
        self._finished[ref.root] = None

    def drop(self, root: Digest) -> None:
        """See `BlobStore.drop`."""
        for index in self._chunks.pop(root, {}):
            self._proofs.pop((root, index), None)
        self._finished.pop(root, None)
