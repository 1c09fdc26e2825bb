"""Section 15 of `docs/protocol.md` is enough to decode patches: a plain decoder, written from its text, agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

from p2prl.patches.encode import encode_patch
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.sparse_codec import encode_ec2
from p2prl.patches.stream_format import Codec, SegmentHeader, words_digest
from p2prl.patches.words import BF16, FP16, FP32, WordType

# --- written from the text -----------------------------------------------------------------------------------------

BITS = {1: (16, 7), 2: (16, 10), 3: (32, 23)}
SEGMENT = 4_194_304


class Body:
    """A cursor over a segment's body."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        assert count <= len(self.data)
        part, self.data = self.data[:count], self.data[count:]
        return part

    def integer(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def bits(self, count: int) -> list[int]:
        raw = self.take((count + 7) // 8)
        return [raw[i // 8] >> (i % 8) & 1 for i in range(count)]

    def stream(self, tag: int) -> bytes:
        raw = self.take(tag // 2)
        if tag % 2 == 0:
            return raw
        return zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress(raw)


def line(word: int, b: int) -> int:
    return word ^ ((1 << (b - 1)) - 1) if word >> (b - 1) else word


def moved(word: int, step: int, b: int) -> int:
    return line((line(word, b) + step) % (1 << b), b)


def planes(old: list[int], body: Body, b: int) -> list[int]:
    tags = [body.integer() for _ in range(b // 8)]
    parts = [body.stream(tag) for tag in tags]
    zigzag = [sum(part[i] << (8 * p) for p, part in enumerate(parts)) for i in range(len(old))]
    steps = [(z >> 1) ^ ((1 << b) - 1 if z & 1 else 0) for z in zigzag]
    return [moved(word, step, b) for word, step in zip(old, steps, strict=True)]


def interval_range(interval: int) -> tuple[int, int]:
    """(smallest number, bits of the field) of an interval."""
    if interval < 4:
        return interval, 0
    k = interval // 4 + 1
    return (1 << k) + (interval % 4) * (1 << (k - 2)), k - 2


def frequencies(weights: list[int]) -> list[int]:
    some = sum(weight > 0 for weight in weights)
    found = [1 + weight * (4096 - some) // sum(weights) if weight else 0 for weight in weights]
    found[found.index(max(found))] += 4096 - sum(found)
    return found


def level_table(body: Body, count: int) -> list[int]:
    raw: list[int] = []

    def digit() -> int:
        if not raw:
            byte = body.take(1)[0]
            raw.extend([byte & 15, byte >> 4])
        return raw.pop(0)

    weights, level = [], 49
    for _ in range(count):
        d = digit()
        level = level + d - 7 if d < 15 else digit() + 16 * digit()
        weights.append((64, 76, 91, 108)[(level - 1) % 4] * 2 ** ((level - 1) // 4) if level else 0)
    assert raw in ([], [0])
    return frequencies(weights)


def gap_table(body: Body, changed: int, words: int) -> list[int]:
    count = body.take(1)[0]
    if count < 129:
        return level_table(body, count)
    scale = 2**31
    p = [(words - changed) * scale // words]
    for _ in range(23):
        p.append(p[-1] ** 2 // scale)
    beyond = [scale, p[0], p[1], p[1] * p[0] // scale]
    for k in range(2, 23):
        beyond.append(p[k])
        for _ in range(3):
            beyond.append(beyond[-1] * p[k - 2] // scale)
    return frequencies([max(1, beyond[i] - beyond[i + 1]) for i in range(count - 128)])


def rans(body: Body, tables: list[list[int]]) -> tuple[list[int], bytes]:
    """(symbols of these tables, one after the other; the bytes in the lanes' first states)."""
    lanes = 1 << min(max((len(tables)).bit_length() - 10, 0), 11)
    count = body.integer()
    lengths = [sum(bit << i for i, bit in enumerate(four)) for four in chunks(body.bits(4 * lanes), [4] * lanes)]
    rest = chunks(body.bits(sum(length + 16 for length in lengths)), [length + 16 for length in lengths])
    states = [(1 << len(bits)) + sum(bit << i for i, bit in enumerate(bits)) for bits in rest]
    units = [int.from_bytes(body.take(2), "little") for _ in range(count)]
    symbols = []
    for i, table in enumerate(tables):
        x = states[i % lanes]
        slot, symbol = x % 4096, 0
        while slot >= table[symbol]:
            slot -= table[symbol]
            symbol += 1
        x = table[symbol] * (x // 4096) + slot
        states[i % lanes] = x * 65536 + units.pop(0) if x < 65536 else x
        symbols.append(symbol)
    assert not units
    return symbols, b"".join((x - 65536).to_bytes(2, "little") for x in states)


def chunks(bits: list[int], lengths: list[int]) -> list[list[int]]:
    found = []
    for length in lengths:
        found.append(bits[:length])
        bits = bits[length:]
    return found


def sparse(old: list[int], body: Body, b: int, m: int) -> list[int]:
    top = body.take(1)[0]
    classes: list[list[int]] = [[] for _ in range(16)]
    for index, word in enumerate(old):
        exponent = (word >> m) % (1 << (b - 1 - m))
        classes[min(15, max(0, exponent - top + 15))].append(index)
    active = [members for members, some in zip(classes, body.bits(16), strict=True) if some]
    if not active:
        return old
    counts = [body.integer() for _ in active]
    tables: list[list[int]] = []
    steps: list[int] = []
    for members, n in zip(active, counts, strict=True):
        gaps = gap_table(body, n, len(members))
        count = body.take(1)[0]
        steps = level_table(body, count) if count else steps
        tables += [gaps] * n + [steps] * n
    symbols, hidden = rans(body, tables)
    kinds = [kind for n in counts for kind in [0] * n + [1] * n]
    ranges = [interval_range(symbol >> kind) for symbol, kind in zip(symbols, kinds, strict=True)]
    total = sum(width for _, width in ranges)
    shown = max(0, (total + 7) // 8 - len(hidden))
    fields = Body(body.take(shown) + hidden)
    bits = chunks(fields.bits(8 * len(fields.data))[:total], [width for _, width in ranges])
    numbers = [first + sum(x << i for i, x in enumerate(own)) for (first, _), own in zip(ranges, bits, strict=True)]
    new, at = list(old), 0
    for members, n in zip(active, counts, strict=True):
        rank = -1
        for i in range(n):
            rank += numbers[at + i] + 1
            size = numbers[at + n + i] + 1
            index = members[rank]
            new[index] = moved(old[index], -size if symbols[at + n + i] & 1 else size, b)
        at += 2 * n
    return new


def plain_decode(patch: bytes, old: list[int]) -> list[int]:
    """The new words of a patch stream."""
    stream = Body(patch)
    assert stream.take(14) == b"p2prl-patch-2\n"
    b, m = BITS[stream.take(1)[0]]
    assert int.from_bytes(stream.take(8), "little") == len(old)
    new: list[int] = []
    for start in range(0, len(old), SEGMENT):
        part = old[start : start + SEGMENT]
        codec, length = stream.take(1)[0], int.from_bytes(stream.take(4), "little")
        pre, post = stream.take(32), stream.take(32)
        assert blake3(b"".join(word.to_bytes(b // 8, "little") for word in part)).digest() == pre
        body = Body(stream.take(length))
        if codec == 0:
            got = [int.from_bytes(body.take(b // 8), "little") for _ in part]
        elif codec == 3:
            got = planes(part, body, b)
        else:
            assert codec == 4
            got = sparse(part, body, b, m)
        assert not body.data
        assert blake3(b"".join(word.to_bytes(b // 8, "little") for word in got)).digest() == post
        new += got
    assert not stream.data
    return new


# --- compared with the encoder -------------------------------------------------------------------------------------


def weights(word_type: WordType, count: int, seed: int) -> NDArray[Any]:
    """Weights of N(0, 0.02), as words."""
    values = (0.02 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)
    if word_type is BF16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16) if word_type is FP16 else values.view(np.uint32)


@pytest.mark.parametrize("word_type", [BF16, FP16, FP32], ids=lambda word_type: word_type.name)
@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.4, 0.9, 1.0])
def test_patches(word_type: WordType, share: float) -> None:
    rng = np.random.default_rng(round(share * 1000))
    old = weights(word_type, 6000, 1)
    new = old.copy()
    touched = rng.random(len(old)) < share
    new[touched] += rng.choice(np.array([1, 2, 400, 65535]), touched.sum()).astype(new.dtype)
    patch = b"".join(encode_patch([(old, new)], words=len(old), word_type=word_type, kernels=NUMPY_KERNELS))
    assert plain_decode(patch, old.tolist()) == new.tolist()


@pytest.mark.parametrize("word_type", [BF16, FP16, FP32], ids=lambda word_type: word_type.name)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.8])
def test_sparse_codec(word_type: WordType, share: float) -> None:
    """Changes of any size, also where another codec would be shorter."""
    rng = np.random.default_rng(3)
    old = weights(word_type, 3000, 2)
    new = old.copy()
    touched = rng.random(len(old)) < share
    new[touched] ^= rng.integers(1, 1 << 12, touched.sum()).astype(new.dtype)
    assert coded_and_decoded(old, new, word_type) == new.tolist()


def test_tables_are_sent_where_changes_are_not_random() -> None:
    """Every other word of a stretch changes: gaps are far from geometric. Many lanes, and words of several classes."""
    old = weights(BF16, 40_000, 5)
    new = old.copy()
    new[4_000:20_000:2] += 1
    assert coded_and_decoded(old, new, BF16) == new.tolist()


def coded_and_decoded(old: NDArray[Any], new: NDArray[Any], word_type: WordType) -> list[int]:
    body = encode_ec2(old, new, word_type, NUMPY_KERNELS)
    header = SegmentHeader(codec=Codec.EC2, body_bytes=len(body), pre=words_digest(old), post=words_digest(new))
    preamble = b"p2prl-patch-2\n" + bytes([word_type.code]) + len(old).to_bytes(8, "little")
    return plain_decode(preamble + header.pack() + body, old.tolist())


def test_keyframe() -> None:
    new = weights(BF16, 300_000, 4)
    old = np.zeros_like(new)
    patch = b"".join(encode_patch([(old, new)], words=len(new), word_type=BF16, kernels=NUMPY_KERNELS))
    assert patch[23] == Codec.PLANES
    assert plain_decode(patch, old.tolist()) == new.tolist()
