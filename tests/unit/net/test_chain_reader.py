"""Readers of a weight chain, while a writer is anywhere between its writes: explicit interleavings, no threads."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from p2prl.errors import StaleWorkError
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.chain_state import Inverse
from p2prl.net.storage.store_files import UnsyncedFiles
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches import stream_format
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import BF16
from tests.unit.net.store_rig import WORDS, begin, root_of, stage, successor


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments, the last one short."""
    monkeypatch.setattr(stream_format, "SEGMENT_WORDS", 20)


class WatchedFiles(UnsyncedFiles):
    """Lets somebody look before every write that no lock guards."""

    look: Callable[[], None]
    locked = False

    def _look(self) -> None:
        if not self.locked:
            self.look()

    def create(self, path: Path) -> BinaryIO:
        self._look()
        return super().create(path)

    def append(self, file: BinaryIO, data: bytes | memoryview) -> None:
        self._look()
        super().append(file, data)

    def rename(self, path: Path, name: Path) -> None:
        self._look()
        super().rename(path, name)

    def unlink(self, path: Path) -> None:
        self._look()
        super().unlink(path)


class WatchedStore(WeightStore):
    """Lets somebody look before the lock is taken: before each segment that is rewritten."""

    _files: WatchedFiles

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        self._files.look()
        with super()._locked(kind) as file:
            self._files.locked = True
            yield file
            self._files.locked = False


def test_a_reader_sees_every_version_between_any_two_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    versions = {0: successor(rng, np.zeros(WORDS, BF16.dtype), BF16)}
    reader, seen, oldest = ChainReader(tmp_path), Counter[int](), 0

    def look() -> None:
        state = reader.state
        assert state is not None
        held = {*range(oldest, state.at + 1), state.target or 0}
        assert held <= set(state.roots)
        for version in held:
            assert reader.holds(version, root_of(versions[version]))
            index = sum(seen.values()) % 3
            start, count = segment_spans(WORDS)[index]
            assert np.array_equal(reader.words(index, version), versions[version][start : start + count])
            seen[-1 if version == state.target else state.at] += 1

    begin(WeightStore(tmp_path, UnsyncedFiles()), versions[0])
    files = WatchedFiles()
    files.look = look
    store = WatchedStore(tmp_path, files)
    for version in range(1, 6):
        versions[version] = np.where(rng.random(WORDS) < 0.3, versions[version - 1] ^ 1, versions[version - 1])
        stage(store, version, versions[version])
        store.commit()
        oldest = max(0, version - 3)
        store.retain(oldest, besides=0)
    assert set(seen) == {-1, 0, 1, 2, 3, 4, 5}, "the version that is written too"


class OvertakenReader(ChainReader):
    """Lets the writer go on before one of its files is opened."""

    left = 0
    overtake: Callable[[], None]

    @contextlib.contextmanager
    def _opened(self, inverse: Inverse) -> Iterator[int]:
        self.left -= 1
        if self.left == -1:
            self.overtake()
        with super()._opened(inverse) as file:
            yield file


@pytest.mark.parametrize("wanted", [0, 12, 15, 16])
def test_a_reader_goes_on_when_patches_are_deleted_under_its_hands(tmp_path: Path, wanted: int) -> None:
    """With version 16 comes a shorter way to 0; those over 15 to 12 and from there on are not needed any more."""
    rng = np.random.default_rng(9)
    versions = {0: successor(rng, np.zeros(WORDS, BF16.dtype), BF16)}
    store = WeightStore(tmp_path / "before", UnsyncedFiles())
    begin(store, versions[0])
    for version in range(1, 17):
        versions[version] = np.where(rng.random(WORDS) < 0.1, versions[version - 1] ^ 1, versions[version - 1])
        stage(store, version, versions[version])
        store.commit()
    overtaken = 0
    for oldest in (13, 15):
        for opened in range(20):
            folder = tmp_path / f"{oldest}-{opened}"
            shutil.copytree(tmp_path / "before", folder)
            reader = OvertakenReader(folder)
            reader.left = opened
            reader.overtake = partial(WeightStore(folder, UnsyncedFiles()).retain, oldest, besides=0)
            try:
                assert np.array_equal(reader.words(1, wanted), versions[wanted][20:40])
            except StaleWorkError:
                assert 0 < wanted < oldest
            if reader.left >= 0:
                break
            overtaken += 1
    assert overtaken >= 2
