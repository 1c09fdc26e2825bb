"""Write the files of a new version: its patches, and its place in the weight chain. Off every thread that must answer.

Segments are independent, so several are encoded at once, by as many threads as there are cores and at most eight:
numpy, zstd and BLAKE3 release the interpreter. Few are in memory at a time, of a model of any size.

One long patch costs far less than the chain of short ones it replaces (.36-.39 of it over 16 versions, measured), and
making one costs the learner a pass over the weights. So every version has the short patch, and a long one if its
number is divisible by the span. A patch that would not be smaller than the weights is not published.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError, LocalProtocolError, MachineError
from p2prl.learner.published_policies import PublishedPolicies
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.redo_encoding import redo_record
from p2prl.net.storage.weight_names import WeightNames
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.dead_band import hold_back
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.stream_format import MAGIC, PREAMBLE, segment_spans, words_digest
from p2prl.patches.words import Words, WordType
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES, Digest
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


_MOST_THREADS = 8
"""Segments encoded at once. Each takes some 60 MB: its words in several versions, and 18 to 32 MB of the encoder."""


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """The files of a version that is not signed yet."""

    version: int
    weights: BlobRef
    digest: Digest
    patches: tuple[Patch, ...]
    changed: int | None
    """Weights that differ from the version before; None for the first."""
    staged: bool
    """Whether the version waits beside the weights file to be written over it."""


@dataclass(frozen=True, slots=True)
class VersionJob:
    """What a version is written from, besides its weights."""

    version: int
    word_type: WordType
    bases: Sequence[PatchBase]
    """Bases of its patches."""
    blobs: DiskBlobStore
    chain: WeightStore
    chunk_pieces: int
    band_ulp: int
    on_progress: Callable[[float], None]
    """Gets the share of the segments that are encoded."""

    @property
    def follows(self) -> bool:
        """Whether the first base is the version before, which the dead band compares with."""
        return bool(self.bases) and self.version > 0 and self.bases[0].version == self.version - 1


@dataclass(frozen=True, slots=True)
class _Segment:
    """One encoded segment."""

    patches: list[bytes]
    inverses: list[bytes]
    redo: bytes
    changed: int


def write_version(job: VersionJob, weights: memoryview) -> VersionFiles:
    """Write the files of a version; they survive a crash once this returns. The dead band changes `weights`.

    A chain begins with this version where there is none. One that is there holds versions that groups are replayed
    with: if it is damaged, `MachineError`, and it stays as it is.
    """
    try:
        return _write(job, weights)
    except IntegrityError as error:
        raise MachineError(
            f"version {job.version} cannot be written: weights in {job.chain.directory} are damaged: {error}",
            remedy="Check the disk, then start the learner again: it forgets the versions that cannot be read.",
        ) from error
    except OSError as error:
        raise write_error(error, f"in {job.blobs.directory}") from error


def _write(job: VersionJob, weights: memoryview) -> VersionFiles:
    chained = job.chain.state is not None
    if chained and not (job.follows and job.bases[0].chained):
        raise LocalProtocolError(f"version {job.version} does not follow the version in the weight chain")
    words = np.frombuffer(weights, dtype=job.word_type.dtype)
    names = WeightNames(chunk_bytes_for(len(weights), pieces=job.chunk_pieces))
    made, changed, complete = _write_patches(job, words, names, chained=chained)
    names.end()
    ref, digest = names.blob, names.digest
    job.blobs.trees.save(ref.root, names.nodes)
    if chained:
        complete(ref.root)
    else:
        job.chain.create(job.version, ref.root, [weights], words=len(words), word_type=job.word_type)
    patches = chosen_patches(job.bases, made, job.blobs, weight_bytes=len(weights), chunk_pieces=job.chunk_pieces)
    counted = changed if job.follows else None
    return VersionFiles(job.version, ref, digest, patches, counted, chained)


def _write_patches(
    job: VersionJob, words: Words, names: WeightNames, *, chained: bool
) -> tuple[list[Path], int, Callable[[Digest], None]]:
    """(files of the patches, changed words, completion of the staged version)."""
    olders = [base.version for base in job.bases if base.chained] if chained else []
    staged = job.chain.stage(job.version, olders) if chained else None
    # Named like blobs, so that those of a killed process are swept away; a starting network process deletes `.new`.
    made = [job.blobs.path(bytes([number]) * DIGEST_BYTES).with_suffix(".made") for number in range(len(job.bases))]
    spans = segment_spans(len(words))
    changed = 0
    with ExitStack() as opened:
        if staged is not None:
            opened.callback(staged.close)
        files: list[BinaryIO] = [opened.enter_context(path.open("wb")) for path in made]
        for file in files:
            file.write(PREAMBLE.pack(MAGIC, job.word_type.code, len(words)))
        for done, segment in enumerate(_in_parallel(lambda index: _segment(job, words, index, chained), len(spans)), 1):
            changed += segment.changed
            for file, piece in zip(files, segment.patches, strict=True):
                file.write(piece)
            if staged is not None:
                staged.add(segment.redo, segment.inverses)
            names.add(words[slice(spans[done - 1][0], sum(spans[done - 1]))].view(np.uint8).data)
            job.on_progress(done / len(spans))
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        if staged is not None:
            staged.seal()
    return made, changed, lambda root: None if staged is None else staged.complete(root)


def _segment(job: VersionJob, words: Words, index: int, chained: bool) -> _Segment:
    start, count = segment_spans(len(words))[index]
    new = words[start : start + count]
    kernels = kernels_for(words.nbytes)
    known: dict[int, Words] = {}
    patches, inverses, changed, redo, digest = [], [], 0, b"", None
    for number, base in enumerate(job.bases):
        in_chain = base.chained
        old = job.chain.words(index, base.version, known) if in_chain else base.words(start, count, job.word_type)
        if number == 0 and job.follows:
            if job.band_ulp:
                hold_back(new, old, job.word_type, band_ulp=job.band_ulp)
            positions = np.flatnonzero(old != new)
            changed = len(positions)
            redo = redo_record(positions, new, job.word_type) if chained else b""
        digest = digest or words_digest(new)
        old_digest = _digest_in_chain(job.chain, base.version, index) if in_chain else None
        old_digest = old_digest or words_digest(old)
        header, body = encode_segment(old, new, job.word_type, kernels, digests=(old_digest, digest))
        patches.append(header.pack() + body)
        if in_chain and chained:
            header, body = encode_segment(new, old, job.word_type, kernels, digests=(digest, old_digest))
            inverses.append(header.pack() + body)
    return _Segment(patches, inverses, redo, changed)


def _digest_in_chain(chain: WeightStore, version: int, index: int) -> Digest | None:
    """Digest of a segment, if a patch of the chain names it: the chain has just read its words and compared them."""
    state = chain.state
    return None if state is None or version not in state.roots else chain.digest_of(state, version, index)


def _in_parallel(work: Callable[[int], _Segment], count: int) -> Iterator[_Segment]:
    """The results in order. At most one more than the threads is begun ahead: each holds several segments' words."""
    threads = min(count, os.cpu_count() or 1, _MOST_THREADS)
    if threads < 2:
        yield from map(work, range(count))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="p2prl-encode") as pool:
        begun: deque[Future[_Segment]] = deque()
        for index in range(count):
            begun.append(pool.submit(work, index))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
