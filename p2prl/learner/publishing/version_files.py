"""Write the files of a new version: its patches, and its place in the weight chain. Off every thread that must answer.

Segments are independent, so several are encoded at once, by as many threads as there are cores and at most eight:
numpy, zstd and BLAKE3 release the interpreter. Few are in memory at a time, of a model of any size.
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
from p2prl.learner.publishing.patch_choice import PatchBase, chosen_patches
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.redo_encoding import redo_record
from p2prl.net.storage.weight_names import WeightNames
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.dead_band import hold_back
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.stream_format import MAGIC, PREAMBLE, segment_spans, words_digest
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.manifests import BlobRef, Patch, chunk_bytes_for

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
