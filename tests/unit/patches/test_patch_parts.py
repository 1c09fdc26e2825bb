"""Parts of the patch codec: words, classes, intervals, tables, the entropy coder, bounded reading and zstd frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.patches.byte_reader import ByteReader, integers
from p2prl.patches.dense_codecs import ZstdCoder
from p2prl.patches.entropy_coder import LOWEST, Runs, Tables, lanes_for, pack_states, read_states
from p2prl.patches.exponent_classes import History, choose_top, class_window
from p2prl.patches.frequency_tables import GAP_SYMBOLS, geometric, pack_table, read_table, shared_tables
from p2prl.patches.intervals import FIRST, WIDTH, interval_count, intervals_of, plain_bits
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS, Kernels
from p2prl.patches.sparse_codec import decode_ec2, encode_ec2
from p2prl.patches.words import BF16, FP16, FP32, WORD_TYPES, WordType, ordered, stepped, steps_between, word_type_of
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


@pytest.mark.parametrize("top", [123, 7, 0])
def test_classes_count_from_the_top_binade(top: int) -> None:
    below, above = class_window(top)
    for exponent in range(256):
        assert min(max(exponent - below, 0), 15 - above) + above == min(max(exponent - top + 15, 0), 15)


def test_outliers_do_not_shift_the_classes() -> None:
    words = np.repeat(np.array([110, 121, 255], dtype=np.uint16), [500_000, 500_000, 10]) << 7
    np.random.default_rng(1).shuffle(words)
    assert choose_top(words, BF16) == 121
    words[::61][::500] = 255 << 7
    assert choose_top(words, BF16) == 255
    assert choose_top(words[:0], BF16) == 0


def test_groups_count_and_find_words_by_hand() -> None:
    """Six words of two exponents; the history says that words 1 and 4 have changed, word 4 downwards."""
    old = np.array([0x3F80, 0x3F81, 0x3F00, 0x3F82, 0x3F01, 0x3F83], dtype=np.uint16)
    new = old + np.array([0, 1, 0, 2, 1, 0], dtype=np.uint16)
    history = History(np.array([0b010010], dtype=np.uint64), np.array([0b010000], dtype=np.uint64))
    for kernels in (NUMPY_KERNELS, fastest_kernels()):
        found = kernels.find(old, new, BF16, 127, history)
        groups, gaps, steps = found.groups, found.gaps, found.steps
        assert [(g, n, groups.changed[g]) for g, n in enumerate(groups.words) if n] == [
            (14, 1, 0),
            (15, 3, 1),
            (30, 1, 1),
            (31, 1, 1),
        ]
        assert (gaps.tolist(), steps.tolist()) == ([1, 0, 0], [2, 65535, 1])
        assert kernels.count(old, BF16, 127, history) == groups.words
        got = kernels.apply(old, BF16, groups, history, np.array([1, 0, 0]), steps)
        assert got.tolist() == new.tolist()


def test_history_follows_the_words() -> None:
    first = np.full(70, 0x3F80, dtype=np.uint16)
    second, third = first.copy(), first.copy()
    second[[1, 64]] += 1
    third[[1, 69]] = 0x3F7F, 0x3F81  # word 1 went down after up; word 64 went back down
    history = History.none(70).after(first, second, BF16)
    assert (history.moved.tolist(), history.down.tolist()) == ([2, 1], [0, 0])
    history = history.after(second, third, BF16)
    assert (history.moved.tolist(), history.down.tolist()) == ([2, 33], [2, 1])
    with pytest.raises(LocalProtocolError):
        history.after(first[:64], second[:64], BF16)
    for call in (
        lambda: encode_ec2(first[:64], second[:64], BF16, NUMPY_KERNELS, history=history),
        lambda: decode_ec2(first[:64], memoryview(bytes(5)), BF16, NUMPY_KERNELS, history=history),
    ):
        with pytest.raises(LocalProtocolError):
            call()


def test_intervals_of_every_number() -> None:
    values = np.unique(np.concatenate([np.arange(3000), 2 ** np.arange(31), 2 ** np.arange(1, 32) - 1])).astype(
        np.uint32
    )
    intervals = intervals_of(values)
    widths = WIDTH[intervals]
    assert np.all(np.diff(intervals.astype(int)) >= 0)
    assert np.array_equal(FIRST[intervals] + plain_bits(values, widths), values)
    assert intervals.max() == interval_count(31) - 1
    assert intervals_of(np.array([(1 << 22) - 1], dtype=np.uint32))[0] == interval_count(22) - 1
    assert intervals_of(np.array([0, 3, 4, 7, 8, 9, 10, 16, 20], dtype=np.uint32)).tolist() == [
        0,
        3,
        4,
        7,
        8,
        8,
        9,
        12,
        13,
    ]


@pytest.mark.parametrize("kernels", [NUMPY_KERNELS, fastest_kernels()], ids=lambda kernels: kernels.name)
def test_fields_are_bits_in_order(kernels: Kernels) -> None:
    rng = np.random.default_rng(8)
    widths = rng.integers(0, 32, 500).astype(np.uint8)
    values = plain_bits(rng.integers(0, 1 << 32, 500).astype(np.uint32), widths)
    text = "".join(
        format(value, "b").zfill(width)[::-1] if width else "" for value, width in zip(values, widths, strict=True)
    )
    packed = kernels.pack_fields(values, widths)
    assert "".join(format(byte, "08b")[::-1] for byte in packed)[: len(text)] == text
    assert len(packed) == -(-len(text) // 8)
    assert np.array_equal(kernels.unpack_fields(packed, widths), values)
    assert kernels.pack_fields(values[:0], widths[:0]) == b""


def test_tables_are_close_to_the_counts() -> None:
    counts = np.array([100_000, 50_000, 0, 7_000, 1, 3_000])
    raw, table = pack_table(counts)
    assert table.sum() == 4096
    assert np.array_equal(table > 0, counts > 0)
    some = counts > 0
    ideal = (counts[some] * np.log2(counts.sum() / counts[some])).sum()
    assert (counts[some] * np.log2(4096 / table[some])).sum() < 1.004 * ideal
    reader = ByteReader(raw)
    read = read_table(reader, 6)
    reader.finish()
    assert read is not None
    assert np.array_equal(read, table)
    with pytest.raises(RemoteProtocolError, match="of at most 5"):
        read_table(ByteReader(raw), 5)


def test_the_computed_table_is_geometric() -> None:
    marks, words = 1000, 64_000
    alone, table, _ = geometric([(5, 5), (marks, words), (1, 2)], [1, 44, 7])
    keep = 1 - marks / words
    exact = [keep ** float(FIRST[interval]) - keep ** float(FIRST[interval + 1]) for interval in range(44)]
    assert table.sum() == 4096
    assert np.abs(table - 4096 * np.array(exact)).max() < 4096 * 0.012
    assert np.array_equal(alone, [4096])
    assert geometric([], []) == []
    for symbols in range(1, GAP_SYMBOLS + 1):
        (table,) = geometric([(1, 1 << 22)], [symbols])
        assert (len(table), table.sum()) == (symbols, 4096)
        assert table.min() >= 1


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"\x02\x0f", "too early"),
        (b"\x01\x17", "padding"),
        (b"\x01\x0f\x00", "without symbols"),
        (b"\x01\xff\x0f\x00", "level"),
    ],
)
def test_damaged_tables_are_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read_table(ByteReader(raw), 9)


def test_groups_of_equal_steps_share_a_table() -> None:
    alike, other = np.array([500, 500]), np.array([900, 10])
    assert shared_tables([alike, alike, other * 10, alike]) == [0, 0, 2, 3]


@pytest.mark.parametrize("kernels", [NUMPY_KERNELS, fastest_kernels()], ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("lanes", [1, 4])
def test_coder_round_trips_any_symbols(kernels: Kernels, lanes: int) -> None:
    rng = np.random.default_rng(9)
    tables = Tables.of([np.array([4096]), np.array([1, 4095]), np.array([1000, 0, 3000, 96])])
    symbols = np.concatenate([np.zeros(50), rng.random(999) < 0.5, rng.choice([0, 2, 3], 1000)]).astype(np.uint8)
    runs = Runs.of([0, 1, 2], [50, 999, 1000])
    states = np.full(lanes, LOWEST, dtype=np.uint32)
    units = kernels.rans_encode(symbols, runs, tables, states)
    sent = read_states(ByteReader(pack_states(states)), lanes)
    assert np.array_equal(sent, states)
    assert np.array_equal(kernels.rans_decode(runs, tables, states, units), symbols)
    assert states.tolist() == [LOWEST] * lanes
    for bad, problem in ((units[:-1], "end before"), (np.append(units, units[:1]), "more coded bytes")):
        with pytest.raises(RemoteProtocolError, match=problem):
            kernels.rans_decode(runs, tables, sent.copy(), bad)


def test_lanes_have_symbols_to_code() -> None:
    assert [lanes_for(count) for count in (0, 1, 1023, 1024, 4096, 1 << 22, 1 << 30)] == [1, 1, 1, 2, 8, 2048, 2048]


def test_reads_are_bounded() -> None:
    reader = ByteReader(integers([0, 127, 128, 1 << 22]))
    assert [reader.integer(1 << 22) for _ in range(4)] == [0, 127, 128, 1 << 22]
    reader.finish()
    for data, most in ((b"", 1), (b"\x80", 1), (b"\x05", 4), (b"\xff" * 9, 1 << 60)):
        with pytest.raises(RemoteProtocolError):
            ByteReader(data).integer(most)
    with pytest.raises(RemoteProtocolError, match="too early"):
        ByteReader(b"\x00").take(2)
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
    tag, honest = coder.pack(np.zeros(3_000_000, dtype=np.uint8))
    assert tag == len(honest) * 2 + 1
    size = (3_000_000).to_bytes(4, "little")
    assert honest.count(size) == 1
    for stated in (2_999_999, 3_000_001, 1 << 21):
        lying = honest.replace(size, stated.to_bytes(4, "little"))
        with pytest.raises(RemoteProtocolError):
            unpacked(lying, least=0, most=1 << 22)
    with pytest.raises(RemoteProtocolError, match="plain bytes"):
        coder.unpack(2 * 5, ByteReader(b"12345"), least=6, most=9)
