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
from p2prl.patches.sparse_codecs import encode_sparse
from p2prl.patches.stream_format import Codec, SegmentHeader, words_digest
from p2prl.patches.words import BF16, FP16, FP32, WordType
from p2prl.patches.zstd_coder import ZstdCoder

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


def sparse(old: list[int], body: Body, b: int, m: int, *, flat: bool) -> list[int]:
    top = None if flat else body.take(1)[0]
    classes: list[list[int]] = [[] for _ in range(1 if flat else 16)]
    for index, word in enumerate(old):
        exponent = (word >> m) % (1 << (b - 1 - m))
        classes[0 if top is None else min(15, max(0, exponent - top + 15))].append(index)
    heads = []
    for members in classes:
        total = len(members)
        n = body.integer()
        marks = min(n, total - n)
        low, high = (body.integer(), body.integer()) if marks else (0, 0)
        heads.append((members, n, marks, low, high, body.integer() if n else 0))
    changed: list[int] = []
    magnitudes: list[int] = []
    for members, n, marks, low, high, tag in heads:
        bits = body.bits(marks * low)
        gaps: list[int] = []
        run = 0
        for byte in body.stream(high):
            run += byte
            if byte < 255:
                own = sum(bits[plane * marks + len(gaps)] << plane for plane in range(low))
                gaps.append((run << low) + own)
                run = 0
        ranks: set[int] = set()
        rank = -1
        for gap in gaps:
            rank += gap + 1
            ranks.add(rank)
        inverted = 2 * n > len(members)
        changed += [index for r, index in enumerate(members) if (r in ranks) != inverted]
        magnitudes += body.stream(tag) if tag else bytes(n)
    down = body.bits(len(changed))
    new = list(old)
    for index, size, negative in zip(changed, magnitudes, down, strict=True):
        step = int.from_bytes(body.take(b // 8), "little") if size == 255 else (-1 if negative else 1) * (size + 1)
        new[index] = moved(old[index], step, b)
    return new


def plain_decode(patch: bytes, old: list[int]) -> list[int]:
    """The new words of a patch stream. Escapes stand last, in the order of their magnitudes."""
    stream = Body(patch)
    assert stream.take(14) == b"p2prl-patch-1\n"
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
            got = sparse(part, body, b, m, flat=codec == 2)
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
@pytest.mark.parametrize("codec", [Codec.EC1, Codec.FLAT])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.8])
def test_sparse_codecs(word_type: WordType, codec: Codec, share: float) -> None:
    rng = np.random.default_rng(3)
    old = weights(word_type, 3000, 2)
    new = old.copy()
    touched = rng.random(len(old)) < share
    new[touched] ^= rng.integers(1, 1 << 12, touched.sum()).astype(new.dtype)
    body = encode_sparse(old, new, word_type, NUMPY_KERNELS, ZstdCoder(), flat=codec is Codec.FLAT)
    header = SegmentHeader(codec=codec, body_bytes=len(body), pre=words_digest(old), post=words_digest(new))
    preamble = b"p2prl-patch-1\n" + bytes([word_type.code]) + len(old).to_bytes(8, "little")
    assert plain_decode(preamble + header.pack() + body, old.tolist()) == new.tolist()


def test_keyframe() -> None:
    new = weights(BF16, 300_000, 4)
    old = np.zeros_like(new)
    patch = b"".join(encode_patch([(old, new)], words=len(new), word_type=BF16, kernels=NUMPY_KERNELS))
    assert patch[23] == Codec.PLANES
    assert plain_decode(patch, old.tolist()) == new.tolist()
