"""Weight store against a plain dict of versions: any history, any process killed at any write, any damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from p2prl.errors import IntegrityError, StaleWorkError
from p2prl.net.storage.chain_reader import ChainReader
from p2prl.net.storage.redo_encoding import changes_of, redo_record
from p2prl.net.storage.store_files import UnsyncedFiles
from p2prl.net.storage.weight_store import WeightStore
from p2prl.patches import stream_format
from p2prl.patches.words import BF16, FP32, Words, WordType
from tests.unit.net.store_rig import WORDS, KilledError, KilledFiles, begin, root_of, stage, successor


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three segments, the last one short."""
    monkeypatch.setattr(stream_format, "SEGMENT_WORDS", 20)


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
    store = WeightStore(tmp_path / "chain", UnsyncedFiles())
    versions = {0: successor(rng, np.zeros(WORDS, word_type.dtype), word_type)}
    begin(store, versions[0], word_type)
    for version in range(1, 35):
        versions[version] = successor(rng, versions[version - 1], word_type)
        stage(store, version, versions[version])
        store.commit()
        store.retain(version - 21)
        versions = {each: words for each, words in versions.items() if each >= version - 21}
        if version % 13 == 0:
            store = WeightStore(tmp_path / "chain", UnsyncedFiles())
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
    store = WeightStore(tmp_path / "before", UnsyncedFiles())
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
        survivor = WeightStore(folder, UnsyncedFiles())
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
    store = WeightStore(tmp_path / "before", UnsyncedFiles())
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
        survivor = WeightStore(copy, UnsyncedFiles())
        assert survivor.settle(3, root_of(versions[3]))
        check(survivor, {version: versions[version] for version in range(4)})
    assert writes > 10
    assert (copy / "weights").read_bytes() == versions[3].tobytes()


def test_a_chain_of_another_run_is_removed(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "chain", UnsyncedFiles())
    begin(store, np.zeros(WORDS, BF16.dtype))
    assert not store.settle(0, bytes(32))
    assert store.state is None
    assert list((tmp_path / "chain").iterdir()) == []
    begin(store, np.zeros(WORDS, BF16.dtype))
    assert not store.settle(None, None)
    assert store.state is None


def test_damage_is_never_read_as_weights(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    store = WeightStore(tmp_path, UnsyncedFiles())
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


@pytest.mark.parametrize("word_type", [BF16, FP32])
def test_redo_records_repair_any_mix_of_old_and_new(word_type: WordType) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        old = rng.integers(0, 1 << word_type.bits, 300, dtype=np.uint64).astype(word_type.dtype)
        new = successor(rng, old, word_type)
        mixed = np.where(rng.random(300) < 0.5, old, new)
        record = redo_record(np.flatnonzero(old != new), new, word_type)
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
