"""EC1, the sparse codec of the previous format, to compare with: Rice-like gaps and Huffman codes by zstd. numpy only.

Per exponent class: gaps between the changed words as plain low bits and bytes of the rest, a direction bit for each
change, and |step| − 1 in bytes. A class of which more than half changes sends the unchanged words instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from p2prl.patches.byte_reader import ByteReader, integers
from p2prl.patches.exponent_classes import CLASSES, choose_top
from p2prl.patches.words import Words, WordType, exponents_of, stepped, steps_between

_MEAN_HIGH = 8
_ESCAPE = 255
_MAX_TAG = 1 << 24

# Entropy coding almost alone: matches of 7 bytes among independent bytes are accidents and cost more than they save.
# target_length stays 0: with the fast strategy any other value turns Huffman codes off.
_ENTROPY = zstandard.ZstdCompressionParameters(
    compression_level=1,
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=10,
    min_match=7,
    target_length=0,
    format=zstandard.FORMAT_ZSTD1_MAGICLESS,
    write_content_size=True,
)


def encode_ec1(old: Words, new: Words, word_type: WordType) -> bytes:
    """Encode the body for equally long `old` and `new`."""
    top = choose_top(old, word_type)
    changed = old != new
    head: list[int] = []
    payload: list[bytes] = []
    where = []
    sizes_of_class = []
    for own in _classes(old, word_type, top):
        flags = changed[own]
        count, total = int(flags.sum()), len(own)
        head.append(count)
        ranks = np.flatnonzero(flags if 2 * count <= total else ~flags)
        if len(ranks):
            low = ((total - len(ranks)) // len(ranks) // _MEAN_HIGH).bit_length()
            gaps = np.diff(ranks, prepend=-1) - 1
            tag, high = _pack(_high_bytes(gaps >> low))
            head += [low, tag]
            payload += [_packed_bits(np.concatenate([(gaps >> bit) & 1 for bit in range(low)] or [gaps[:0]])), high]
        places = own[flags]
        where.append(places)
        sizes_of_class.append(_sizes(steps_between(old[places], new[places], word_type), word_type))
        if count:
            tag, sized = _pack(sizes_of_class[-1]) if sizes_of_class[-1].any() else (0, b"")
            head.append(tag)
            payload.append(sized)
    places = np.concatenate(where)
    steps = steps_between(old[places], new[places], word_type)
    escapes = steps[np.concatenate(sizes_of_class) == _ESCAPE]
    tail = _packed_bits(steps >> (word_type.bits - 1)) + escapes.tobytes()
    return b"".join([bytes([top]), integers(head), *payload, tail])


def decode_ec1(old: Words, body: bytes, word_type: WordType) -> Words:
    """Decode what `encode_ec1` made of the same old words."""
    reader = ByteReader(memoryview(body))
    members = _classes(old, word_type, reader.take(1)[0])
    heads = []
    for own in members:
        count = reader.integer(len(own))
        marks = min(count, len(own) - count)
        low, tag = (reader.integer(32), reader.integer(_MAX_TAG)) if marks else (0, 0)
        heads.append((count, marks, low, tag, reader.integer(_MAX_TAG) if count else 0))
    where, sizes = [], []
    for own, (count, marks, low, tag, size_tag) in zip(members, heads, strict=True):
        ranks = np.zeros(0, dtype=np.int64)
        if marks:
            planes = _bits(reader, marks * low).astype(np.int64).reshape(low, marks)
            high = _unpack(reader, tag)
            ends = np.flatnonzero(high != _ESCAPE)
            rest = sum((plane << bit for bit, plane in enumerate(planes)), start=np.zeros(marks, dtype=np.int64))
            ranks = (np.cumsum(high, dtype=np.int64)[ends] << low) + np.cumsum(rest) + np.arange(marks)
        flags = np.zeros(len(own), dtype=bool)
        flags[ranks] = True
        where.append(own[flags if 2 * count <= len(own) else ~flags])
        plain = np.zeros(count, dtype=np.uint8)
        sizes.append(_unpack(reader, size_tag) if size_tag else plain)
    places, size = np.concatenate(where), np.concatenate(sizes)
    down = _bits(reader, len(size)).astype(word_type.dtype)
    steps = ((size.astype(word_type.dtype) + 1) ^ (word_type.dtype.type(0) - down)) + down
    escaped = size == _ESCAPE
    steps[escaped] = np.frombuffer(reader.take(int(escaped.sum()) * word_type.word_bytes), dtype=word_type.dtype)
    new = old.copy()
    new[places] = stepped(old[places], steps.astype(word_type.dtype), word_type)
    return new


def _classes(old: Words, word_type: WordType, top: int) -> list[NDArray[np.int64]]:
    """Places of the words of each class."""
    table = np.clip(np.arange(word_type.exponents) - (top - CLASSES + 1), 0, CLASSES - 1).astype(np.uint8)
    classes = table[exponents_of(old, word_type)]
    order = np.argsort(classes, kind="stable")
    return np.split(order, np.cumsum(np.bincount(classes, minlength=CLASSES))[:-1])


def _high_bytes(high: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each number as bytes: 255s, which count on, and the rest."""
    runs, rest = np.divmod(high, _ESCAPE)
    ends = np.cumsum(runs + 1) - 1
    out = np.full(int(ends[-1]) + 1, _ESCAPE, dtype=np.uint8)
    out[ends] = rest
    return out


def _sizes(steps: Words, word_type: WordType) -> NDArray[np.uint8]:
    """|step| − 1, at most 255."""
    down = (steps >> (word_type.bits - 1)).astype(steps.dtype)
    size = (steps ^ (steps.dtype.type(0) - down)) + down - steps.dtype.type(1)
    clipped: NDArray[np.uint8] = np.minimum(size, _ESCAPE).astype(np.uint8)
    return clipped


def _packed_bits(bits: NDArray[Any]) -> bytes:
    return np.packbits(bits.astype(bool), bitorder="little").tobytes()


def _bits(reader: ByteReader, count: int) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(reader.take(-(-count // 8)), dtype=np.uint8), bitorder="little")[:count]


def _pack(data: NDArray[np.uint8]) -> tuple[int, bytes]:
    """(tag, bytes): a frame or the plain bytes, whichever is shorter."""
    plain = data.astype(np.uint8).tobytes()
    frame = zstandard.ZstdCompressor(compression_params=_ENTROPY).compress(plain)
    return (len(frame) * 2 + 1, frame) if len(frame) < len(plain) else (len(plain) * 2, plain)


def _unpack(reader: ByteReader, tag: int) -> NDArray[np.uint8]:
    raw = bytes(reader.take(tag >> 1))
    if tag & 1:
        raw = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress(raw)
    return np.frombuffer(raw, dtype=np.uint8)
