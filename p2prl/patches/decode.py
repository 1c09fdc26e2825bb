"""Patch decoder: patch streams and old words in, new words out, segment after segment and checked by digests.

The receiver's own layout determines the number and type of words. A stream that contradicts it is refused before
anything is allocated for it. A route of several patches is applied in one pass, so the words of intermediate versions
never exist outside the memory of one segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.patches.dense_codecs import ZstdCoder, decode_planes, decode_raw
from p2prl.patches.kernels import Applied, Kernels
from p2prl.patches.sparse_codec import decode_ec2, decode_ec2_both_ways
from p2prl.patches.stream_format import (
    HEADER_BYTES,
    MAGIC,
    PREAMBLE,
    Codec,
    SegmentHeader,
    read_header,
    segment_spans,
    segment_words,
    words_digest,
)
from p2prl.patches.words import Words, WordType, word_type_of
from p2prl.protocol.digests import Digest


class PatchReader:
    """Splits a stream into segments as its bytes arrive. Holds at most one unfinished segment."""

    def __init__(self, *, words: int, word_type: WordType) -> None:
        self._words = words
        self._word_type = word_type
        self._spans = segment_spans(words)
        self._partial = bytearray()
        self._needed = PREAMBLE.size
        self._begun = False
        self._next = 0
        self._header: SegmentHeader | None = None

    @property
    def finished(self) -> bool:
        """Whether every segment has arrived."""
        return self._begun and self._next == len(self._spans)

    def receive(self, data: bytes | memoryview) -> list[tuple[SegmentHeader, bytes]]:
        """Return the segments that `data` completes, in order. Raise `RemoteProtocolError` for an impossible stream."""
        segments = []
        view = memoryview(data)
        while view:
            if self.finished:
                raise RemoteProtocolError("patch: bytes after the last segment")
            missing = self._needed - len(self._partial)
            self._partial += view[:missing]
            view = view[missing:]
            if len(self._partial) == self._needed:
                part = bytes(self._partial)
                self._partial.clear()
                segments += self._take(part)
        return segments

    def _take(self, part: bytes) -> list[tuple[SegmentHeader, bytes]]:
        if not self._begun:
            magic, code, words = PREAMBLE.unpack(part)
            if magic != MAGIC:
                raise RemoteProtocolError(_foreign(magic))
            if word_type_of(code) is not self._word_type or words != self._words:
                raise RemoteProtocolError(f"patch: {words} words of type {code} are not this model's")
            self._begun = True
            self._needed = HEADER_BYTES
            return []
        if self._header is None:
            self._header = read_header(part, self._spans[self._next][1], self._word_type)
            self._needed = self._header.body_bytes
            return []
        segment = (self._header, part)
        self._header = None
        self._needed = HEADER_BYTES
        self._next += 1
        return [segment]


def _foreign(magic: bytes) -> str:
    if magic[:-2] != MAGIC[:-2]:
        return "patch: not a patch of this format"
    return "patch: written by another version of p2prl; the complete weights are downloaded instead"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """One segment of new words."""

    start: int
    """Its first word."""
    words: Words
    digest: Digest | None
    """Digest of the words; None where no patch was applied."""
    old: Words | None = None
    """The words that the first patch applied to, if it was asked for."""
    applied: Applied | None = None
    """What changed from `old`, if the route is one patch, and sparse in this segment."""


def apply_route(
    streams: Sequence[Iterable[bytes | memoryview]],
    old_words: Callable[[int, int], Words],
    *,
    words: int,
    word_type: WordType,
    kernels: Kernels,
    both_ways: bool = False,
) -> Iterator[Rebuilt]:
    """Apply patches in a row; yield the last version's segments in order, each with the digest that the patch names.

    `old_words(start, count)` gives the words that the first patch starts from; `streams` are the patches' bytes in
    pieces. Every segment passes through all patches before the next one is read. Digests are compared once, at the end:
    each takes a third as long as a decoding, and a base or a patch that is wrong gives wrong words. `both_ways` also
    yields the old words and the way back to them.

    Raises `RemoteProtocolError` for bytes that are no patch of this model, end too early or go on after the last
    segment, and `IntegrityError` if the words do not have the digest.
    """
    steps = [_segments(stream, PatchReader(words=words, word_type=word_type)) for stream in streams]
    for start, count in segment_spans(words):
        old = new = old_words(start, count)
        digest = applied = None
        for step in steps:
            header, body = next(step)
            digest = header.post
            if both_ways and len(steps) == 1 and header.codec is Codec.EC2:
                applied = _decode_both_ways(old, header, body, word_type, kernels)
                new = applied.words
            else:
                new = decode_unchecked(new, header, body, word_type, kernels)
        if digest is not None and words_digest(new) != digest:
            raise IntegrityError("patch: the decoded words do not match their digest")
        yield Rebuilt(start, new, digest, old if both_ways else None, applied)
    for step in steps:
        if next(step, None) is not None:
            raise RemoteProtocolError("patch: more segments than the model has")


def _segments(stream: Iterable[bytes | memoryview], reader: PatchReader) -> Iterator[tuple[SegmentHeader, bytes]]:
    for piece in stream:
        yield from reader.receive(piece)
    if not reader.finished:
        raise RemoteProtocolError("patch: the stream ends too early")


def decode_segment(
    old: Words, header: SegmentHeader, body: bytes | memoryview, word_type: WordType, kernels: Kernels
) -> Words:
    """Return the new words of one segment, checked by its digests. `old` is never written to.

    Raises `IntegrityError` if `old` or the result does not match the header's digests, and `RemoteProtocolError` if the
    body cannot be decoded.
    """
    old = segment_words(old, word_type)
    if words_digest(old) != header.pre:
        raise IntegrityError("patch: the old words do not match the segment's base digest")
    new = decode_unchecked(old, header, body, word_type, kernels)
    if words_digest(new) != header.post:
        raise IntegrityError("patch: the decoded words do not match their digest")
    return new


def decode_unchecked(
    old: Words, header: SegmentHeader, body: bytes | memoryview, word_type: WordType, kernels: Kernels
) -> Words:
    """As `decode_segment`, without a look at the digests: for the inner steps of a route whose end is checked."""
    old = segment_words(old, word_type)
    _check_length(header, body)
    if header.codec is Codec.RAW:
        return decode_raw(old, memoryview(body), word_type)
    if header.codec is Codec.PLANES:
        return decode_planes(old, memoryview(body), word_type, ZstdCoder())
    return decode_ec2(old, memoryview(body), word_type, kernels)


def _decode_both_ways(
    old: Words, header: SegmentHeader, body: bytes | memoryview, word_type: WordType, kernels: Kernels
) -> Applied:
    _check_length(header, body)
    return decode_ec2_both_ways(segment_words(old, word_type), memoryview(body), word_type, kernels)


def _check_length(header: SegmentHeader, body: bytes | memoryview) -> None:
    if len(body) != header.body_bytes:
        raise RemoteProtocolError(f"patch: a body of {len(body)} bytes where {header.body_bytes} were announced")
