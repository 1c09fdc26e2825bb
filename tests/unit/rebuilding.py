"""Versions on a worker's disk, and orders to rebuild the next one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from blake3 import blake3

from p2prl.net.process import control
from p2prl.net.process.version_rebuild import rebuild
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.held_weights import read_weights
from p2prl.protocol.manifests import NO_BASE, BlobRef, PolicyManifest, blob_of

CHUNK_BYTES = 4096


def stored(folder: Path, data: bytes, chunk_bytes: int = CHUNK_BYTES) -> BlobRef:
    """Put a complete blob into the folder."""
    ref = blob_of(data, chunk_bytes)
    store = DiskBlobStore(folder)
    store.add(ref, data)
    store.close()
    return ref


def order_for(
    folder: Path, weights: bytes, *, version: int, base: BlobRef | None, base_version: int, patches: Sequence[bytes]
) -> control.PatchesReady:
    """The order to rebuild these weights from a version on disk, with patches that are put there."""
    return control.PatchesReady(
        digest=bytes(32),
        version=version,
        weights=blob_of(weights, CHUNK_BYTES),
        weights_digest=blake3(weights).digest(),
        dtype="bfloat16",
        base_version=base_version,
        base=b"" if base is None else base.root,
        patches=tuple(stored(folder, patch).root for patch in patches),
        held=() if base is None else (base.root,),
        folder=str(folder),
    )


def rebuilt(folder: Path, manifest: PolicyManifest, base: bytes | None, patch: bytes) -> bytes:
    """What a worker makes of one patch, from other weights or from nothing, in an empty folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.unlink()
    held = None if base is None else stored(folder, base)
    before = NO_BASE if held is None else manifest.version - 1
    order = control.PatchesReady(
        digest=bytes(32),
        version=manifest.version,
        weights=manifest.weights,
        weights_digest=manifest.weights_digest,
        dtype="bfloat16",
        base_version=before,
        base=b"" if held is None else held.root,
        patches=(stored(folder, patch).root,),
        held=(),
        folder=str(folder),
    )
    rebuild(order)
    return read_weights(folder / manifest.weights.root.hex())
