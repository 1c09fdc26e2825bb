"""Weight store against a plain dict of versions: any history, any process killed at any write, any damage."""

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

from p2prl.errors import IntegrityError, StaleWorkError
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.chain_state import Inverse
from p2prl.net.storage.redo_records import changes_of, redo_record
from p2prl.net.storage.store_files import StoreFiles
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches import stream_format
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import segment_spans
from p2prl.patches.words import BF16, FP32, Words, WordType
from p2prl.protocol.digests import Digest, chunk_digest

WORDS = 45
SPANS = (1, 4, 16)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments, the last one short."""
    monkeypatch.setattr(stream_format, "SEGMENT_WORDS", 20)


class FastFiles(StoreFiles):
    """Files that outlive their process, not a power cut: nothing here cuts the power."""

    def finish(self, file: BinaryIO) -> None:
        file.close()

    def sync_names(self, directory: Path) -> None:
        pass

    def sync_words(self, words: Words) -> None:
        pass


class KilledError(Exception):
    """The process ends here."""


class KilledFiles(FastFiles):
    """Ends the process at one of its writes, of which it may do a part."""

    def __init__(self, at: int, *, half: bool) -> None:
        self.left, self.half, self.dead = at, half, False
        self.open: list[BinaryIO] = []

    def _next(self) -> bool:
        """Whether this write is the last."""
        assert not self.dead, "a dead process writes nothing"
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
        staged.add(redo_record(known[version - 1], new, state.word_type), pieces)
    staged.complete(root_of(words))


def begin(store: WeightStore, words: Words, word_type: WordType = BF16) -> None:
    store.create(0, root_of(words), [words.tobytes()], words=len(words), word_type=word_type)


def check(store: ChainReader, versions: dict[int, Words]) -> None:
    """Every version reads as in the dict, by segments, as a copy, and in parts."""
    for version, words in versions.items():
        assert store.holds(version, root_of(words)), version
        assert bytes(store.copy_of(version)) == words.tobytes(), version
        data, step = words.tobytes(), 53
        parts = [store.read(version, at, min(step, len(data) - at)) for at in range(0, len(data), step)]
        assert b"".join(parts) == data


@pytest.mark.parametrize("word_type", [BF16, FP32])
def test_every_version_of_the_window_is_exact(tmp_path: Path, word_type: WordType) -> None:
    rng = np.random.default_rng(1)
    store = WeightStore(tmp_path / "chain", FastFiles())
    versions = {0: successor(rng, np.zeros(WORDS, word_type.dtype), word_type)}
    begin(store, versions[0], word_type)
    for version in range(1, 35):
        versions[version] = successor(rng, versions[version - 1], word_type)
        stage(store, version, versions[version])
        store.commit()
        store.retain(version - 21)
        versions = {each: words for each, words in versions.items() if each >= version - 21}
        if version % 13 == 0:
            store = WeightStore(tmp_path / "chain", FastFiles())
            assert store.settle(version, root_of(versions[version]))
        state = store.state
        assert state is not None
        assert set(state.roots) == set(versions)
        files = {path.name for path in (tmp_path / "chain").iterdir()}
        assert files == {"weights", "chain.json", *(inverse.name for inverse in state.inverses)}
    check(store, versions)
    check(ChainReader(tmp_path / "chain"), versions)
    assert (tmp_path / "chain" / "weights").read_bytes() == versions[34].tobytes()


def settle_until_killed(folder: Path, at: int, version: int, words: Words, *, half: bool) -> bool:
    """A process that recovers and is killed at a write; whether it was."""
    files = KilledFiles(at, half=half)
    try:
        WeightStore(folder, files).settle(version, root_of(words))
    except KilledError:
        files.bury()
    return files.dead


@pytest.mark.parametrize(("seed", "half"), [(0, False), (1, True)])
def test_killed_at_any_write(tmp_path: Path, seed: int, half: bool) -> None:
    """Killed at write n for every n, and again while it recovers; whether the version was signed or not."""
    rng = np.random.default_rng(seed)
    versions = {0: successor(rng, np.zeros(WORDS, BF16.dtype), BF16)}
    for version in range(1, 5):
        versions[version] = successor(rng, versions[version - 1], BF16)
    store = WeightStore(tmp_path / "before", FastFiles())
    begin(store, versions[0])
    for version in range(1, 4):
        stage(store, version, versions[version])
        store.commit()
    killed_at, finished = 0, False
    while not finished:
        folder = tmp_path / str(killed_at)
        shutil.copytree(tmp_path / "before", folder)
        files, signed = KilledFiles(killed_at, half=half), 3
        dying = WeightStore(folder, files)
        try:
            stage(dying, 4, versions[4])
            signed = int(rng.integers(3, 5))
            dying.commit()
            signed = 4
            dying.retain(2)
            finished = True
        except KilledError:
            files.bury()
        for _ in range(int(rng.integers(0, 3))):  # and killed while it recovers
            settle_until_killed(folder, int(rng.integers(0, 14)), signed, versions[signed], half=half)
        survivor = WeightStore(folder, FastFiles())
        assert survivor.settle(signed, root_of(versions[signed])), killed_at
        state = survivor.state
        assert state is not None
        assert state.at == signed
        assert state.target is None
        assert set(state.roots) - set(range(signed + 1)) == set()
        assert set(state.roots) >= {2, 3}
        check(survivor, {version: versions[version] for version in state.roots})
        named = {"weights", "chain.json", *(inverse.name for inverse in state.inverses)}
        assert {path.name for path in folder.iterdir()} == named
        killed_at += 1
    assert killed_at > 20, "otherwise nothing was killed"


def test_a_journal_restored_from_a_copy_takes_the_file_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    versions = {0: successor(rng, np.zeros(WORDS, BF16.dtype), BF16)}
    store = WeightStore(tmp_path / "before", FastFiles())
    begin(store, versions[0])
    for version in range(1, 7):
        versions[version] = successor(rng, versions[version - 1], BF16)
        stage(store, version, versions[version])
        store.commit()
    writes = 0
    while True:
        copy = tmp_path / f"copy-{writes}"
        shutil.copytree(tmp_path / "before", copy)
        if not settle_until_killed(copy, writes, 3, versions[3], half=True):
            break
        writes += 1
        survivor = WeightStore(copy, FastFiles())
        assert survivor.settle(3, root_of(versions[3]))
        check(survivor, {version: versions[version] for version in range(4)})
    assert writes > 10
    assert (copy / "weights").read_bytes() == versions[3].tobytes()


def test_a_chain_of_another_run_is_removed(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "chain", FastFiles())
    begin(store, np.zeros(WORDS, BF16.dtype))
    assert not store.settle(0, bytes(32))
    assert store.state is None
    assert list((tmp_path / "chain").iterdir()) == []
    begin(store, np.zeros(WORDS, BF16.dtype))
    assert not store.settle(None, None)
    assert store.state is None


def test_damage_is_never_read_as_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    store = WeightStore(tmp_path, FastFiles())
    words = successor(rng, np.zeros(WORDS, BF16.dtype), BF16)
    newer = words.copy()
    newer[::7] ^= 3
    begin(store, words)
    stage(store, 1, newer)
    store.commit()
    data = bytearray(newer.tobytes())
    data[50] ^= 1
    (tmp_path / "weights").write_bytes(data)
    with pytest.raises(IntegrityError, match="segment 1"):
        store.words(1, 1)
    assert np.array_equal(store.words(0, 0), words[:20])
    (tmp_path / "weights").write_bytes(newer.tobytes()[:-1])
    with pytest.raises(IntegrityError, match="too short"):
        store.words(2, 1)
    (tmp_path / "weights").write_bytes(newer.tobytes())
    with pytest.raises(StaleWorkError, match="version -1 has left"):
        store.words(0, -1)
    with pytest.raises(StaleWorkError, match="version -1 has left"):
        store.read(-1, 0, 10)
    state = store.state
    assert state is not None
    (inverse,) = state.inverses
    patch = (tmp_path / inverse.name).read_bytes()
    (tmp_path / inverse.name).write_bytes(patch[:-1])
    with pytest.raises(IntegrityError, match="damaged"):
        ChainReader(tmp_path).words(2, 0)
    (tmp_path / inverse.name).unlink()
    with pytest.raises(IntegrityError, match="gone"):
        ChainReader(tmp_path).words(2, 0)


class WatchedFiles(FastFiles):
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
        held = set(range(oldest, state.at + 1))
        assert held <= set(state.roots)
        for version in held:
            if reader.holds(version, root_of(versions[version])):
                index = sum(seen.values()) % 3
                start, count = segment_spans(WORDS)[index]
                assert np.array_equal(reader.words(index, version), versions[version][start : start + count])
                seen[state.at if state.target is None else -1] += 1

    begin(WeightStore(tmp_path, FastFiles()), versions[0])
    files = WatchedFiles()
    files.look = look
    store = WatchedStore(tmp_path, files)
    for version in range(1, 6):
        versions[version] = np.where(rng.random(WORDS) < 0.3, versions[version - 1] ^ 1, versions[version - 1])
        stage(store, version, versions[version])
        store.commit()
        oldest = max(0, version - 3)
        store.retain(oldest, besides=0)
    assert set(seen) == {-1, 0, 1, 2, 3, 4, 5}, "while versions are written, and between them"


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
    store = WeightStore(tmp_path / "before", FastFiles())
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
            reader.overtake = partial(WeightStore(folder, FastFiles()).retain, oldest, besides=0)
            try:
                assert np.array_equal(reader.words(1, wanted), versions[wanted][20:40])
            except StaleWorkError:
                assert 0 < wanted < oldest
            if reader.left >= 0:
                break
            overtaken += 1
    assert overtaken >= 2


@pytest.mark.parametrize("word_type", [BF16, FP32])
def test_redo_records_repair_any_mix_of_old_and_new(word_type: WordType) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        old = rng.integers(0, 1 << word_type.bits, 300, dtype=np.uint64).astype(word_type.dtype)
        new = successor(rng, old, word_type)
        mixed = np.where(rng.random(300) < 0.5, old, new)
        record = redo_record(old, new, word_type)
        positions, values = changes_of(record, 300, word_type)
        mixed[positions] = values
        assert np.array_equal(mixed, new)
        assert len(record) <= new.nbytes + 5


@pytest.mark.parametrize(
    "record", [b"", b"\x00" * 4, b"\x02" + bytes(4), b"\x00\x01\x00\x00\x00" + bytes(5), b"\x01\x09\x00\x00\x00"]
)
def test_damaged_redo_records_are_refused(record: bytes) -> None:
    with pytest.raises(IntegrityError):
        changes_of(record, 8, BF16)
    beyond = b"\x00\x01\x00\x00\x00" + (8).to_bytes(4, "little") + bytes(2)
    with pytest.raises(IntegrityError, match="beyond"):
        changes_of(beyond, 8, BF16)
