"""The weight file: versions move in place, nothing wrong is ever committed, and any crash is mended on opening."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from p2prl.errors import IntegrityError, LocalProtocolError, MachineError, RemoteProtocolError
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.segments import SegmentHeader, encode_segment
from p2prl.patches.stream import encode_patch
from p2prl.patches.words import BF16, FP32, Words, WordType
from p2prl.protocol.digests import Digest
from p2prl.weights.disk import DiskFiles
from p2prl.weights.following import apply_patch_stream
from p2prl.weights.records import Version
from p2prl.weights.weight_file import WeightFile
from tests.unit.weights.crashing_files import Crashed, CrashingFiles

SEGMENT_WORDS = 40
WORDS = 2 * SEGMENT_WORDS + 7


def versions_of(word_type: WordType, count: int = 4) -> list[Words]:
    """Words of versions 0, 1, …: a few change, then all, then those of one segment only."""
    rng = np.random.default_rng(5)
    words = [rng.integers(0, 1 << word_type.bits, WORDS).astype(word_type.dtype)]
    for number in range(1, count):
        new = words[-1].copy()
        where = [rng.integers(0, WORDS, 9), np.arange(WORDS), np.arange(50, 60)][(number - 1) % 3]
        new[where] += word_type.dtype.type(number)
        words.append(new)
    return words


VERSIONS = versions_of(BF16)


def named(number: int, versions: list[Words] = VERSIONS) -> Version:
    return Version(number=number, state=Digest(blake3(versions[number].tobytes()).digest()))


def patch(old: Words, new: Words, word_type: WordType = BF16) -> list[tuple[SegmentHeader, bytes]]:
    starts = range(0, len(old), SEGMENT_WORDS)
    ends = [min(start + SEGMENT_WORDS, len(old)) for start in starts]
    return [
        encode_segment(old[a:b], new[a:b], word_type, NUMPY_KERNELS) for a, b in zip(starts, ends, strict=True)
    ]  # fmt: skip


PATCHES = [patch(a, b) for a, b in itertools.pairwise(VERSIONS)]


def opened(files: CrashingFiles | DiskFiles, word_type: WordType = BF16) -> WeightFile:
    return WeightFile(files, words=WORDS, word_type=word_type, kernels=NUMPY_KERNELS, segment_words=SEGMENT_WORDS)


def words_in(weights: WeightFile, word_type: WordType = BF16) -> Words:
    return np.frombuffer(weights.view(), dtype=word_type.dtype).copy()


def whole_file(folder: Path, words: Words) -> Path:
    path = folder / "whole"
    path.write_bytes(words.tobytes())
    return path


def move_on(weights: WeightFile, to: int) -> None:
    """From the version before, or from half-way."""
    done = weights.begin(named(to))
    for index, (header, body) in enumerate(PATCHES[to - 1]):
        if index not in done:
            weights.prepare(index, header, body)
    weights.commit()


@pytest.fixture
def at_zero(tmp_path: Path) -> WeightFile:
    weights = opened(DiskFiles(tmp_path / "weights"))
    weights.adopt(whole_file(tmp_path, VERSIONS[0]), named(0))
    return weights


# --- moving ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word_type", [BF16, FP32], ids=["bf16", "fp32"])
def test_versions_move_in_place_and_back(tmp_path: Path, word_type: WordType) -> None:
    versions = versions_of(word_type)
    weights = opened(DiskFiles(tmp_path / "weights"), word_type)
    weights.adopt(whole_file(tmp_path, versions[0]), named(0, versions))
    assert not (tmp_path / "whole").exists()
    inode = weights.path.stat().st_ino
    for number in range(1, len(versions)):
        before = words_in(weights, word_type)
        weights.begin(named(number, versions))
        for index, (header, body) in enumerate(patch(versions[number - 1], versions[number], word_type)):
            weights.prepare(index, header, body)
            assert np.array_equal(words_in(weights, word_type), before)  # preparing touches nothing
        assert weights.commit() == weights.held == named(number, versions)
        assert np.array_equal(words_in(weights, word_type), versions[number])
    assert weights.path.stat().st_ino == inode
    assert weights.path.read_bytes() == versions[-1].tobytes()
    assert weights.undo() == weights.held == named(len(versions) - 2, versions)
    assert np.array_equal(words_in(weights, word_type), versions[-2])
    with pytest.raises(LocalProtocolError):
        weights.undo()
    again = opened(DiskFiles(tmp_path / "weights"), word_type)
    assert again.held == named(len(versions) - 2, versions)


def test_a_whole_file_replaces_another(at_zero: WeightFile, tmp_path: Path) -> None:
    at_zero.begin(named(1))
    first = at_zero.path
    at_zero.adopt(whole_file(tmp_path, VERSIONS[3]), named(3))
    assert at_zero.held == named(3)
    assert at_zero.pending is None
    assert not first.exists()
    assert np.array_equal(words_in(at_zero), VERSIONS[3])


def test_a_file_of_other_words_is_not_adopted(at_zero: WeightFile, tmp_path: Path) -> None:
    for words in (VERSIONS[2], VERSIONS[3][:-1]):
        path = whole_file(tmp_path, words)
        with pytest.raises(IntegrityError):
            at_zero.adopt(path, named(3))
        assert path.exists()
        assert at_zero.held == named(0)


def test_segments_come_in_any_order_and_survive_a_restart(at_zero: WeightFile, tmp_path: Path) -> None:
    assert at_zero.begin(named(1)) == frozenset()
    for index in (2, 0):
        at_zero.prepare(index, *PATCHES[0][index])
    with pytest.raises(LocalProtocolError):
        at_zero.commit()
    again = opened(DiskFiles(tmp_path / "weights"))
    assert again.pending == named(1)
    assert again.begin(named(1)) == {0, 2}
    again.prepare(0, *PATCHES[0][0])
    again.prepare(1, *PATCHES[0][1])
    assert again.commit() == named(1)
    assert again.begin(named(3)) == frozenset()


def test_a_segment_that_is_wrong_changes_nothing(at_zero: WeightFile) -> None:
    at_zero.begin(named(1))
    header, body = PATCHES[0][0]
    with pytest.raises(IntegrityError):
        at_zero.prepare(1, header, body)
    with pytest.raises(IntegrityError):
        at_zero.prepare(0, replace(header, post=header.pre), body)
    with pytest.raises(RemoteProtocolError):
        at_zero.prepare(0, header, body + b"\0")
    assert at_zero.prepared == frozenset()
    assert np.array_equal(words_in(at_zero), VERSIONS[0])
    move_on(at_zero, 1)
    assert np.array_equal(words_in(at_zero), VERSIONS[1])


def test_sound_segments_of_another_version_are_not_committed(at_zero: WeightFile) -> None:
    """Each segment keeps its own promise, and together they are not the state the manifest names."""
    at_zero.begin(named(2))
    for index, segment in enumerate(PATCHES[0]):
        at_zero.prepare(index, *segment)
    with pytest.raises(IntegrityError, match="version 2"):
        at_zero.commit()
    assert at_zero.held == named(0)
    assert at_zero.pending is None
    assert np.array_equal(words_in(at_zero), VERSIONS[0])


def test_a_segment_prepared_again_otherwise_takes_the_place_of_the_first(at_zero: WeightFile) -> None:
    at_zero.begin(named(1))
    at_zero.prepare(0, *encode_segment(VERSIONS[0][:40], VERSIONS[2][:40], BF16, NUMPY_KERNELS))
    for index, segment in enumerate(PATCHES[0]):
        at_zero.prepare(index, *segment)
    assert at_zero.commit() == named(1)
    assert np.array_equal(words_in(at_zero), VERSIONS[1])


def test_calls_out_of_turn_are_our_own_fault(tmp_path: Path) -> None:
    weights = opened(DiskFiles(tmp_path))
    for call in (weights.view, weights.commit, weights.undo, lambda: weights.begin(named(1))):
        with pytest.raises(LocalProtocolError):
            call()
    with pytest.raises(LocalProtocolError):
        weights.prepare(0, *PATCHES[0][0])


def test_a_stream_is_prepared_as_it_arrives(tmp_path: Path) -> None:
    old, new = VERSIONS[0], VERSIONS[1]
    stream = b"".join(encode_patch([(old, new)], words=WORDS, word_type=BF16, kernels=NUMPY_KERNELS))
    weights = WeightFile(DiskFiles(tmp_path / "weights"), words=WORDS, word_type=BF16, kernels=NUMPY_KERNELS)
    weights.adopt(whole_file(tmp_path, old), named(0))
    with pytest.raises(RemoteProtocolError, match="too early"):
        apply_patch_stream(weights, named(1), [stream[:-1]])
    assert weights.held == named(0)
    assert apply_patch_stream(weights, named(1), (stream[i : i + 11] for i in range(0, len(stream), 11))) == named(1)
    assert np.array_equal(words_in(weights), new)


def test_a_full_disk_is_one_sentence(at_zero: WeightFile, monkeypatch: pytest.MonkeyPatch) -> None:
    at_zero.begin(named(1))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.write", full)
        with pytest.raises(MachineError, match="no space left"):
            at_zero.prepare(0, *PATCHES[0][0])
    move_on(at_zero, 1)
    assert np.array_equal(words_in(at_zero), VERSIONS[1])


# --- damage ----------------------------------------------------------------------------------------------------


def test_damage_is_told_and_repaired_segment_by_segment(at_zero: WeightFile, tmp_path: Path) -> None:
    with at_zero.path.open("r+b") as file:
        file.seek(2 * (SEGMENT_WORDS + 3))
        file.write(b"\xff\xff\xff")
    weights = opened(DiskFiles(tmp_path / "weights"))
    assert weights.held is None
    assert list(weights.damaged) == [1]
    with pytest.raises(IntegrityError):
        weights.repair(1, VERSIONS[1][SEGMENT_WORDS : 2 * SEGMENT_WORDS])
    with pytest.raises(LocalProtocolError):
        weights.repair(0, VERSIONS[0][:SEGMENT_WORDS])
    weights.repair(1, VERSIONS[0][SEGMENT_WORDS : 2 * SEGMENT_WORDS])
    assert weights.damaged == ()
    assert np.array_equal(words_in(weights), VERSIONS[0])


def test_a_repair_is_safe_once_it_returns(tmp_path: Path) -> None:
    files = CrashingFiles()
    opened(files).adopt(whole_file(tmp_path, VERSIONS[0]), named(0))
    files.spoil("words-0", 2)
    files.sync("words-0")
    weights = opened(files)
    weights.repair(0, VERSIONS[0][:SEGMENT_WORDS])
    for seed in range(10):
        assert opened(files.after_power_cut(np.random.default_rng(seed))).held == named(0)


def test_what_was_prepared_mends_a_damaged_segment(at_zero: WeightFile, tmp_path: Path) -> None:
    at_zero.begin(named(2))
    changed = VERSIONS[0][:SEGMENT_WORDS].copy()
    changed[7] += 1
    at_zero.prepare(0, *encode_segment(VERSIONS[0][:SEGMENT_WORDS], changed, BF16, NUMPY_KERNELS))
    with at_zero.path.open("r+b") as file:
        file.seek(2 * 7)
        file.write(b"\xff\xff")
    weights = opened(DiskFiles(tmp_path / "weights"))
    assert weights.held == named(0)
    assert np.array_equal(words_in(weights), VERSIONS[0])


@pytest.mark.parametrize("claim", [b"", b"{}", b'{"file":"words-0","number":0,"state":"00","segments":[]}', b"\xff"])
def test_words_that_nothing_vouches_for_are_not_held(at_zero: WeightFile, tmp_path: Path, claim: bytes) -> None:
    (tmp_path / "weights" / "state.json").write_bytes(claim)
    assert opened(DiskFiles(tmp_path / "weights")).held is None


def test_words_of_another_length_are_not_held(at_zero: WeightFile, tmp_path: Path) -> None:
    with at_zero.path.open("ab") as file:
        file.write(b"\0\0")
    assert opened(DiskFiles(tmp_path / "weights")).held is None


def test_any_flipped_byte_of_the_log_is_noticed(tmp_path: Path) -> None:
    """Whatever a disk does to the log of a prepared version, the words are one version's or the other's."""
    files = CrashingFiles()
    weights = opened(files)
    weights.adopt(whole_file(tmp_path, VERSIONS[0]), named(0))
    weights.begin(named(1))
    for index, segment in enumerate(PATCHES[0]):
        weights.prepare(index, *segment)
    size = len(files.mapped("move.log"))
    for offset in range(0, size, 3):
        spoilt = files.after_kill()
        spoilt.spoil("move.log", offset)
        found = opened(spoilt)
        assert found.held == named(0)
        assert len(found.begin(named(1))) < 3
        move_on(found, 1)
        assert np.array_equal(words_in(found), VERSIONS[1])


# --- crashes ---------------------------------------------------------------------------------------------------


class Process:
    """What a volunteer does with its weight file, and what it has been told is safe."""

    def __init__(self, whole: Path) -> None:
        self.whole = whole
        self.safe = -1
        """Newest version whose commit has returned."""
        self.prepared: frozenset[int] = frozenset()

    def run(self, files: CrashingFiles) -> WeightFile:
        weights = opened(files)
        if weights.held is None:
            self.whole.write_bytes(VERSIONS[0].tobytes())
            weights.adopt(self.whole, named(0))
        assert weights.held is not None
        for number in range(weights.held.number + 1, len(VERSIONS)):
            self.safe = number - 1
            done = weights.begin(named(number))
            for index, segment in enumerate(PATCHES[number - 1]):
                if index not in done:
                    weights.prepare(index, *segment)
                self.prepared = weights.prepared
            weights.commit()
            self.prepared = frozenset()
        self.safe = len(VERSIONS) - 1
        return weights


def crashes(whole: Path) -> Iterator[tuple[CrashingFiles, Process]]:
    """The same life ended at its first call, its second, and so on until it ends by itself."""
    at = 0
    while True:
        files, process = CrashingFiles(at), Process(whole)
        try:
            process.run(files)
        except Crashed:
            yield files, process
        else:
            assert at > 40
            return
        at += 1


def check(files: CrashingFiles, process: Process) -> None:
    """What is found is a version, none older than promised, and the newest is reached from there."""
    weights = opened(files)
    held = weights.held
    assert weights.damaged == ()
    assert (held.number if held else -1) >= process.safe
    if held is not None:
        assert held == named(held.number)
        assert np.array_equal(words_in(weights), VERSIONS[held.number])
    last = Process(process.whole).run(files)
    assert np.array_equal(words_in(last), VERSIONS[-1])


def test_a_kill_at_any_call_leaves_a_version_and_what_was_prepared(tmp_path: Path) -> None:
    for files, process in crashes(tmp_path / "whole"):
        weights = opened(files.after_kill())
        if weights.held is not None and weights.held.number == process.safe:
            assert weights.prepared >= process.prepared
        check(files.after_kill(), process)


def test_a_power_cut_at_any_call_leaves_a_version(tmp_path: Path) -> None:
    for at, (files, process) in enumerate(crashes(tmp_path / "whole")):
        for seed in range(10):
            check(files.after_power_cut(np.random.default_rng([at, seed])), process)


def test_a_second_crash_while_the_first_is_mended(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for at, (files, process) in enumerate(crashes(whole)):
        for second in range(12):
            rng = np.random.default_rng([at, second])
            found = files.after_power_cut(rng, second)
            try:
                opened(found)
            except Crashed:
                check(found.after_power_cut(rng), process)
                check(found.after_kill(), process)
            else:
                break


def test_a_crash_at_any_call_of_an_undo(tmp_path: Path) -> None:
    for at in range(20):
        files = CrashingFiles()
        Process(tmp_path / "whole").run(files)
        weights = opened(files)
        files.crash_at = files.calls + at
        try:
            weights.undo()
        except Crashed:
            for seed in range(20):
                found = opened(files.after_power_cut(np.random.default_rng([at, seed])))
                assert found.held in (named(2), named(3))
                assert np.array_equal(words_in(found), VERSIONS[found.held.number])
        else:
            assert at > 5
            return
    pytest.fail("an undo is over before")


def test_a_crash_at_any_call_of_an_adoption(tmp_path: Path) -> None:
    """A file that has been moved in is not fetched again: only a power cut before it was safe may lose it."""
    for at in range(30):
        files = CrashingFiles()
        weights = opened(files)
        weights.adopt(whole_file(tmp_path, VERSIONS[0]), named(0))
        path = whole_file(tmp_path, VERSIONS[3])
        files.crash_at = files.calls + at
        try:
            weights.adopt(path, named(3))
        except Crashed:
            killed = opened(files.after_kill())
            assert killed.held in (named(0), named(3))
            if "words-1" in files.names():
                assert killed.held == named(3)
            for seed in range(20):
                rng = np.random.default_rng([at, seed])
                mended = files.after_kill(crash_at=seed % 5)
                with contextlib.suppress(Crashed):
                    opened(mended)
                mended.crash_at = None
                for found in (opened(files.after_power_cut(rng)), opened(mended.after_power_cut(rng))):
                    assert found.held in (named(0), named(3))
                    assert np.array_equal(words_in(found), VERSIONS[found.held.number])
        else:
            assert at > 6
            return
    pytest.fail("an adoption is over before")
