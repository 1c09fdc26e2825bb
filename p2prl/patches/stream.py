"""A patch as a byte stream: a preamble, then segment after segment, written and read in the memory of one segment.

    preamble: magic, word type (1 byte), words of the whole model (8 bytes)
    for each segment, in order: header (`segments.SegmentHeader`), body

The reader is told by its own layout how many words there are and of what type; a stream that says otherwise is
refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator

from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.patches.kernels import Kernels
from p2prl.patches.segments import (
    HEADER_BYTES,
    SEGMENT_WORDS,
    SegmentHeader,
    decode_segment,
    encode_segment,
    read_header,
)
from p2prl.patches.words import Words, WordType, word_type_of

MAGIC = b"p2prl-patch-1\n"
"""Names the format and its version; a codec or field that changes meaning gets another number."""

_PREAMBLE = struct.Struct(f"<{len(MAGIC)}sBQ")


def segment_spans(words: int) -> list[tuple[int, int]]:
    """(first word, number of words) of each segment of a model of `words` words."""
    return [(start, min(SEGMENT_WORDS, words - start)) for start in range(0, words, SEGMENT_WORDS)]


def encode_patch(
    pairs: Iterable[tuple[Words, Words]], *, words: int, word_type: WordType, kernels: Kernels
) -> Iterator[bytes]:
    """The stream in pieces, one for the preamble and one for each segment.

    `pairs` gives old and new words span after span (`segment_spans`); at most one pair is held at a time.
    """
    yield _PREAMBLE.pack(MAGIC, word_type.code, words)
    spans = segment_spans(words)
    count = 0
    for count, (old, new) in enumerate(pairs, 1):
        if count > len(spans) or len(old) != spans[count - 1][1]:
            raise LocalProtocolError("a patch is made of segments of the lengths of its spans")
        header, body = encode_segment(old, new, word_type, kernels)
        yield header.pack() + body
    if count != len(spans):
        raise LocalProtocolError(f"a patch of {words} words has {len(spans)} segments, not {count}")


class PatchReader:
    """Cuts a stream into segments as its bytes arrive. Holds at most one unfinished segment."""

    def __init__(self, *, words: int, word_type: WordType) -> None:
        self._words = words
        self._word_type = word_type
        self._spans = segment_spans(words)
        self._held = bytearray()
        self._want = _PREAMBLE.size
        self._begun = False
        self._next = 0
        self._header: SegmentHeader | None = None

    @property
    def finished(self) -> bool:
        """Every segment has come."""
        return self._begun and self._next == len(self._spans)

    def receive(self, data: bytes | memoryview) -> list[tuple[SegmentHeader, bytes]]:
        """The segments that `data` completes, in order. Raises `RemoteProtocolError` for what no patch can hold."""
        segments = []
        view = memoryview(data)
        while view:
            if self.finished:
                raise RemoteProtocolError("patch: bytes after the last segment")
            missing = self._want - len(self._held)
            self._held += view[:missing]
            view = view[missing:]
            if len(self._held) == self._want:
                part = bytes(self._held)
                self._held.clear()
                segments += self._take(part)
        return segments

    def _take(self, part: bytes) -> list[tuple[SegmentHeader, bytes]]:
        if not self._begun:
            magic, code, words = _PREAMBLE.unpack(part)
            if magic != MAGIC:
                raise RemoteProtocolError("patch: not a patch of this format")
            if word_type_of(code) is not self._word_type or words != self._words:
                raise RemoteProtocolError(f"patch: {words} words of type {code} are not this model's")
            self._begun = True
            self._want = HEADER_BYTES
            return []
        if self._header is None:
            self._header = read_header(part, self._spans[self._next][1], self._word_type)
            self._want = self._header.body_bytes
            return []
        segment = (self._header, part)
        self._header = None
        self._want = HEADER_BYTES
        self._next += 1
        return [segment]


def apply_patch(
    pieces: Iterable[bytes | memoryview],
    old_words: Callable[[int, int], Words],
    *,
    words: int,
    word_type: WordType,
    kernels: Kernels,
) -> Iterator[tuple[int, Words]]:
    """(first word, new words) of segment after segment, each proven by its digests.

    `old_words(start, count)` gives the receiver's own words. Raises `RemoteProtocolError` for bytes that are no patch
    of this model or end too early, and `IntegrityError` when a segment does not start or end as it promises.
    """
    reader = PatchReader(words=words, word_type=word_type)
    spans = iter(segment_spans(words))
    for piece in pieces:
        for header, body in reader.receive(piece):
            start, count = next(spans)
            yield start, decode_segment(old_words(start, count), header, body, word_type, kernels)
    if not reader.finished:
        raise RemoteProtocolError("patch: the stream ends too early")
