"""A weight store of small versions, and what fills it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from p2prl.net.storage.redo_records import redo_record
from p2prl.net.storage.store_files import StoreFiles
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import BF16, Words, WordType
from p2prl.protocol.digests import Digest, chunk_digest

WORDS = 45
SPANS = (1, 4, 16)


class FastFiles(StoreFiles):
    """Files that outlive their process, not a power cut: nothing here cuts the power."""

    def finish(self, file: BinaryIO) -> None:
        file.close()

    def sync_names(self, directory: Path) -> None:
        pass

    def sync_words(self, words: Words) -> None:
        pass


def root_of(words: Words) -> Digest:
    return chunk_digest(words.tobytes())


def successor(rng: np.random.Generator, words: Words, word_type: WordType) -> Words:
    """Any new words: none, few or all of them different."""
    share = rng.choice([0.0, 0.02, 0.5, 1.0])
    moved = rng.random(len(words)) < share
    fresh = rng.integers(0, 1 << word_type.bits, len(words), dtype=np.uint64).astype(word_type.dtype)
    return np.where(moved, fresh, words)


def stage(store: WeightStore, version: int, words: Words) -> None:
    """Write a version beside the file as the publisher does."""
    state = store.state
    assert state is not None
    held = set(state.roots)
    olders = [version - span for span in SPANS if version % span == 0 and version - span in held]
    staged = store.stage(version, olders)
    for index, (start, count) in enumerate(segment_spans(len(words))):
        new, known = words[start : start + count], dict[int, Words]()
        pieces = []
        for older in olders:
            old = store.words(index, older, known)
            header, body = encode_segment(new, old, state.word_type, NUMPY_KERNELS)
            pieces.append(header.pack() + body)
        staged.add(redo_record(np.flatnonzero(known[version - 1] != new), new, state.word_type), pieces)
    staged.complete(root_of(words))


def begin(store: WeightStore, words: Words, word_type: WordType = BF16) -> None:
    store.create(0, root_of(words), [words.tobytes()], words=len(words), word_type=word_type)
