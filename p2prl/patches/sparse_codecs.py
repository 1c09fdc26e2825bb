"""Codecs for segments of which few words change: EC1 and flat. They code positions and ulp steps of changed words.

EC1 codes each exponent class with its own density. Flat puts all words into one class, which is shorter if only a few
words change. Body, in order:

    EC1 only: top exponent (1 byte)
    for each class: changed words; if it sends positions: low bits per gap, tag of its high bytes;
                    if any word changes: tag of its magnitude bytes (0: all steps are single)
    for each class: low bits of its gaps, high bytes, magnitude bytes
    directions (one bit per change), escapes (one word each)

Counts and tags are integers of seven bits per byte. Class sizes are not sent: the receiver counts its own old words,
and checks everything else against them.
"""

from __future__ import annotations

import numpy as np

from p2prl.errors import RemoteProtocolError
from p2prl.patches import magnitudes, positions
from p2prl.patches.byte_reader import ByteReader, Bytes, integers, packed_bits
from p2prl.patches.exponent_classes import ClassTable, by_exponent, choose_top, in_one, summed
from p2prl.patches.kernels import Kernels
from p2prl.patches.words import Words, WordType
from p2prl.patches.zstd_coder import ZstdCoder

_MAX_TAG = 1 << 24
"""Largest tag: twice the bytes of the longest stream of a segment (one per word, 2^22 words), plus the frame bit."""


def encode_sparse(
    old: Words, new: Words, word_type: WordType, kernels: Kernels, coder: ZstdCoder, *, flat: bool
) -> bytes:
    """Encode the body for equally long `old` and `new` of at most 2^22 words."""
    words, changed = kernels.tally(old, new, word_type)
    top = choose_top(words)
    classes = in_one(word_type.exponents) if flat else by_exponent(top, word_type.exponents)
    table = ClassTable(class_of_exponent=classes, words=summed(words, classes), changed=summed(changed, classes))
    gaps, steps = kernels.find(old, new, word_type, table)
    sizes = magnitudes.magnitude_bytes(steps, word_type)
    head: list[int] = []
    payload: list[bytes] = []
    mark = change = 0
    for total, n, marks in zip(table.words, table.changed, table.marks, strict=True):
        head.append(n)
        if marks:
            own = gaps[mark : mark + marks]
            low = positions.low_bits_for(marks, total - marks)
            tag, high = coder.pack(positions.high_bytes(own, low))
            head += [low, tag]
            payload += [packed_bits(positions.low_bits(own, low)), high]
        if n:
            tag, sized = _pack_magnitudes(sizes[change : change + n], coder)
            head.append(tag)
            payload.append(sized)
        mark += marks
        change += n
    tail = [packed_bits(magnitudes.directions(steps, word_type)), steps[sizes == magnitudes.ESCAPE].tobytes()]
    return b"".join([b"" if flat else bytes([top]), integers(head), *payload, *tail])


def _pack_magnitudes(sizes: Bytes, coder: ZstdCoder) -> tuple[int, bytes]:
    return coder.pack(sizes) if sizes.any() else (0, b"")


def decode_sparse(
    old: Words, body: memoryview, word_type: WordType, kernels: Kernels, coder: ZstdCoder, *, flat: bool
) -> Words:
    """Decode the new words. Raise `RemoteProtocolError` unless `body` is possible for these old words."""
    reader = ByteReader(body)
    if flat:
        classes = in_one(word_type.exponents)
    else:
        top = reader.take(1)[0]
        if top >= word_type.exponents:
            raise RemoteProtocolError(f"patch: top exponent {top} of {word_type.exponents}")
        classes = by_exponent(top, word_type.exponents)
    words = summed(kernels.histogram(old, word_type), classes)
    changed: list[int] = []
    heads: list[tuple[int, int, int]] = []
    for total in words:
        n = reader.integer(total)
        low = tag = size_tag = 0
        if marks := min(n, total - n):
            low = reader.integer(positions.most_low_bits(marks, total))
            tag = reader.integer(_MAX_TAG)
        if n:
            size_tag = reader.integer(_MAX_TAG)
        changed.append(n)
        heads.append((low, tag, size_tag))
    table = ClassTable(class_of_exponent=classes, words=words, changed=tuple(changed))
    ranks = [np.zeros(0, dtype=np.int64)]
    sizes = [np.zeros(0, dtype=np.uint8)]
    for total, n, marks, (low, tag, size_tag) in zip(words, changed, table.marks, heads, strict=True):
        if marks:
            low_flags = reader.bits(marks * low)
            most = positions.most_bytes(marks, total, low)
            high = coder.unpack(tag, reader, least=marks, most=most)
            ranks.append(positions.positions(high, low_flags, marks=marks, words=total, count=low))
        if n:
            sizes.append(coder.unpack(size_tag, reader, least=n, most=n) if size_tag else np.zeros(n, dtype=np.uint8))
    all_sizes = np.concatenate(sizes)
    down = reader.bits(len(all_sizes)).astype(bool)
    escaped = int(np.count_nonzero(all_sizes == magnitudes.ESCAPE))
    escapes = np.frombuffer(reader.take(escaped * word_type.word_bytes), dtype=word_type.dtype)
    reader.finish()
    steps = magnitudes.steps_of(down, all_sizes, escapes, word_type)
    return kernels.apply(old, word_type, table, np.concatenate(ranks), steps)
