"""Versions of a weight chain, read from one weights file and inverse patches; any process may read while one writes.

The file holds the newest version. An older one is computed segment by segment: its inverse patches are applied to a
copy of the segment, and every patch checks its digests. A lock on the file keeps a reader from seeing half a write.
Patches are deleted without a lock, after the state that no longer names them is written: a reader that misses one reads
the state again, and only under the same state is it damage.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from p2prl.errors import IntegrityError, RemoteProtocolError, StaleWorkError
from p2prl.net.storage.chain_state import ChainState, Inverse, read_state
from p2prl.patches.decode import decode_segment
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.kernels import Kernels
from p2prl.patches.stream_format import (
    HEADER_BYTES,
    PREAMBLE,
    SegmentHeader,
    read_header,
    segment_spans,
    words_digest,
)
from p2prl.patches.words import Words
from p2prl.protocol.digests import Digest

WEIGHTS_FILE, STATE_FILE = "weights", "chain.json"


class ChainReader:
    """Reads the versions of the chain in one directory. Methods may be called from several threads."""

    def __init__(self, directory: Path, *, kernels: Kernels | None = None, kept_segments: int = 0) -> None:
        """`kernels` decode, by default those that fit the weights' size. `read` keeps the words of as many segments of
        older versions as `kept_segments` says, and is for one thread then."""
        self.directory = directory
        self._kernels = kernels
        self._kept_segments = kept_segments
        self._kept: OrderedDict[tuple[Digest, int], Words] = OrderedDict()
        """Words by the version's root and the segment, the least recently used first."""
        self._state: tuple[bytes, ChainState] | None = None
        self._pieces: dict[tuple[Inverse, Digest | None], list[tuple[int, SegmentHeader]]] = {}

    @property
    def state(self) -> ChainState | None:
        """What the chain holds; None when there is none. `IntegrityError` when its state cannot be read."""
        try:
            data = (self.directory / STATE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        # Compared as bytes: inode numbers return within a tick of the clock of files, so no stamp tells two states.
        held = self._state
        if held is None or held[0] != data:
            held = self._state = data, read_state(data)
        return held[1]

    def holds(self, version: int, root: bytes) -> bool:
        """Whether a version with this root can be read."""
        state = self.state
        return state is not None and version != state.target and state.roots.get(version) == root

    def words(self, index: int, version: int, known: dict[int, Words] | None = None) -> Words:
        """The words of a segment in a version.

        `known` are this segment's words in other versions, from which the way may be shorter; those of this version
        are added, and those in the file if they were read. `StaleWorkError` when the chain does not hold the version
        any more, `IntegrityError` when its files are damaged.
        """
        known = {} if known is None else known
        while True:
            state = self._required()
            if version not in state.roots:
                raise StaleWorkError(f"version {version} has left the weight chain")
            try:
                return self._words(index, version, known)
            except IntegrityError:
                if self._required() == state:
                    raise

    def _words(self, index: int, version: int, known: dict[int, Words]) -> Words:
        state = self._required()
        found = state.route(known, version)
        if found is None:
            held, known_words = self._held(index, version)
            known[held] = known_words
            found = self._required().route({held}, version)
        if found is None:
            raise IntegrityError(f"no patches lead back to version {version}")
        start, route = found
        words = known[start]
        kernels = self._kernels or kernels_for(state.size_bytes)
        for inverse in route:
            words = self.apply(inverse, index, words, kernels)
        known[version] = words
        return words

    def read(self, version: int, offset: int, length: int) -> bytes:
        """Bytes of a version's weights. Raises what `words` raises."""
        state = self._required()
        if version not in state.roots:
            raise StaleWorkError(f"version {version} has left the weight chain")
        word_bytes = state.word_type.word_bytes
        parts = []
        for index, (start, count) in enumerate(segment_spans(state.words)):
            first, last = start * word_bytes, (start + count) * word_bytes
            if first < offset + length and offset < last:
                data = self._kept_words(index, version, state).view(np.uint8).data
                parts.append(bytes(data[max(0, offset - first) : max(0, min(last, offset + length) - first)]))
        return b"".join(parts)

    def _kept_words(self, index: int, version: int, state: ChainState) -> Words:
        place = state.roots[version], index
        words = self._kept.pop(place, None)
        if words is None:
            words = self.words(index, version)
        if self._kept_segments:
            self._kept[place] = words
            if len(self._kept) > self._kept_segments:
                self._kept.popitem(last=False)
        return words

    def read_file(self, offset: int, length: int) -> bytes:
        """Bytes of the weights file as they are now; the caller checks which version they belong to."""
        with self._locked(fcntl.LOCK_SH) as file:
            return os.pread(file, length, offset)

    def copy_of(self, version: int) -> memoryview:
        """A version's weights in a file without a name, which goes when the last view of it goes. Raises what `words`
        raises."""
        state = self._required()
        with tempfile.TemporaryFile(dir=self.directory) as file:
            file.truncate(state.size_bytes)
            copy = memoryview(mmap.mmap(file.fileno(), state.size_bytes))
        target = np.frombuffer(copy, dtype=state.word_type.dtype)
        spans = segment_spans(state.words)

        def fill(index: int) -> None:
            start, count = spans[index]
            target[start : start + count] = self.words(index, version)

        with ThreadPoolExecutor(min(len(spans), os.cpu_count() or 1)) as pool:
            for _ in pool.map(fill, range(len(spans))):
                pass
        return copy.toreadonly()

    def _required(self) -> ChainState:
        state = self.state
        if state is None:
            raise IntegrityError(f"there are no weights in {self.directory}")
        return state

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        """The weights file, locked against a writer or, exclusively, against readers; in other threads too."""
        file = os.open(self.directory / WEIGHTS_FILE, os.O_RDONLY)
        try:
            fcntl.flock(file, kind)
            yield file
        finally:
            os.close(file)

    def _held(self, index: int, version: int) -> tuple[int, Words]:
        """(version, words) of a segment as it is in the file."""
        with self._locked(fcntl.LOCK_SH) as file:
            state = self._required()
            start, count = segment_spans(state.words)[index]
            word_bytes = state.word_type.word_bytes
            data = os.pread(file, count * word_bytes, start * word_bytes)
        if len(data) != count * word_bytes:
            raise IntegrityError("the weights file is too short")
        words = np.frombuffer(data, dtype=state.word_type.dtype)
        possible = {state.at} if state.target is None else {state.at, state.target}
        found = words_digest(words)
        digests = {each: self.digest_of(state, each, index) for each in possible}
        fitting = [each for each, digest in digests.items() if digest in (None, found) and each >= version]
        if not fitting:
            raise IntegrityError(f"segment {index} of the weights file holds none of the versions it should")
        return min(fitting), words

    def digest_of(self, state: ChainState, version: int, index: int) -> Digest | None:
        """Digest of a segment in a version, as an inverse patch names it; None when none does."""
        naming = (each for each in state.inverses if version in (each.newer, each.older))
        inverse = min(naming, default=None)
        if inverse is None:
            return None
        header = self._headers(inverse, state)[index][1]
        return header.pre if inverse.newer == version else header.post

    def _headers(self, inverse: Inverse, state: ChainState) -> list[tuple[int, SegmentHeader]]:
        """(position of the body, header) of each segment of a patch."""
        # Named with the root too: after a crash a number may come back with other weights.
        place = inverse, state.roots.get(inverse.newer)
        pieces = self._pieces.get(place)
        if pieces is None:
            pieces = []
            with self._opened(inverse) as file:
                at = PREAMBLE.size
                for _, count in segment_spans(state.words):
                    header = read_header(os.pread(file, HEADER_BYTES, at), count, state.word_type)
                    pieces.append((at + HEADER_BYTES, header))
                    at += HEADER_BYTES + header.body_bytes
            if len(self._pieces) > 2 * len(state.inverses) + 8:
                self._pieces.clear()
            self._pieces[place] = pieces
        return pieces

    def apply(self, inverse: Inverse, index: int, words: Words, kernels: Kernels) -> Words:
        """A segment of the older version, from its words in the newer one."""
        state = self._required()
        at, header = self._headers(inverse, state)[index]
        with self._opened(inverse) as file:
            body = os.pread(file, header.body_bytes, at)
            return decode_segment(words, header, body, state.word_type, kernels)

    @contextlib.contextmanager
    def _opened(self, inverse: Inverse) -> Iterator[int]:
        """The file of an inverse patch. A file that is gone or no patch is damage on this machine."""
        try:
            file = os.open(self.directory / inverse.name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise IntegrityError(f"the patch {inverse.name} is gone") from error
        try:
            yield file
        except RemoteProtocolError as error:
            raise IntegrityError(f"the patch {inverse.name} is damaged: {error}") from error
        finally:
            os.close(file)
