"""Blob stores with a weight chain: blobs in files, and the weights of versions out of the chain.

A version's weights are never a file of their own: a chunk is read from the weights file, or computed from it. Whatever
is read is checked with the chunk's proof then, and not before, which takes seconds a gigabyte: so a version that is
written at the same moment is never mixed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from p2prl.errors import IntegrityError
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.reading_thread import ReadingThread
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder
from p2prl.protocol.manifests import BlobRef, listed_nodes

CHAIN_FOLDER = "chain"
"""The weight chain's folder in the folder of blobs."""

_KEPT_SEGMENTS = 4
"""Computed segments in memory: 32 MiB of bf16. A segment is one chunk or many, which are asked for together."""


class ChainBlobs(DiskBlobStore):
    """A learner's `BlobStore`: it serves the versions of its chain beside its own files."""

    def __init__(self, directory: Path, on_ready: Callable[[], None] | None = None) -> None:
        """With `on_ready`, chunks are read by a thread, which calls it whenever one is; without, only by `read`."""
        super().__init__(directory)
        # Compiling kernels would hold up the process for seconds, for a segment now and then.
        self._chain = ChainReader(directory / CHAIN_FOLDER, kernels=NUMPY_KERNELS, kept_segments=_KEPT_SEGMENTS)
        self._versions: dict[Digest, int] = {}
        self._made: set[Digest] = set()
        """Blobs whose files were complete when they were opened."""
        self._thread = None if on_ready is None else ReadingThread(self._checked, on_ready)

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """Versions of the chain and complete files are not hashed here: each chunk is when it is
        read."""
        everything = frozenset(range(ref.total))
        path = self.path(ref.root)
        if path.exists() and path.stat().st_size == ref.size_bytes:
            if ref.root not in self._files:
                self._files[ref.root] = os.open(path, os.O_RDWR)
            self._made.add(ref.root)
            self._need_tree(ref)
            return everything
        if not self._serve_version(ref):
            return super().begin(ref)
        self._need_tree(ref)
        return everything

    def ready(self, ref: BlobRef, index: int) -> bool:
        if self._thread is None or not (ref.root in self._versions or ref.root in self._made):
            return True
        return self._thread.ready(ref, index)

    def read(self, ref: BlobRef, index: int) -> bytes:
        """`IntegrityError` when the files are damaged."""
        if not (ref.root in self._versions or ref.root in self._made):
            return super().read(ref, index)
        data = None if self._thread is None else self._thread.take(ref, index)
        return self._checked(ref, index) if data is None else data

    def finish(self, ref: BlobRef) -> None:
        if ref.root not in self._versions:
            super().finish(ref)

    def drop(self, root: Digest) -> None:
        """The learner itself forgets versions of the chain."""
        if self._thread is not None:
            self._thread.forget(root)
        self._made.discard(root)
        if self._versions.pop(root, None) is None:
            super().drop(root)
        else:
            self.trees.drop(root)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()
        super().close()

    def _serve_version(self, ref: BlobRef) -> bool:
        """Read a blob from the chain from now on; returns whether it is there."""
        state = self._chain.state
        version = None if state is None or state.size_bytes != ref.size_bytes else state.version_of(ref.root)
        if version is not None:
            self._versions[ref.root] = version
        return version is not None

    def _need_tree(self, ref: BlobRef) -> None:
        """Make the tree of a blob that has none: a learner writes it with the blob, but earlier programs did not."""
        if self.trees.is_whole(ref):
            return
        if isinstance(ref.tree, tuple):
            nodes = listed_nodes(ref.tree)
        else:
            nodes = TreeBuilder(chunk_digest(self._stored(ref, index)) for index in range(ref.total)).nodes
        self._save_tree(ref, nodes)

    def _checked(self, ref: BlobRef, index: int) -> bytes:
        """A chunk with the bytes that its name promises. On the thread, while the loop may drop the blob."""
        try:
            proof = self.trees.proof(ref, index)
            if ref.root in self._versions:
                data = self._chain.read_file(*ref.span(index))
                if ref.proves(index, data, proof):
                    return data
            data = self._stored(ref, index)
        except OSError as error:
            raise IntegrityError(f"a file of {self.directory} cannot be read: {error.strerror}") from error
        if not ref.proves(index, data, proof):
            raise IntegrityError(f"published weights in {self.directory} are damaged")
        return data

    def _stored(self, ref: BlobRef, index: int) -> bytes:
        """A chunk as it is on disk, or computed from what is."""
        version = self._versions.get(ref.root)
        offset, length = ref.span(index)
        if version is not None:
            return self._chain.read(version, offset, length)
        with self.path(ref.root).open("rb") as file:
            return os.pread(file.fileno(), length, offset)


class WorkerBlobs(ChainBlobs):
    """A worker's `BlobStore`: what it downloads are files, which the worker's role moves into its chain.

    The network process writes the files, the role the chain (`p2prl.net.process.version_rebuild`), in which a file is
    rewritten to later versions.
    """

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        """Files are hashed, versions of the chain are when they are read."""
        if self.path(ref.root).exists() or not self._serve_version(ref):
            return DiskBlobStore.begin(self, ref)
        self._need_tree(ref)
        return frozenset(range(ref.total))

    def room(self, ref: BlobRef) -> int:
        """The newest version of the chain has the file, each other one its inverse patches."""
        state = self._chain.state
        version = None if state is None or self.path(ref.root).exists() else state.version_of(ref.root)
        if state is None or version is None or version in (state.newest, max(self._versions.values(), default=-1)):
            return ref.size_bytes
        return min(ref.size_bytes, sum(each.size_bytes for each in state.inverses if each.older == version))

    def ready(self, ref: BlobRef, index: int) -> bool:
        self._follow(ref)
        return super().ready(ref, index)

    def read(self, ref: BlobRef, index: int) -> bytes:
        """`IntegrityError` when the chain is damaged."""
        root = ref.root
        if root in self._files:
            data = DiskBlobStore.read(self, ref, index)
            # A file loses its name here before its first byte is rewritten: what was read before that is the blob's.
            if not self._follow(ref):
                return data
        return super().read(ref, index)

    def _follow(self, ref: BlobRef) -> bool:
        """Read a file that has moved into the chain from there, from now on; returns whether it has."""
        root = ref.root
        if root in self._versions:
            return True
        if root not in self._files or self.path(root).exists() or self.path(root).with_suffix(".part").exists():
            return False
        if self._serve_version(ref):
            os.close(self._files.pop(root))
        return root in self._versions
