"""Name of a packed file as a blob of the run manifest, computed without holding the file in memory."""

from __future__ import annotations

from pathlib import Path

from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.hash_tree import TreeBuilder, bound_top, top_of
from p2prl.protocol.manifests import BlobRef, chunk_bytes_for


def file_blob(path: Path) -> BlobRef:
    """A file as a blob, with a chunk size that depends on its size alone."""
    size = path.stat().st_size
    chunk_bytes = chunk_bytes_for(size)
    with path.open("rb") as file:
        tree = TreeBuilder(chunk_digest(data) for data in iter(lambda: file.read(chunk_bytes), b""))
    return BlobRef(size, chunk_bytes, bound_top(size, chunk_bytes, top_of(tree.nodes)))
