"""Name of a packed file as a blob of the run manifest, computed without holding the file in memory."""

from __future__ import annotations

from pathlib import Path

from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.manifests import BlobRef, chunk_bytes_for

_PIECES = 32
"""Chunks that a file of some megabytes is cut into: the hashes of 64 data sets fit one manifest."""


def file_blob(path: Path) -> BlobRef:
    """Chunks of a file, with a chunk size that depends on its size alone."""
    size = path.stat().st_size
    chunk_bytes = chunk_bytes_for(size, pieces=_PIECES)
    with path.open("rb") as file:
        chunks = tuple(chunk_digest(data) for data in iter(lambda: file.read(chunk_bytes), b""))
    return BlobRef(size_bytes=size, chunk_bytes=chunk_bytes, chunks=chunks)
