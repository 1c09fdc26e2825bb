"""Blob store of a learner: blobs in files, and the weights of published versions out of the weight chain.

A version's weights are never a file of their own: a chunk is read from the weights file, or computed from it. What is
read is checked against the chunk's name, so a version that is written at the same moment is never mixed in.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

from p2prl.errors import IntegrityError
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.manifests import BlobRef

CHAIN_FOLDER = "chain"
"""The weight chain's folder in the folder of blobs."""


class ChainBlobs(DiskBlobStore):
    """A `BlobStore` that serves the versions of a chain beside its own files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._chain = ChainReader(directory / CHAIN_FOLDER)
        self._versions: dict[Digest, int] = {}

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """See `BlobStore.begin`. A version of the chain is not hashed here, which takes seconds a gigabyte: each chunk
        is when it is read."""
        state = None if self.path(ref.root).exists() else self._chain.state
        version = None if state is None or state.size_bytes != ref.size_bytes else state.version_of(ref.root)
        if version is None:
            return super().begin(ref)
        self._versions[ref.root] = version
        return frozenset(range(len(ref.chunks)))

    def read(self, ref: BlobRef, index: int) -> bytes:
        """See `BlobStore.read`. `IntegrityError` when the chain's files are damaged."""
        version = self._versions.get(ref.root)
        if version is None:
            return super().read(ref, index)
        offset, length = ref.span(index)
        data = self._chain.read_file(offset, length)
        if chunk_digest(data) != ref.chunks[index]:
            data = self._chain.read(version, offset, length)
        if chunk_digest(data) != ref.chunks[index]:
            raise IntegrityError(f"the weights of version {version} are damaged in {self._chain.directory}")
        return data

    def finish(self, ref: BlobRef) -> None:
        """See `BlobStore.finish`."""
        if ref.root not in self._versions:
            super().finish(ref)

    def drop(self, root: Digest) -> None:
        """See `BlobStore.drop`. The learner itself forgets versions of the chain."""
        if self._versions.pop(root, None) is None:
            super().drop(root)
