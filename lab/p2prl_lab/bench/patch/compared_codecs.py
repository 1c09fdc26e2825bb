"""Codecs that `p2prl bench patch` compares: the one that peers use, its parts, and layouts from other papers.

Each is a pair of functions: (old, new) → sent, and (old, sent) → new words. The other layouts take words of any width;
their names in the table refer to the 16 bits they were published with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard

from p2prl.patches.decode import decode_segment
from p2prl.patches.dense_codecs import ZstdCoder, decode_planes, encode_planes
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS, Kernels
from p2prl.patches.sparse_codec import decode_ec2, encode_ec2
from p2prl.patches.stream_format import HEADER_BYTES, SegmentHeader
from p2prl.patches.words import Words, WordType

Encode = Callable[[Words, Words], Any]
Decode = Callable[[Words, Any], Words]
Codec = tuple[Encode, Decode]

COLUMNS = 4096
"""Row length of the row-and-column layout."""

PRODUCT, EC2, PLANES, RAW = "patch", "ec2", "planes", "raw"
XOR, ROWS, INDEX = "xor byte planes + zstd-1", "row8+col16+value + zstd-1", "index32+value"


def codecs(word_type: WordType) -> dict[str, Codec]:
    """All codecs by name, for words of a type."""
    fast = fastest_kernels()
    return {
        f"{PRODUCT} ({fast.name})": _product(word_type, fast),
        f"{PRODUCT} (numpy)": _product(word_type, NUMPY_KERNELS),
        EC2: _ec2(word_type, fast),
        PLANES: _planes(word_type),
        XOR: _xor_planes(word_type),
        ROWS: _rows_and_columns(word_type),
        INDEX: _index_and_value(word_type),
        RAW: _plain(word_type),
    }


def sent_bytes(sent: Any) -> int:
    """Size of a codec's result on the wire."""
    return len(sent) if isinstance(sent, bytes) else HEADER_BYTES + len(sent[1])


def _product(word_type: WordType, kernels: Kernels) -> Codec:
    """The codec that peers use: the smallest of three, with digests before and after."""

    def encode(old: Words, new: Words) -> tuple[SegmentHeader, bytes]:
        return encode_segment(old, new, word_type, kernels)

    def decode(old: Words, sent: tuple[SegmentHeader, bytes]) -> Words:
        return decode_segment(old, *sent, word_type, kernels)

    return encode, decode


def _ec2(word_type: WordType, kernels: Kernels) -> Codec:
    def encode(old: Words, new: Words) -> bytes:
        return encode_ec2(old, new, word_type, kernels)

    def decode(old: Words, body: bytes) -> Words:
        return decode_ec2(old, memoryview(body), word_type, kernels)

    return encode, decode


def _planes(word_type: WordType) -> Codec:
    def encode(old: Words, new: Words) -> bytes:
        return encode_planes(old, new, word_type, ZstdCoder())

    def decode(old: Words, body: bytes) -> Words:
        return decode_planes(old, memoryview(body), word_type, ZstdCoder())

    return encode, decode


def _index_and_value(word_type: WordType) -> Codec:
    """Indices of 32 bits and the new words, uncompressed."""

    def encode(old: Words, new: Words) -> bytes:
        where = np.flatnonzero(old != new).astype(np.uint32)
        return where.tobytes() + new[where].tobytes()

    def decode(old: Words, sent: bytes) -> Words:
        count = len(sent) // (4 + word_type.word_bytes)
        new = old.copy()
        new[np.frombuffer(sent, np.uint32, count)] = np.frombuffer(sent, word_type.dtype, count, 4 * count)
        return new

    return encode, decode


def _rows_and_columns(word_type: WordType) -> Codec:
    """PULSE's layout: row differences in 8 bits, column differences within a row in 16, the new words; zstd-1.

    A row difference above 8 bits would need another layout; at the densities measured here there is none.
    """

    def encode(old: Words, new: Words) -> bytes:
        where = np.flatnonzero(old != new)
        rows, columns = np.divmod(where, COLUMNS)
        row_steps = np.diff(rows, prepend=0)
        assert int(row_steps.max(initial=0)) < 256
        column_steps = np.where(row_steps == 0, np.diff(columns, prepend=0), columns)
        parts = (row_steps.astype(np.uint8), column_steps.astype(np.uint16), new[where])
        return zstandard.ZstdCompressor(level=1).compress(b"".join(part.tobytes() for part in parts))

    def decode(old: Words, sent: bytes) -> Words:
        raw = zstandard.ZstdDecompressor().decompress(sent)
        count = len(raw) // (3 + word_type.word_bytes)
        row_steps = np.frombuffer(raw, np.uint8, count)
        rows = np.cumsum(row_steps, dtype=np.int64)
        sums = np.cumsum(np.frombuffer(raw, np.uint16, count, count), dtype=np.int64)
        first = np.flatnonzero(row_steps != 0)
        before = np.zeros(count, dtype=np.int64)
        before[first] = sums[first - 1] if len(first) else 0
        if len(first) and first[0] == 0:
            before[0] = 0
        new = old.copy()
        where = rows * COLUMNS + sums - np.maximum.accumulate(before)
        new[where] = np.frombuffer(raw, word_type.dtype, count, 3 * count)
        return new

    return encode, decode


def _xor_planes(word_type: WordType) -> Codec:
    """Old XOR new, split into byte planes, zstd-1."""
    size = word_type.word_bytes

    def encode(old: Words, new: Words) -> bytes:
        mixed = np.ascontiguousarray((old ^ new).view(np.uint8).reshape(-1, size).T)
        return zstandard.ZstdCompressor(level=1).compress(mixed.tobytes())

    def decode(old: Words, sent: bytes) -> Words:
        planes = np.frombuffer(zstandard.ZstdDecompressor().decompress(sent), np.uint8).reshape(size, -1)
        mixed = np.ascontiguousarray(planes.T).view(word_type.dtype).reshape(-1)
        new: Words = old ^ mixed
        return new

    return encode, decode


def _plain(word_type: WordType) -> Codec:
    return lambda _, new: new.tobytes(), lambda _, sent: np.frombuffer(sent, word_type.dtype).copy()
