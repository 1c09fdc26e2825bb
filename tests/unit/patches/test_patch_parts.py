"""Parts of the patch codec: words, classes, positions, bounded reading and zstd frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from p2prl.errors import RemoteProtocolError
from p2prl.patches import positions
from p2prl.patches.byte_reader import ByteReader, integers, packed_bits
from p2prl.patches.exponent_classes import by_exponent, choose_top
from p2prl.patches.magnitudes import directions, magnitude_bytes, steps_of
from p2prl.patches.words import BF16, FP16, FP32, WORD_TYPES, WordType, ordered, stepped, steps_between, word_type_of
from p2prl.patches.zstd_coder import ZstdCoder
from p2prl.protocol.manifests import DTYPE_BYTES


def test_word_types_match_layouts() -> None:
    assert {name: t.word_bytes for name, t in WORD_TYPES.items()} == DTYPE_BYTES
    assert all(word_type_of(t.code) is t for t in WORD_TYPES.values())
    with pytest.raises(RemoteProtocolError):
        word_type_of(0)


@pytest.mark.parametrize(("word_type", "dtype"), [(FP16, np.float16), (FP32, np.float32)], ids=["fp16", "fp32"])
def test_one_step_is_the_next_float(word_type: WordType, dtype: type[np.floating[Any]]) -> None:
    values = np.random.default_rng(1).standard_normal(5000).astype(dtype)
    upwards = np.nextafter(values, dtype(np.inf))
    low, high = values.view(word_type.dtype), upwards.view(word_type.dtype)
    assert np.all(steps_between(low, high, word_type) == 1)
    assert np.all(steps_between(high, low, word_type) == (1 << word_type.bits) - 1)


def test_bf16_line() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    line = ordered(words, BF16)
    assert np.array_equal(np.sort(line), words)
    assert np.array_equal(ordered(line, BF16), words)
    floats = (words.astype(np.uint32) << 16).view(np.float32)
    along = floats[np.argsort(line.view(np.int16))]
    assert np.all(np.diff(along[np.isfinite(along)]) >= 0)
    other = np.random.default_rng(2).permutation(words)
    assert np.array_equal(stepped(words, steps_between(words, other, BF16), BF16), other)


def test_classes_count_from_the_top_binade() -> None:
    classes = by_exponent(123, 256)
    assert [int(classes[e]) for e in (0, 100, 108, 109, 122, 123, 124, 255)] == [0, 0, 0, 1, 14, 15, 15, 15]


def test_outliers_do_not_shift_the_classes() -> None:
    counts = np.zeros(256, dtype=np.int64)
    counts[[110, 121, 255]] = 500_000, 500_000, 10
    assert choose_top(counts) == 121
    counts[255] = 2_000
    assert choose_top(counts) == 255
    assert choose_top(np.zeros(256, dtype=np.int64)) == 0


@pytest.mark.parametrize("density", [0.0001, 0.004, 0.1, 0.5])
def test_positions_round_trip(density: float) -> None:
    words = 200_000
    flags = np.random.default_rng(3).random(words) < density
    flags[[0, -1]] = True
    ranks = np.flatnonzero(flags)
    gaps = (np.diff(ranks, prepend=-1) - 1).astype(np.uint32)
    count = positions.low_bits_for(len(ranks), words - len(ranks))
    assert count <= positions.most_low_bits(len(ranks), words)
    high, low = positions.high_bytes(gaps, count), positions.low_bits(gaps, count)
    assert len(high) <= positions.most_bytes(len(ranks), words, count)
    assert np.array_equal(positions.positions(high, low, marks=len(ranks), words=words, count=count), ranks)
    with pytest.raises(RemoteProtocolError, match="in a class of"):
        positions.positions(high, low, marks=len(ranks), words=words - 1, count=count)
    with pytest.raises(RemoteProtocolError, match="positions in a class"):
        positions.positions(high[:-1], low, marks=len(ranks), words=words, count=count)


def test_a_long_gap_is_a_run_of_255s() -> None:
    gaps = np.array([600, 0, 255, 254], dtype=np.uint32)
    high = positions.high_bytes(gaps, 0)
    assert high.tolist() == [255, 255, 90, 0, 255, 0, 254]
    got = positions.positions(high, np.zeros(0, dtype=np.uint8), marks=4, words=2000, count=0)
    assert got.tolist() == [600, 601, 857, 1112]
    with pytest.raises(RemoteProtocolError):
        positions.positions(np.append(high, np.uint8(255)), high[:0], marks=4, words=2000, count=0)


def test_steps_round_trip_with_escapes() -> None:
    steps = np.array([1, -1, 255, -255, 256, -256, 32767, -32768], dtype=np.int64).astype(np.uint16)
    sizes, down = magnitude_bytes(steps, BF16), directions(steps, BF16)
    assert sizes.tolist() == [0, 0, 254, 254, 255, 255, 255, 255]
    assert down.tolist() == [False, True] * 4
    assert np.array_equal(steps_of(down, sizes, steps[4:], BF16), steps)
    with pytest.raises(RemoteProtocolError, match="escape"):
        steps_of(down, sizes, steps[[0, 5, 6, 7]], BF16)


def test_reads_are_bounded() -> None:
    reader = ByteReader(integers([0, 127, 128, 1 << 22]) + packed_bits(np.array([1, 0, 1])))
    assert [reader.integer(1 << 22) for _ in range(4)] == [0, 127, 128, 1 << 22]
    assert reader.bits(3).tolist() == [1, 0, 1]
    reader.finish()
    for data, most in ((b"", 1), (b"\x80", 1), (b"\x05", 4), (b"\xff" * 9, 1 << 60)):
        with pytest.raises(RemoteProtocolError):
            ByteReader(data).integer(most)
    with pytest.raises(RemoteProtocolError, match="padding"):
        ByteReader(b"\x0f").bits(3)
    with pytest.raises(RemoteProtocolError, match="too early"):
        ByteReader(b"\x00").bits(9)
    with pytest.raises(RemoteProtocolError, match="too many"):
        ByteReader(b"\x00").finish()


def unpacked(frame: bytes, *, least: int, most: int) -> int:
    return len(ZstdCoder().unpack(len(frame) * 2 + 1, ByteReader(frame), least=least, most=most))


def test_frame_size_is_bounded() -> None:
    magicless = zstandard.FORMAT_ZSTD1_MAGICLESS

    def frame(data: bytes, *, stated: bool = True) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(format=magicless, write_content_size=stated)
        return zstandard.ZstdCompressor(compression_params=parameters).compress(data)

    bomb = frame(bytes(50_000_000))
    assert len(bomb) < 10_000
    assert unpacked(frame(bytes(1000)), least=1000, most=1000) == 1000
    for bad in (
        bomb,
        frame(bytes(1001)),
        frame(bytes(999)),
        frame(bytes(1000), stated=False),
        frame(bytes(1000)) + frame(bytes(1000)),
        frame(bytes(1000))[:-1],
        frame(bytes(1000)) + b"\x00",
        b"",
        b"\x28\xb5\x2f\xfd" + frame(bytes(1000)),
    ):
        with pytest.raises(RemoteProtocolError):
            unpacked(bad, least=1000, most=1000)


def test_wrong_frame_size_is_refused() -> None:
    coder = ZstdCoder()
    tag, honest = coder.pack(np.zeros(3_000_000, dtype=np.uint8), matches=True)
    assert tag == len(honest) * 2 + 1
    size = (3_000_000).to_bytes(4, "little")
    assert honest.count(size) == 1
    for stated in (2_999_999, 3_000_001, 1 << 21):
        lying = honest.replace(size, stated.to_bytes(4, "little"))
        with pytest.raises(RemoteProtocolError):
            unpacked(lying, least=0, most=1 << 22)
    with pytest.raises(RemoteProtocolError, match="plain bytes"):
        coder.unpack(2 * 5, ByteReader(b"12345"), least=6, most=9)
