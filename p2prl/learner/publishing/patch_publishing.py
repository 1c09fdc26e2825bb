"""Patches published with a version: from 1, 4, 16 and 64 versions back, from version 0, and a keyframe.

One long patch costs far less than the chain of short ones it replaces (.36-.39 of it over 16 versions, measured), and
making one costs the learner a pass over the weights. So every version has the short patch, and a long one if its
number is divisible by the span. A patch that would not be smaller than the weights is not published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from p2prl.learner.published_policies import PublishedPolicies
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.patches.encode import encode_patch
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import WORD_TYPES, Words, WordType
from p2prl.protocol import limits
from p2prl.protocol.manifests import NO_BASE, Patch, blob_of, chunk_bytes_for

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
    """File of its weights; None for the zeros of a keyframe."""


def patch_bases(version: int, published: PublishedPolicies) -> list[PatchBase]:
    """Bases of the patches of a version, the most useful first, among those whose weights are still on disk."""
    versions = [version - span for span in SPANS if version % span == 0]
    if version % BRIDGE_EVERY == 0 or _bridge_is_leaving(published):
        versions.append(0)
    bases = []
    for base in dict.fromkeys(versions):
        found = published.weights_file(base) if 0 <= base < version else None
        if found is not None:
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


def make_patches(
    weights: memoryview, dtype: str, bases: list[PatchBase], blobs: DiskBlobStore, *, chunk_pieces: int
) -> tuple[Patch, ...]:
    """Patches from `bases` to `weights`, stored in `blobs`: as many as fit a manifest, all smaller than the weights."""
    word_type = WORD_TYPES[dtype]
    kernels = kernels_for(len(weights))
    words = np.frombuffer(weights, dtype=word_type.dtype)
    patches: list[Patch] = []
    chunks = together = 0
    for base in bases:
        stream = b"".join(
            encode_patch(_word_pairs(base, words, word_type), words=len(words), word_type=word_type, kernels=kernels)
        )
        ref = blob_of(stream, chunk_bytes_for(len(stream), pieces=chunk_pieces))
        fits = len(patches) < limits.MAX_PATCHES and chunks + len(ref.chunks) <= limits.MAX_PATCH_CHUNKS
        fits = fits and together + len(stream) <= limits.MAX_PATCH_SHARE * len(weights)
        if len(stream) >= len(weights) or not fits:
            continue
        chunks += len(ref.chunks)
        together += len(stream)
        blobs.add(ref, stream)
        patches.append(Patch(base.version, base.digest, ref))
    return tuple(patches)


def _word_pairs(base: PatchBase, words: Words, word_type: WordType) -> Iterator[tuple[Words, Words]]:
    """(old, new) machine words, segment after segment; the old ones are read from disk as they are needed."""
    old = None if base.path is None else np.memmap(base.path, dtype=word_type.dtype, mode="r", shape=words.shape)
    for start, count in segment_spans(len(words)):
        before = np.zeros(count, dtype=word_type.dtype) if old is None else np.asarray(old[start : start + count])
        yield before, words[start : start + count]
