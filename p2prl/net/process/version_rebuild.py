"""Rebuild a version's weights from patches, in place where a weight chain holds the version before.

A worker's weights are on its disk once: one file, rewritten to each newer version, and inverse patches to the versions
that it still serves. A version that was downloaded whole is a file first; the next order moves it into the chain, by
another name for the file where there is no chain, or as one more version of it. What fits neither way, as a version
older than the chain's, or one while somebody views the chain's file, is written to a file of its own.

Each segment goes through all patches of the route before the next one, so only a few segments are in memory for any
number of patches and any model size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError
from p2prl.net.process import control
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER
from p2prl.net.storage.chain_state import ChainState
from p2prl.net.storage.redo_encoding import redo_record
from p2prl.net.storage.store_files import StoreFiles
from p2prl.net.storage.tree_files import TreeFiles
from p2prl.net.storage.weight_names import WeightNames
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches.decode import Rebuilt, apply_route
from p2prl.patches.encode import encode_segment, encode_way_back
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.stream_format import SEGMENT_WORDS, segment_spans, words_digest
from p2prl.patches.words import WORD_TYPES, Words
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import NO_BASE

_PIECE_BYTES = 1 << 20

_MOST_SHARE = 4
"""One part in this many of the weights is the most that a version's patches may have, and what is staged for it, if it
is to be written over the version before: 7 % of changed bf16 words are just within it. Where more changes, a file of
its own costs less. A learner that signs versions which change less at first and more at the end costs a disk no more
than it was told (`p2prl.swarm.policies.retention`)."""


Decode = Callable[..., Iterator[Rebuilt]]
"""`apply_route`, or what gives the same."""


def rebuild(order: control.PatchesReady, files: StoreFiles | None = None, decode: Decode = apply_route) -> None:
    """Decode the patches of `order`; the version is in the chain or in its file then, and survives a crash.

    `files` write the chain; `decode` may take what another machine in this process has decoded.

    Raises `IntegrityError` or `RemoteProtocolError` when the patches do not lead from the base to the signed weights,
    and `MachineError` when the disk refuses.
    """
    try:
        _Rebuild(order, files, decode).run()
    except OSError as error:
        raise write_error(error, f"in {order.folder}") from error


def resume_chain(folder: Path) -> None:
    """Before a worker's network process starts: finish or undo what a killed role left in the chain in this folder."""
    chain = WeightStore(folder / CHAIN_FOLDER)
    chain.resume()
    state = chain.state
    for root in () if state is None else state.roots.values():
        (folder / root.hex()).unlink(missing_ok=True)  # the name it had before the chain took it


def forget_others(folder: Path, held: Collection[bytes]) -> None:
    """Forget the versions of the chain in this folder that are older than all whose weights' roots are `held`.

    Of versions with equal weights the newest counts: a learner that signs the same few in turns fills no disk.
    """
    chain = WeightStore(folder / CHAIN_FOLDER)
    state = chain.state
    if state is None:
        return
    oldest = min((version for root in held if (version := state.version_of(root)) is not None), default=None)
    if oldest is None:
        chain.remove()
    else:
        chain.retain(oldest)


