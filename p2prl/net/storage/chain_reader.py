"""Versions of a weight chain, read from one weights file and inverse patches; any process may read while one writes.

The file holds the newest version, or the one before while the newest is written over it: its words are in the redo file
then. An older one is computed segment by segment: its inverse patches are applied to a
copy of the segment, and its digest is checked. A lock on the file keeps a reader from seeing half a write.
Patches are deleted without a lock, after the state that no longer names them is written: a reader that misses one reads
the state again, and only under the same state is it damage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from p2prl.errors import IntegrityError, RemoteProtocolError, StaleWorkError
from p2prl.net.storage.chain_state import ChainState, Inverse, read_state
from p2prl.net.storage.redo_encoding import changes_of
from p2prl.patches.decode import decode_segment, decode_unchecked
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

WEIGHTS_FILE, STATE_FILE, REDO_FILE = "weights", "chain.json", "redo"
_LENGTH = struct.Struct("<Q")

_MAPPED_AT_ONCE = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
"""All pages in one call, where the system has it: reading a segment would else stop at every sixteenth page."""


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
        self._redo: tuple[object, list[tuple[int, int]]] = (None, [])
        """Places of the records in the redo file, and the rewrite that they are of."""
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

    @property
    def size_bytes(self) -> int:
        """Bytes of one version. `IntegrityError` when there is no chain."""
        return self._required().size_bytes

    def holds(self, version: int, root: bytes) -> bool:
        """Whether a version with this root can be read."""
        state = self.state
        return state is not None and state.roots.get(version) == root

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
            header, body = self._piece(inverse, index, state)
            with self._blaming(inverse):
                words = decode_unchecked(words, header, body, state.word_type, kernels)
        # A step that went wrong shows at the end: each digest takes as long as all of the decoding.
        if route and words_digest(words) != header.post:
            raise IntegrityError(f"a patch from version {start} back to version {version} is damaged")
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

    def at_words(self, index: int) -> Words:
        """The words of a segment of the weights file as they are, for the process that writes it. They are mapped: what
        it writes shows in them."""
        state = self._required()
        start, count = segment_spans(state.words)[index]
        size, offset = count * state.word_type.word_bytes, start * state.word_type.word_bytes
        with (self.directory / WEIGHTS_FILE).open("rb") as file:
            try:
                data = mmap.mmap(file.fileno(), size, flags=_MAPPED_AT_ONCE, prot=mmap.PROT_READ, offset=offset)
            except ValueError as error:
                raise IntegrityError("the weights file is too short") from error
        return np.frombuffer(data, dtype=state.word_type.dtype)

    def view_of(self, version: int) -> memoryview:
        """The weights of the version in the file, which is not rewritten while the view lives. `StaleWorkError` when
        the file holds another one."""
        with self._locked(fcntl.LOCK_SH) as file:
            state = self._required()
            if state.at != version or state.target is not None:
                raise StaleWorkError(f"the weights file holds another version than {version}")
            # The mapping has the file's descriptor, and the lock, until the last view of it goes.
            return memoryview(mmap.mmap(file, state.size_bytes, access=mmap.ACCESS_READ))

    def copy_of(self, version: int, scratch: Path | None = None) -> memoryview:
        """A version's weights in a file without a name, which goes when the last view of it goes.

        The file is in the folder `scratch`, or in the chain's own. Raises what `words` raises, and `OSError` when it
        cannot be written."""
        state = self._required()
        spans = segment_spans(state.words)
        with tempfile.TemporaryFile(dir=scratch or self.directory) as file:
            # Written, not mapped: a mapped page of a new file costs a fault, and the loss of the disk a signal.
            os.truncate(file.fileno(), state.size_bytes)

            def fill(index: int) -> None:
                data = self.words(index, version).view(np.uint8).data
                if os.pwrite(file.fileno(), data, spans[index][0] * state.word_type.word_bytes) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            if len(spans) == 1:
                fill(0)
            else:
                with ThreadPoolExecutor(min(len(spans), os.cpu_count() or 1)) as pool:
                    for _ in pool.map(fill, range(len(spans))):
                        pass
            return memoryview(mmap.mmap(file.fileno(), state.size_bytes, access=mmap.ACCESS_READ))

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
        """(version, words) of a segment as it is in the file, or will be, of a version that is not older than this."""
        with self._locked(fcntl.LOCK_SH) as file:
            state = self._required()
            start, count = segment_spans(state.words)[index]
            word_bytes = state.word_type.word_bytes
            data = os.pread(file, count * word_bytes, start * word_bytes)
            # Read under the lock, under which the state that names it ends.
            redo = self.redo_record(state, index) if version == state.target else b""
        if len(data) != count * word_bytes:
            raise IntegrityError("the weights file is too short")
        words = np.frombuffer(data, dtype=state.word_type.dtype)
        possible = {state.at} if state.target is None else {state.at, state.target}
        found = words_digest(words)
        digests = {each: self.digest_of(state, each, index) for each in possible}
        fitting = [each for each, digest in digests.items() if digest in (None, found) and each >= version]
        if not fitting and redo and found == digests[state.at]:
            words = words.copy()
            positions, values = changes_of(redo, count, state.word_type)
            words[positions] = values
            fitting = [version] if words_digest(words) == digests[version] else []
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

    def redo_record(self, state: ChainState, index: int) -> bytes:
        """What turns a segment of the file into that of the target."""
        try:
            with (self.directory / REDO_FILE).open("rb") as file:
                place = state.at, state.target, state.roots[state.at]
                if self._redo[0] != place:
                    self._redo = place, _record_spans(file.fileno(), len(segment_spans(state.words)))
                at, length = self._redo[1][index]
                return os.pread(file.fileno(), length, at)
        except FileNotFoundError as error:
            raise IntegrityError("the redo file is gone") from error

    def apply(self, inverse: Inverse, index: int, words: Words, kernels: Kernels) -> Words:
        """A segment of the older version, from its words in the newer one."""
        state = self._required()
        header, body = self._piece(inverse, index, state)
        with self._blaming(inverse):
            return decode_segment(words, header, body, state.word_type, kernels)

    def _piece(self, inverse: Inverse, index: int, state: ChainState) -> tuple[SegmentHeader, bytes]:
        at, header = self._headers(inverse, state)[index]
        with self._opened(inverse) as file:
            return header, os.pread(file, header.body_bytes, at)

    @contextlib.contextmanager
    def _opened(self, inverse: Inverse) -> Iterator[int]:
        """The file of an inverse patch. A file that is gone or no patch is damage on this machine."""
        try:
            file = os.open(self.directory / inverse.name, os.O_RDONLY)
        except FileNotFoundError as error:
            raise IntegrityError(f"the patch {inverse.name} is gone") from error
        try:
            with self._blaming(inverse):
                yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _blaming(self, inverse: Inverse) -> Iterator[None]:
        """What a peer's patch would be blamed for is damage in a patch of this machine."""
        try:
            yield
        except RemoteProtocolError as error:
            raise IntegrityError(f"the patch {inverse.name} is damaged: {error}") from error


def _record_spans(file: int, count: int) -> list[tuple[int, int]]:
    """(position, length) of each record of a redo file."""
    spans, at = [], 0
    for _ in range(count):
        head = os.pread(file, _LENGTH.size, at)
        if len(head) != _LENGTH.size:
            raise IntegrityError("redo: the file ends too early")
        spans.append((at + _LENGTH.size, _LENGTH.unpack(head)[0]))
        at = sum(spans[-1])
    return spans


def framed(records: Iterable[bytes]) -> Iterator[bytes]:
    """Redo records as they are in their file: each after its length."""
    for record in records:
        yield _LENGTH.pack(len(record))
        yield record
