"""Hash trees of blobs on disk, one file beside each blob: what proves its chunks to other peers, also after a restart.

A file has the nodes of all levels in their places (`p2prl.protocol.hash_tree`), 64 bytes a chunk; zeros where none is
known. It is opened for each use: a node has hundreds of blobs, and descriptors are scarce.
"""

from __future__ import annotations

import os
from pathlib import Path

from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.hash_tree import bound_top, level_sizes, sibling_places, top_of
from p2prl.protocol.manifests import BlobRef

TREE_SUFFIX = ".tree"
NEW_TREE_SUFFIX = ".new-tree"
"""Of a tree that is being written."""


class TreeFiles:
    """The trees in one directory. Methods raise `OSError`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, root: Digest, nodes: bytes) -> None:
        """Write a whole tree. It survives a power cut once this returns."""
        path = self._path(root)
        new = path.with_suffix(NEW_TREE_SUFFIX)
        with new.open("wb") as file:
            file.write(nodes)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)

    def nodes(self, root: Digest) -> bytes:
        """The nodes of a tree as far as they are known; nothing without a file."""
        try:
            return self._path(root).read_bytes()
        except FileNotFoundError:
            return b""

    def is_whole(self, ref: BlobRef) -> bool:
        """Whether the file has the size of this blob's tree, and its top."""
        nodes = self.nodes(ref.root)
        whole = len(nodes) == DIGEST_BYTES * sum(level_sizes(ref.total))
        return whole and bound_top(ref.size_bytes, ref.chunk_bytes, top_of(nodes)) == ref.tree_hash

    def note(self, ref: BlobRef, index: int, proof: bytes) -> None:
        """Remember a chunk's proof, which was checked."""
        file = os.open(self._path(ref.root), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for number, place in enumerate(sibling_places(index, ref.total)):
                node = proof[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
                os.pwrite(file, node, place * DIGEST_BYTES)
        finally:
            os.close(file)

    def proof(self, ref: BlobRef, index: int) -> bytes:
        """What is known of a chunk's proof: it may lack nodes, or have wrong ones."""
        try:
            file = os.open(self._path(ref.root), os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            places = sibling_places(index, ref.total)
            return b"".join(os.pread(file, DIGEST_BYTES, place * DIGEST_BYTES) for place in places)
        finally:
            os.close(file)

    def drop(self, root: Digest) -> None:
        """Delete a tree."""
        self._path(root).unlink(missing_ok=True)

    def _path(self, root: Digest) -> Path:
        return (self._directory / root.hex()).with_suffix(TREE_SUFFIX)