class _Rebuild:
    """One order."""

    def __init__(self, order: control.PatchesReady, files: StoreFiles | None, decode: Decode) -> None:
        self._order = order
        self._decode = decode
        self._folder = Path(order.folder)
        self._word_type = WORD_TYPES[order.dtype]
        self._words = order.weights.size_bytes // self._word_type.word_bytes
        self._kernels = kernels_for(order.weights.size_bytes)
        self._chain = WeightStore(self._folder / CHAIN_FOLDER, files)
        self._trees = TreeFiles(self._folder)

    def run(self) -> None:
        """Put the version where it belongs."""
        order = self._order
        forget_others(self._folder, order.held)
        self._take_in_base()
        if self._chain.state is None:
            self._begin_chain()
        elif self._is_dense():
            self._write_file(self._checked())
        elif self._words <= SEGMENT_WORDS:
            only = list(self._checked())  # decoded once, wherever it goes
            if not self._extend(order.version, order.weights.root, iter(only)):
                self._write_file(only)
        elif not self._extend(order.version, order.weights.root, self._checked()):
            self._write_file(self._checked())

    def _is_dense(self) -> bool:
        sizes = sum(self._path(root).stat().st_size for root in self._order.patches)
        return sizes * _MOST_SHARE > self._order.weights.size_bytes

    def _take_in_base(self) -> None:
        """Move the file of the version before into the chain."""
        order, path = self._order, self._path(self._order.base)
        if order.base_version == NO_BASE or not path.exists():
            return
        if self._chain.state is None:
            self._base_file().close()
            self._chain.adopt(order.base_version, Digest(order.base), path, self._word_type)
            return
        spans = segment_spans(self._words)
        words = (Rebuilt(start, self._from_file(start, count), None) for start, count in spans)
        if self._extend(order.base_version, Digest(order.base), words):
            path.unlink()

    def _extend(self, version: int, root: Digest, segments: Iterator[Rebuilt]) -> bool:
        """Write a version over the chain's file. False, and nothing is changed, if it does not follow it, or if too
        many words change."""
        chain = self._chain
        state = chain.state
        if state is None or version <= state.newest or chain.is_viewed:
            return False
        staged = chain.stage(version, [state.at])
        room = state.size_bytes // _MOST_SHARE
        try:
            for index, segment in enumerate(segments):
                redo = self._redo(index, segment)
                room -= len(redo)
                if room < 0:
                    return False  # without the time that its inverse would take
                inverse = self._inverse(state, index, segment)
                room -= len(inverse)
                staged.add(redo, [inverse])
            staged.complete(root)
        finally:
            staged.discard()
        chain.commit()
        return True

    def _redo(self, index: int, segment: Rebuilt) -> bytes:
        """What turns a segment of the chain's file into that of the version."""
        if self._follows and segment.applied is not None:
            return redo_record(segment.applied.places, segment.words, self._word_type)
        return redo_record(np.flatnonzero(self._at(index, segment) != segment.words), segment.words, self._word_type)

    def _inverse(self, state: ChainState, index: int, segment: Rebuilt) -> bytes:
        """The piece of the inverse patch for a segment: its header and its body."""
        # The digest of the file's words is known from the inverse before: if they were damaged since, the new ones are
        # not those that were signed.
        known = self._chain.digest_of(state, state.at, index)
        digests = (
            segment.digest or words_digest(segment.words),
            words_digest(self._at(index, segment)) if known is None else known,
        )
        made = None
        if self._follows and segment.applied is not None:
            made = encode_way_back(segment.applied, self._word_type, self._kernels, digests=digests)
        if made is None:
            old, new = self._at(index, segment), segment.words
            made = encode_segment(new, old, self._word_type, self._kernels, digests=digests)
        return made[0].pack() + made[1]

    def _at(self, index: int, segment: Rebuilt) -> Words:
        """Words of a segment of the chain's file."""
        return segment.old if self._follows and segment.old is not None else self._chain.at_words(index)

    @property
    def _follows(self) -> bool:
        """Whether the patches lead on from the version in the chain's file."""
        state = self._chain.state
        return state is not None and state.at == state.version_of(self._order.base)

    def _begin_chain(self) -> None:
        """Write the version as the first of a chain."""
        order = self._order
        pieces = (_bytes_of(segment.words) for segment in self._checked())
        try:
            self._chain.create(order.version, order.weights.root, pieces, words=self._words, word_type=self._word_type)
        finally:
            if self._chain.state is None:
                self._chain.remove()

    def _write_file(self, segments: Iterable[Rebuilt]) -> None:
        """Write the version to a file of its own, which gets its name once it is complete."""
        target = self._path(self._order.weights.root)
        part = target.with_suffix(".rebuilt")
        try:
            with part.open("wb") as file:
                for segment in segments:
                    file.write(_bytes_of(segment.words))
                file.flush()
                os.fsync(file.fileno())
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)

    def _checked(self) -> Iterator[Rebuilt]:
        """The decoded segments. After the last one the weights are those that the learner signed, and
        the tree that proves their chunks to others is on disk; or it raises."""
        order = self._order
        names = WeightNames(order.weights.chunk_bytes)
        streams = [_pieces(self._path(root)) for root in order.patches]
        for segment in self._decode(
            streams,
            self._base_words(),
            words=self._words,
            word_type=self._word_type,
            kernels=self._kernels,
            both_ways=self._follows,
        ):
            names.add(_bytes_of(segment.words))
            yield segment
        names.end()
        if names.digest != order.weights_digest or names.blob.tree_hash != order.weights.tree_hash:
            raise IntegrityError("patches: the decoded weights are not those of the manifest")
        self._trees.save(order.weights.root, names.nodes)

    def _base_words(self) -> Callable[[int, int], Words]:
        """Where the words come from that the first patch applies to."""
        order, chain, state = self._order, self._chain, self._chain.state
        if not order.base:
            return lambda _, count: np.zeros(count, dtype=self._word_type.dtype)
        version = None if state is None else state.version_of(order.base)
        if state is None or version is None:
            return self._from_file
        if version == state.at:
            return lambda start, _: chain.at_words(start // SEGMENT_WORDS)
        return lambda start, _: chain.words(start // SEGMENT_WORDS, version)

    def _from_file(self, start: int, count: int) -> Words:
        word_bytes = self._word_type.word_bytes
        with self._base_file() as file:
            return np.frombuffer(os.pread(file.fileno(), count * word_bytes, start * word_bytes), self._word_type.dtype)

    def _base_file(self) -> BinaryIO:
        file = self._path(self._order.base).open("rb")
        if os.fstat(file.fileno()).st_size != self._order.weights.size_bytes:
            file.close()
            raise IntegrityError("patches: the weights they apply to are not of this model")
        return file

    def _path(self, root: bytes) -> Path:
        return self._folder / root.hex()


def _bytes_of(words: Words) -> memoryview:
    return np.ascontiguousarray(words).view(np.uint8).data


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
