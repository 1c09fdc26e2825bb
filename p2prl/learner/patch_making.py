"""The patches a version is published with: from one version back, from 4, 16 and 64, from the start, from nothing.

A longer patch costs far less than the chain it spares (.36–.39 of it over 16 versions, measured), and making one costs
the learner a pass over the words: so each version has the short one, and the long ones come where its number is
divisible. What would not be smaller than the weights is not published.
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
"""Versions a patch leads over. A version has the patch of a span where its number is divisible by it."""

BRIDGE_EVERY = 16
"""Versions between two that have a patch from the starting weights, and a keyframe: a newcomer goes on from there.
A learner that keeps few versions makes such patches more often, so that one is always in its window."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a patch starts from."""

    version: int
    state: bytes
    path: Path | None
    """The weights; None for the zeros of a keyframe."""


def bases_of(version: int, shelf: PublishedPolicies) -> list[Base]:
    """Where the patches of a version start, the cheapest to use first: as far as the learner still has the words."""
    starts = [version - span for span in SPANS if version % span == 0]
    if version % BRIDGE_EVERY == 0 or _loses_its_bridge(shelf):
        starts.append(0)
    bases = []
    for start in dict.fromkeys(starts):
        words = shelf.words_of(start) if 0 <= start < version else None
        if words is not None:
            bases.append(Base(start, *words))
    if version % BRIDGE_EVERY == 0:
        bases.append(Base(NO_BASE, b"", None))
    return bases


def _loses_its_bridge(shelf: PublishedPolicies) -> bool:
    """Whether the last patch from the starting weights is about to leave a window shorter than the way between two."""
    kept = shelf.all()
    newer = kept[: len(kept) // 2]
    bridged = any(patch.base == 0 for published in newer for patch in published.manifest.patches)
    return shelf.at(0) is None and not bridged


def make_patches(
    weights: memoryview, dtype: str, bases: list[Base], blobs: DiskBlobStore, *, chunk_pieces: int
) -> tuple[Patch, ...]:
    """Patches from `bases` to `weights`, stored in `blobs`, as many as a manifest has room for.

    One as large as the weights is left out.
    """
    word_type = WORD_TYPES[dtype]
    kernels = kernels_for(len(weights))
    words = np.frombuffer(weights, dtype=word_type.dtype)
    patches: list[Patch] = []
    chunks = 0
    for base in bases:
        stream = b"".join(
            encode_patch(_pairs(base, words, word_type), words=len(words), word_type=word_type, kernels=kernels)
        )
        ref = blob_of(stream, chunk_bytes_for(len(stream), pieces=chunk_pieces))
        chunks += len(ref.chunks)
        if len(stream) >= len(weights) or len(patches) == limits.MAX_PATCHES or chunks > limits.MAX_PATCH_CHUNKS:
            chunks -= len(ref.chunks)
            continue
        blobs.add(ref, stream)
        patches.append(Patch(base.version, base.state, ref))
    return tuple(patches)


def _pairs(base: Base, words: Words, word_type: WordType) -> Iterator[tuple[Words, Words]]:
    """(old, new) words span after span; the old ones are read as they are needed."""
    old = None if base.path is None else np.memmap(base.path, dtype=word_type.dtype, mode="r", shape=words.shape)
    for start, count in segment_spans(len(words)):
        before = np.zeros(count, dtype=word_type.dtype) if old is None else np.asarray(old[start : start + count])
        yield before, words[start : start + count]
