"""One segment: the smallest of four codecs, digests before and after, and the order in which a receiver checks.

Segments are independent: each names the words it starts from and the words it ends with, so they can be fetched,
decoded and checked in any order, and one that went wrong is fetched alone. The digest before matters as much as the
one after: steps are taken from the old words, and applying a segment twice would give a third thing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from p2prl.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from p2prl.patches.dense import decode_planes, decode_raw, encode_planes
from p2prl.patches.frames import FrameCoder
from p2prl.patches.kernels import Kernels
from p2prl.patches.sparse import decode_sparse, encode_sparse
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import DIGEST_BYTES, Digest, chunk_digest

SEGMENT_WORDS = 1 << 22
"""Words in every segment but the last: 8 MiB of bf16. Large enough that tables and digests are below one per cent of
a patch at one per cent of change, small enough that a receiver works in a few such buffers for a model of any size."""

_HEADER = struct.Struct(f"<BI{DIGEST_BYTES}s{DIGEST_BYTES}s")
HEADER_BYTES = _HEADER.size

_STRIPES, _STRIPE_WORDS = 8, 8192
"""The sample that tells what planes would cost: 64 Ki words from all over the segment, 1/64 of the work."""

_PLANES_HOPE = 1.5
"""Planes are run in full when the sample promises at most this much more than the best so far; a sample's frames are
short, so it exaggerates."""

_FLAT_BELOW_BYTES = 16 * 1024
"""Flat saves fifteen of EC1's sixteen tables, a kilobyte or two, and loses on positions: above this it cannot win."""


class Codec(IntEnum):
    """How a segment's body is to be read. A retired number is never used again."""

    RAW = 0
    EC1 = 1
    FLAT = 2
    PLANES = 3


@dataclass(frozen=True, kw_only=True)
class SegmentHeader:
    """What stands before a body, and what a manifest would list."""

    codec: Codec
    body_bytes: int
    pre: Digest
    """BLAKE3 of the old words."""
    post: Digest
    """BLAKE3 of the new words."""

    def pack(self) -> bytes:
        return _HEADER.pack(self.codec, self.body_bytes, self.pre, self.post)


def read_header(raw: bytes | memoryview, words: int, word_type: WordType) -> SegmentHeader:
    """The header of a segment of `words` words. Raises `RemoteProtocolError` for a size or codec that cannot be."""
    if len(raw) != HEADER_BYTES:
        raise RemoteProtocolError(f"patch: a segment header has {HEADER_BYTES} bytes, not {len(raw)}")
    codec, body_bytes, pre, post = _HEADER.unpack(raw)
    if codec not in set(Codec):
        raise RemoteProtocolError(f"patch: codec {codec} is unknown")
    if not bool(words) <= body_bytes <= words * word_type.word_bytes:
        raise RemoteProtocolError(f"patch: {body_bytes} bytes for a segment of {words} words")
    return SegmentHeader(codec=Codec(codec), body_bytes=body_bytes, pre=Digest(pre), post=Digest(post))


def words_digest(words: Words) -> Digest:
    """BLAKE3 of a segment's words, little-endian."""
    return chunk_digest(np.ascontiguousarray(words).view(np.uint8).data)


def encode_segment(old: Words, new: Words, word_type: WordType, kernels: Kernels) -> tuple[SegmentHeader, bytes]:
    """(header, body) of the shortest way from `old` to `new`.

    EC1 is always tried. Flat can only save tables, so it is tried where tables matter; planes where a sample of the
    segment says that they may be shorter; plain words always bound the result. Equal arguments give equal bytes.
    """
    old, new = _own_words(old, word_type), _own_words(new, word_type)
    if len(old) != len(new):
        raise LocalProtocolError("a patch needs as many old words as new ones")
    coder = FrameCoder()
    codec, body = Codec.EC1, encode_sparse(old, new, word_type, kernels, coder, flat=False)
    if len(body) < _FLAT_BELOW_BYTES:
        rival = encode_sparse(old, new, word_type, kernels, coder, flat=True)
        codec, body = min((codec, body), (Codec.FLAT, rival), key=_length)
    if _planes_may_win(old, new, word_type, coder, len(body)):
        rival = encode_planes(old, new, word_type, coder)
        codec, body = min((codec, body), (Codec.PLANES, rival), key=_length)
    if len(body) >= new.nbytes:
        codec, body = Codec.RAW, new.tobytes()
    header = SegmentHeader(codec=codec, body_bytes=len(body), pre=words_digest(old), post=words_digest(new))
    return header, body


def _own_words(words: Words, word_type: WordType) -> Words:
    """The same words as compiled code wants them: contiguous and aligned."""
    if words.dtype != word_type.dtype or words.ndim != 1 or len(words) > SEGMENT_WORDS:
        raise LocalProtocolError(f"a segment is a line of at most {SEGMENT_WORDS} {word_type.name} words")
    return np.require(words, requirements=("C", "A"))


def _length(candidate: tuple[Codec, bytes]) -> int:
    return len(candidate[1])


def _planes_may_win(old: Words, new: Words, word_type: WordType, coder: FrameCoder, best_bytes: int) -> bool:
    """Planes of a few stripes tell their size within a factor; running them in full costs more than EC1 itself."""
    sample = _STRIPES * _STRIPE_WORDS
    if len(old) <= 4 * sample:
        return True
    starts = np.linspace(0, len(old) - _STRIPE_WORDS, _STRIPES).astype(np.int64)
    chosen = (starts[:, None] + np.arange(_STRIPE_WORDS)).ravel()
    length = len(encode_planes(old[chosen], new[chosen], word_type, coder))
    return length * len(old) < _PLANES_HOPE * best_bytes * sample


def decode_segment(
    old: Words, header: SegmentHeader, body: bytes | memoryview, word_type: WordType, kernels: Kernels
) -> Words:
    """The new words, proven by the digest after.

    Raises `IntegrityError` when `old` is not what the segment starts from or the result not what it promises, and
    `RemoteProtocolError` when the body cannot be read; `old` is never written to.
    """
    old = _own_words(old, word_type)
    if len(body) != header.body_bytes:
        raise RemoteProtocolError(f"patch: a body of {len(body)} bytes where {header.body_bytes} were announced")
    if words_digest(old) != header.pre:
        raise IntegrityError("patch: these are not the words the segment starts from")
    new = _decode(old, header.codec, memoryview(body), word_type, kernels)
    if words_digest(new) != header.post:
        raise IntegrityError("patch: the decoded words are not the promised ones")
    return new


def _decode(old: Words, codec: Codec, body: memoryview, word_type: WordType, kernels: Kernels) -> Words:
    if codec is Codec.RAW:
        return decode_raw(old, body, word_type)
    coder = FrameCoder()
    if codec is Codec.PLANES:
        return decode_planes(old, body, word_type, coder)
    return decode_sparse(old, body, word_type, kernels, coder, flat=codec is Codec.FLAT)
