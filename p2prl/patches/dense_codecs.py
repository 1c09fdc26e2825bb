"""Codecs for segments of which most words change: planes (byte planes of the steps) and raw (the new words).

Relative to zeros the planes make a keyframe: the step from zero to a word, with the sign in the lowest bit, has the
complete exponent in its top byte, where a few values are far more frequent than the others.
"""

from __future__ import annotations

import numpy as np

from p2prl.patches.byte_reader import ByteReader, integers
from p2prl.patches.words import Words, WordType, stepped, steps_between
from p2prl.patches.zstd_coder import ZstdCoder

_MAX_TAG = 1 << 24
"""Largest tag: twice the 2^22 bytes of a plane, plus the frame bit."""


def encode_planes(old: Words, new: Words, word_type: WordType, coder: ZstdCoder) -> bytes:
    """Encode a tag for each byte plane, lowest first, then the planes of the zigzag steps."""
    steps = steps_between(old, new, word_type)
    folded = (steps << 1) ^ ((steps >> (word_type.bits - 1)) * steps.dtype.type((1 << word_type.bits) - 1))
    planes = np.ascontiguousarray(folded.view(np.uint8).reshape(len(folded), word_type.word_bytes).T)
    packed = [coder.pack(plane) for plane in planes]
    return integers([tag for tag, _ in packed]) + b"".join(data for _, data in packed)


def decode_planes(old: Words, body: memoryview, word_type: WordType, coder: ZstdCoder) -> Words:
    """Decode the new words. Raise `RemoteProtocolError` unless `body` holds planes of the length of `old`."""
    reader = ByteReader(body)
    tags = [reader.integer(_MAX_TAG) for _ in range(word_type.word_bytes)]
    planes = [coder.unpack(tag, reader, least=len(old), most=len(old)) for tag in tags]
    reader.finish()
    folded = np.ascontiguousarray(np.stack(planes, axis=1)).view(word_type.dtype).reshape(len(old))
    steps = (folded >> 1) ^ ((folded & 1) * folded.dtype.type((1 << word_type.bits) - 1))
    return stepped(old, steps, word_type)


def decode_raw(old: Words, body: memoryview, word_type: WordType) -> Words:
    """Decode plain words. Raise `RemoteProtocolError` unless there are as many as in `old`."""
    reader = ByteReader(body)
    words = np.frombuffer(reader.take(old.nbytes), dtype=word_type.dtype)
    reader.finish()
    return words.copy()  # aligned and writable, as from every codec
