"""Weight store: one file of weights in segment order, and inverse patches to every older version of a window.

A new version is first written beside the file: its inverse patches and a redo file with the words that change
(`stage`). Only then are the words overwritten in place (`commit`). A process may be killed, or the power cut, at any
write: `settle` finishes what was begun, or takes it back when the version was never signed. Readers (`ChainReader`) may
be other threads and processes. One process writes.

Bytes on disk: the weights, the inverse patches, and while a version is written at most the weights once more.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError
from p2prl.net.storage.chain_reader import REDO_FILE, STATE_FILE, WEIGHTS_FILE, ChainReader, framed
from p2prl.net.storage.chain_state import ChainState, Inverse, write_state
from p2prl.net.storage.redo_encoding import changes_of, redo_record
from p2prl.net.storage.store_files import StoreFiles
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.stream_format import MAGIC, PREAMBLE, segment_spans, words_digest
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import Digest


class WeightStore(ChainReader):
    """Writes the chain in one directory, and reads it."""

    def __init__(self, directory: Path, files: StoreFiles | None = None) -> None:
        super().__init__(directory)
        self._files = files or StoreFiles()

    def create(
        self, version: int, root: Digest, pieces: Iterable[bytes | memoryview], *, words: int, word_type: WordType
    ) -> None:
        """Begin the chain with a version. `pieces` are its bytes. A chain is never begun over another: versions in use
        would be lost."""
        assert self.state is None, "a chain that is there is extended, or removed at a start"
        self.remove()
        state = ChainState(word_type=word_type, words=words, at=version, roots={version: root})
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._write(self.directory / WEIGHTS_FILE, pieces)
            self._save(state)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def adopt(self, version: int, root: Digest, path: Path, word_type: WordType) -> None:
        """Begin the chain with a version's file, which gets another name: no byte of it is written.

        The file stays at `path` until the chain holds the version. A process that is killed may leave it at both places
        (`resume`).
        """
        assert self.state is None, "a chain that is there is extended, or removed"
        self.remove()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            words = path.stat().st_size // word_type.word_bytes
            self._files.link(path, self.directory / WEIGHTS_FILE)
            self._files.sync_names(self.directory)
            self._save(ChainState(word_type=word_type, words=words, at=version, roots={version: root}))
            self._files.unlink(path)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def stage(self, version: int, olders: Sequence[int]) -> StagedVersion:
        """Begin to write a version newer than all, with inverse patches to `olders`, the one in the file first."""
        return StagedVersion(self, self._files, version, olders)

    def commit(self) -> None:
        """Write the staged version over the file. Its inverse patches and redo records are on disk.

        What was there was checked when the version was staged, and is again when it is read: not once more here.
        """
        try:
            self._rewrite(is_checked=False)
            self._finish(self._required().arrived())
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    @property
    def is_viewed(self) -> bool:
        """Whether somebody has a `view_of` the file, which `commit` would wait for."""
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                return False
        except BlockingIOError:
            return True

    def resume(self) -> None:
        """After a start: finish what was begun, and hold every version that can be read; none if the file is damaged.

        For a chain whose versions were signed before they were staged; `settle` is for versions that are signed later.
        Reads the weights file once.
        """
        try:
            state = self.state
        except IntegrityError:
            state = None
        self.settle(None, None) if state is None else self.settle(state.newest, state.roots[state.newest])

    def settle(self, version: int | None, root: bytes | None) -> bool:
        """After a start: hold this version, the newest that was signed, and every other one that can be read.

        Reads the weights file once. False when the chain cannot hold the version, and is gone.
        """
        try:
            state = self.state
            if state is None or version is None or state.roots.get(version) != root:
                if state is not None or self.directory.exists():
                    self.remove()
                return False
            if state.target is not None:
                self._settle_target(state, version)
            state = self._required()
            if state.at > version:
                self._go_back(version)
            elif state.at < version:
                self.remove()
                return False
            self._forget_lost()
            for index in range(len(segment_spans(state.words))):
                self._held(index, version)
            self._sweep()
        except IntegrityError:
            self.remove()
            return False
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        return True

    def retain(self, oldest: int, *, besides: int | None = None) -> None:
        """Forget versions older than this, but not the version `besides`, and delete the patches that only led
        there."""
        state = self.state
        if state is None or state.target is not None:
            return
        kept = state.forgetting_before(oldest, besides=besides)
        if kept == state:
            return
        try:
            self._save(kept)
            for inverse in state.inverses - kept.inverses:
                self._files.unlink(self.directory / inverse.name)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error

    def remove(self) -> None:
        """Delete the chain; first its state, without which the other files mean nothing."""
        try:
            self._files.unlink(self.directory / STATE_FILE)
            for path in self.directory.glob("*"):
                self._files.unlink(path)
        except OSError as error:
            raise write_error(error, f"in {self.directory}") from error
        self._pieces.clear()

    @property
    def disk_bytes(self) -> int:
        """Bytes of the chain's files."""
        return sum(path.stat().st_size for path in self.directory.glob("*"))

    def staged(self, state: ChainState) -> None:
        """The files of a staged version are complete: from now on it can be committed."""
        self._save(state)

    def _settle_target(self, state: ChainState, signed: int) -> None:
        target = state.target
        assert target is not None
        if target <= signed or target < state.at:
            self._rewrite()
            self._finish(state.arrived())
        else:
            self._take_back(state)

    def _rewrite(self, *, is_checked: bool = True) -> None:
        """Write the redo records over the file and check every segment: after a crash it may be damaged."""
        state = self._required()
        target = state.target
        assert target is not None, "a version is staged"
        mapped = self._mapped(state)
        for index, (start, count) in enumerate(segment_spans(state.words)):
            segment = mapped[start : start + count]
            positions, values = changes_of(self.redo_record(state, index), count, state.word_type)
            with self._locked(fcntl.LOCK_EX):
                self._files.write_words(segment, positions, values)
            if is_checked and words_digest(segment) != self.digest_of(state, target, index):
                raise IntegrityError(f"segment {index} of the weights file is damaged")
        self._files.sync_words(mapped)

    def _take_back(self, state: ChainState) -> None:
        """Bring every segment back to the version before the target, from whatever a killed process left."""
        target, kernels = state.target, kernels_for(state.size_bytes)
        assert target is not None
        inverse = next(each for each in state.inverses if (each.newer, each.older) == (target, state.at))
        mapped = self._mapped(state)
        for index, (start, count) in enumerate(segment_spans(state.words)):
            segment = mapped[start : start + count]
            if words_digest(segment) == self.digest_of(state, state.at, index):
                continue
            self._files.write_words(segment, *changes_of(self.redo_record(state, index), count, state.word_type))
            older = self.apply(inverse, index, segment, kernels)
            changed = np.flatnonzero(older != segment)
            self._files.write_words(segment, changed, older[changed])
        self._files.sync_words(mapped)
        self._finish(state.given_up())

    def _go_back(self, version: int) -> None:
        """Rewrite the file to an older version."""
        state = self._required()
        state_then = state.towards(version)

        def records() -> Iterator[bytes]:
            for index in range(len(segment_spans(state.words))):
                known: dict[int, Words] = {}
                older = self.words(index, version, known)
                yield redo_record(np.flatnonzero(known[state.at] != older), older, state.word_type)

        self._write(self.directory / REDO_FILE, framed(records()))
        self._save(state_then)
        self._rewrite()
        self._finish(state_then.arrived())

    def _finish(self, state: ChainState) -> None:
        """The file holds one version again."""
        before = self._required()
        with self._locked(fcntl.LOCK_EX):
            self._save(state)
        self._files.unlink(self.directory / REDO_FILE)
        for inverse in before.inverses - state.inverses:
            self._files.unlink(self.directory / inverse.name)

    def _forget_lost(self) -> None:
        """Forget the versions that only patches led to whose files are gone or cut short."""
        state = self._required()
        sizes = {path.name: path.stat().st_size for path in self.directory.iterdir()}
        there = frozenset(each for each in state.inverses if sizes.get(each.name) == each.size_bytes)
        if there != state.inverses:
            self._save(state.with_inverses(there))

    def _sweep(self) -> None:
        """Delete files of a version that was never staged completely."""
        state = self._required()
        named = {STATE_FILE, WEIGHTS_FILE, *(inverse.name for inverse in state.inverses)}
        for path in self.directory.iterdir():
            if path.name not in named:
                self._files.unlink(path)

    def _mapped(self, state: ChainState) -> Words:
        return np.memmap(self.directory / WEIGHTS_FILE, dtype=state.word_type.dtype, mode="r+", shape=(state.words,))

    def _save(self, state: ChainState) -> None:
        self._write(self.directory / STATE_FILE, [write_state(state)])

    def _write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file that appears complete or not at all."""
        new = path.with_name(path.name + ".new")
        with self._files.create(new) as file:
            for piece in pieces:
                self._files.append(file, piece)
            self._files.finish(file)
        self._files.rename(new, path)
        self._files.sync_names(path.parent)


class StagedVersion:
    """A version being written beside the weights file, segment after segment."""

    def __init__(self, store: WeightStore, files: StoreFiles, version: int, olders: Sequence[int]) -> None:
        state = store.state
        assert state is not None, "a chain is begun with `create`"
        assert olders[0] == state.at, "the first inverse leads to the version in the file"
        self._store, self._files, self._state = store, files, state
        self._version, self._olders = version, olders
        self._redo: BinaryIO = files.create(store.directory / (REDO_FILE + ".new"))
        self._inverses: list[BinaryIO] = []
        self._sizes = [PREAMBLE.size] * len(olders)
        for name in self._names():
            file = files.create(store.directory / (name + ".new"))
            files.append(file, PREAMBLE.pack(MAGIC, state.word_type.code, state.words))
            self._inverses.append(file)

    def add(self, redo: bytes, inverses: Sequence[bytes]) -> None:
        """Add the next segment: its redo record, and its piece of each inverse patch."""
        for part in framed([redo]):
            self._files.append(self._redo, part)
        for number, (file, piece) in enumerate(zip(self._inverses, inverses, strict=True)):
            self._files.append(file, piece)
            self._sizes[number] += len(piece)

    def seal(self) -> None:
        """All segments are there: their bytes survive a power cut from now on."""
        for file in (self._redo, *self._inverses):
            if not file.closed:
                self._files.finish(file)

    def close(self) -> None:
        """Give up what was not sealed. The next start deletes it, and so does the next version of this number."""
        for file in (self._redo, *self._inverses):
            file.close()

    def discard(self) -> None:
        """Give up the version, unless it is complete, and free its room."""
        self.close()
        for name in (REDO_FILE, *self._names()):
            self._files.unlink(self._store.directory / (name + ".new"))

    def complete(self, root: Digest) -> None:
        """Make the version ready to be committed. `root` names the version's weights; `WeightStore.commit` may
        follow."""
        self.seal()
        for name in (REDO_FILE, *self._names()):
            path = self._store.directory / name
            self._files.rename(path.with_name(name + ".new"), path)
        self._files.sync_names(self._store.directory)
        made = frozenset(
            Inverse(self._version, older, size) for older, size in zip(self._olders, self._sizes, strict=True)
        )
        self._store.staged(self._state.with_target(self._version, root, made))

    def _names(self) -> list[str]:
        return [Inverse(self._version, older, 0).name for older in self._olders]
