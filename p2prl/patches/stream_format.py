"""Layout of a patch stream: a preamble, then a header and a body per segment.

    preamble: magic, word type (1 byte), words of the whole model (8 bytes)
    for each segment, in order: header (`SegmentHeader`), body

Segments are independent. Each has the digests of its old and new words, so segments can be downloaded, decoded and
checked in any order, and only a damaged one is downloaded again. The digest of the old words matters as much as that of
the new ones: steps are relative to the old words, so a segment applied twice would give a wrong result.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import DIGEST_BYTES, Digest, chunk_digest

MAGIC = b"p2prl-patch-2\n"
"""Name and version of the format. A codec or a field that changes its meaning needs a new number."""

PREAMBLE = struct.Struct(f"<{len(MAGIC)}sBQ")

SEGMENT_WORDS = 1 << 22
"""Words in every segment but the last: 8 MiB of bf16. Large enough that tables and digests are below one per cent of
a patch at one per cent of change, small enough that a receiver works in a few such buffers for a model of any size."""

_HEADER = struct.Struct(f"<BI{DIGEST_BYTES}s{DIGEST_BYTES}s")
HEADER_BYTES = _HEADER.size


class Codec(IntEnum):
    """Encoding of a segment's body. A retired number is never used again; 1 and 2 were EC1 and flat."""

    RAW = 0
    PLANES = 3
    EC2 = 4


@dataclass(frozen=True, kw_only=True)
class SegmentHeader:
    """Codec, length and digests of one segment."""

    codec: Codec
    body_bytes: int
    pre: Digest
    """BLAKE3 of the old words."""
    post: Digest
    """BLAKE3 of the new words."""

    def pack(self) -> bytes:
        return _HEADER.pack(self.codec, self.body_bytes, self.pre, self.post)


def read_header(raw: bytes | memoryview, words: int, word_type: WordType) -> SegmentHeader:
    """Decode the header of a segment of `words` words. Raise `RemoteProtocolError` for an impossible size or codec."""
    if len(raw) != HEADER_BYTES:
        raise RemoteProtocolError(f"patch: a segment header has {HEADER_BYTES} bytes, not {len(raw)}")
    codec, body_bytes, pre, post = _HEADER.unpack(raw)
    if codec not in set(Codec):
        raise RemoteProtocolError(f"patch: codec {codec} is unknown")
    if not bool(words) <= body_bytes <= words * word_type.word_bytes:
        raise RemoteProtocolError(f"patch: {body_bytes} bytes for a segment of {words} words")
    return SegmentHeader(codec=Codec(codec), body_bytes=body_bytes, pre=Digest(pre), post=Digest(post))


def segment_spans(words: int) -> list[tuple[int, int]]:
    """(first word, number of words) of each segment of a model of `words` words."""
    return [(start, min(SEGMENT_WORDS, words - start)) for start in range(0, words, SEGMENT_WORDS)]


def words_digest(words: Words) -> Digest:
    """BLAKE3 of a segment's words, little-endian."""
    return chunk_digest(np.ascontiguousarray(words).view(np.uint8).data)


def segment_words(words: Words, word_type: WordType) -> Words:
    """The words of one segment, contiguous and aligned for compiled code. `LocalProtocolError` if they fit none."""
    if words.dtype != word_type.dtype or words.ndim != 1 or len(words) > SEGMENT_WORDS:
        raise LocalProtocolError(f"a segment is one row of at most {SEGMENT_WORDS} {word_type.name} words")
    return np.require(words, requirements=("C", "A"))
