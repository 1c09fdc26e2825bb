"""A weight store of small versions, and what fills it."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from p2prl.net.storage.redo_encoding import redo_record
from p2prl.net.storage.store_files import UnsyncedFiles
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import BF16, Words, WordType
from p2prl.protocol.digests import Digest, chunk_digest

WORDS = 45
SPANS = (1, 4, 16)


class KilledError(Exception):
    """The process ends here."""


class KilledFiles(UnsyncedFiles):
    """Ends the process at one of its writes, of which it may do a part."""

    def __init__(self, at: int, *, half: bool) -> None:
        self.left, self.half, self.dead = at, half, False
        self.open: list[BinaryIO] = []

    def _next(self) -> bool:
        """Whether this write is the last."""
        if self.dead:
            raise KilledError  # out of what cleans up, as a dead process does not
        self.left -= 1
        self.dead = self.left < 0
        return self.dead

    def create(self, path: Path) -> BinaryIO:
        if self._next():
            raise KilledError
        self.open.append(super().create(path))
        return self.open[-1]

    def bury(self) -> None:
        """Close the files of the dead process, as its end does."""
        for file in self.open:
            file.close()

    def append(self, file: BinaryIO, data: bytes | memoryview) -> None:
        if self._next():
            file.write(data[: len(data) // 2] if self.half else b"")
            file.flush()
            raise KilledError
        super().append(file, data)

    def finish(self, file: BinaryIO) -> None:
        if self._next():
            raise KilledError
        super().finish(file)

    def link(self, path: Path, other: Path) -> None:
        if self._next():
            raise KilledError
        super().link(path, other)

    def rename(self, path: Path, name: Path) -> None:
        if self._next():
            raise KilledError
        super().rename(path, name)

    def sync_names(self, directory: Path) -> None:
        if self._next():
            raise KilledError
        super().sync_names(directory)

    def unlink(self, path: Path) -> None:
        if self._next():
            raise KilledError
        super().unlink(path)

    def write_words(self, segment: Words, positions: Words | slice, values: Words) -> None:
        if self._next():
            if self.half:
                places = np.arange(len(segment))[positions]
                segment[places[::2]] = values[::2]
            raise KilledError
        super().write_words(segment, positions, values)

    def sync_words(self, words: Words) -> None:
        if self._next():
            raise KilledError
        super().sync_words(words)


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
