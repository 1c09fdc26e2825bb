"""Choice of a version's patches: from which older versions they are made, and which of them are published.

One long patch costs far less than the chain of short ones it replaces (.36-.39 of it over 16 versions, measured), and
making one costs the learner a pass over the weights. So every version has the short patch, and a long one if its
number is divisible by the span. A patch that would not be smaller than the weights is not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2prl.learner.published_policies import PublishedPolicies
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.patches.words import Words, WordType
from p2prl.protocol import limits
from p2prl.protocol.manifests import NO_BASE, BlobRef, Patch, chunk_bytes_for, tree_of

SPANS = (1, 4, 16, 64)
"""Versions a patch spans. A version has the patch of a span when its number is divisible by it."""

BRIDGE_EVERY = 16
"""Interval, in versions, of patches from version 0 and keyframes, by which newcomers enter the chain. A learner that
keeps few versions makes patches from version 0 more often, so that one is always in its window."""


@dataclass(frozen=True, slots=True)
class PatchBase:
    """The version a patch starts from."""

    version: int
    digest: bytes
    """Digest of its weights."""
    path: Path | None
    """File of its weights; None for the zeros of a keyframe, or with `chained`."""
    chained: bool = False
    """Whether its weights are in the weight chain."""

    def words(self, start: int, count: int, word_type: WordType) -> Words:
        """Its words from `start` on, unless it is `chained`."""
        if self.path is None:
            return np.zeros(count, dtype=word_type.dtype)
        return np.fromfile(self.path, dtype=word_type.dtype, count=count, offset=start * word_type.word_bytes)


def patch_bases(version: int, published: PublishedPolicies) -> list[PatchBase]:
    """Bases of the patches of a version, the most useful first, among those whose weights are still on disk."""
    spanned = versions = [version - span for span in SPANS if version % span == 0]
    if version % BRIDGE_EVERY == 0 or _bridge_is_leaving(published):
        versions = [*spanned, 0]
    bases = []
    for base in dict.fromkeys(versions):
        policy = published.first if base == 0 else published.at(base)
        if not 0 <= base < version:
            continue
        if policy is not None and published.chain.holds(base, policy.manifest.weights.root):
            bases.append(PatchBase(base, policy.manifest.weights_digest, None, chained=True))
        elif (found := published.weights_file(base)) is not None:
            bases.append(PatchBase(base, *found))
    if version % BRIDGE_EVERY == 0:
        bases.append(PatchBase(NO_BASE, b"", None))
    return bases


def _bridge_is_leaving(published: PublishedPolicies) -> bool:
    """Whether the last patch from version 0 is about to leave a window shorter than `BRIDGE_EVERY` versions."""
    kept = published.all()
    newer = kept[: len(kept) // 2]
    bridged = any(patch.base == 0 for policy in newer for patch in policy.manifest.patches)
    return published.at(0) is None and not bridged


def chosen_patches(
    bases: Sequence[PatchBase], made: Sequence[Path], blobs: DiskBlobStore, *, weight_bytes: int, chunk_pieces: int
) -> tuple[Patch, ...]:
    """The patches to publish, stored in `blobs`: as many as fit a manifest, all smaller than the weights.

    `made` are the files of the patches from `bases`. Those of the others are deleted.
    """
    patches: list[Patch] = []
    together = 0
    for base, path in zip(bases, made, strict=True):
        size = path.stat().st_size
        fits = size < weight_bytes and len(patches) < limits.MAX_PATCHES
        if not fits or together + size > limits.MAX_PATCH_SHARE * weight_bytes:
            path.unlink()
            continue
        ref, nodes = _tree_of_file(path, chunk_pieces)
        together += size
        blobs.adopt(ref, nodes, path)
        patches.append(Patch(base.version, base.digest, ref))
    return tuple(patches)


def _tree_of_file(path: Path, chunk_pieces: int) -> tuple[BlobRef, bytes]:
    data = np.memmap(path, dtype=np.uint8, mode="r")
    return tree_of(data.data, chunk_bytes_for(len(data), pieces=chunk_pieces))
