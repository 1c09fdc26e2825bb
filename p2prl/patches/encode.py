"""Patch encoder: old and new words in, patch stream out. Each segment gets the codec that makes it smallest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from p2prl.errors import LocalProtocolError
from p2prl.patches.dense_codecs import ZstdCoder, encode_planes
from p2prl.patches.kernels import Applied, Kernels
from p2prl.patches.sparse_codec import encode_changes, encode_ec2
from p2prl.patches.stream_format import (
    MAGIC,
    PREAMBLE,
    Codec,
    SegmentHeader,
    segment_spans,
    segment_words,
    words_digest,
)
from p2prl.patches.words import Words, WordType
from p2prl.protocol.digests import Digest

_STRIPES, _STRIPE_WORDS = 8, 8192
"""The sample that predicts the size of the planes: 64 Ki words from all over the segment, 1/64 of the work."""

_SPARSE_SHARE = 4
"""No sample is taken where EC2 needs less than one part in this many of the words: planes were 2.8 times as large in
such segments, and 1.5 times smaller than the words in their best case, a keyframe."""

_PLANES_MARGIN = 1.5
"""Planes are encoded in full if the sample predicts at most this multiple of the best size so far. A sample's frames
are short, so it overestimates."""


def encode_patch(
    pairs: Iterable[tuple[Words, Words]], *, words: int, word_type: WordType, kernels: Kernels
) -> Iterator[bytes]:
    """Yield the stream in pieces: the preamble, then one piece per segment.

    `pairs` gives old and new words span after span (`segment_spans`). At most one pair is held at a time.
    """
    yield PREAMBLE.pack(MAGIC, word_type.code, words)
    spans = segment_spans(words)
    count = 0
    for count, (old, new) in enumerate(pairs, 1):
        if count > len(spans) or len(old) != spans[count - 1][1]:
            raise LocalProtocolError("the pairs do not have the lengths of the segments")
        header, body = encode_segment(old, new, word_type, kernels)
        yield header.pack() + body
    if count != len(spans):
        raise LocalProtocolError(f"a patch of {words} words has {len(spans)} segments, not {count}")


def encode_segment(
    old: Words, new: Words, word_type: WordType, kernels: Kernels, *, digests: tuple[Digest, Digest] | None = None
) -> tuple[SegmentHeader, bytes]:
    """(header, body) of the smallest encoding of `new` relative to `old`. `digests` are those of both, if known.

    EC2 is tried unless the old words are zeros as in a keyframe, planes if a sample of the segment predicts a gain.
    Plain words bound the result. Equal arguments give equal bytes.
    """
    old, new = segment_words(old, word_type), segment_words(new, word_type)
    if len(old) != len(new):
        raise LocalProtocolError("a patch needs as many old words as new ones")
    coder = ZstdCoder()
    if _is_keyframe(old, new):
        codec, body = Codec.PLANES, encode_planes(old, new, word_type, coder)
    else:
        codec, body = Codec.EC2, encode_ec2(old, new, word_type, kernels)
    if codec is Codec.EC2 and _planes_may_win(old, new, word_type, coder, len(body)):
        rival = encode_planes(old, new, word_type, coder)
        codec, body = min((codec, body), (Codec.PLANES, rival), key=_length)
    if len(body) >= new.nbytes:
        codec, body = Codec.RAW, new.tobytes()
    pre, post = (words_digest(old), words_digest(new)) if digests is None else digests
    header = SegmentHeader(codec=codec, body_bytes=len(body), pre=pre, post=post)
    return header, body


def encode_way_back(
    applied: Applied, word_type: WordType, kernels: Kernels, *, digests: tuple[Digest, Digest]
) -> tuple[SegmentHeader, bytes] | None:
    """(header, body) of the patch back from a segment that was decoded; `digests` are those of its new and old words.

    Nothing is compared, as `encode_segment` would; None where another codec may be shorter than EC2.
    """
    body = encode_changes(applied.back, word_type, kernels)
    if _SPARSE_SHARE * len(body) >= applied.words.nbytes:
        return None
    return SegmentHeader(codec=Codec.EC2, body_bytes=len(body), pre=digests[0], post=digests[1]), body


def _is_keyframe(old: Words, new: Words) -> bool:
    """Whether most words are new and the old ones tell nothing: there EC2 loses, for 140 to 520 MB and ten times the
    work of the planes."""
    return not old.any() and 2 * int(np.count_nonzero(new)) > len(new)


def _length(candidate: tuple[Codec, bytes]) -> int:
    return len(candidate[1])


def _planes_may_win(old: Words, new: Words, word_type: WordType, coder: ZstdCoder, best_bytes: int) -> bool:
    """Whether a sample predicts shorter planes. Encoding them in full costs more time than EC2 itself."""
    sample = _STRIPES * _STRIPE_WORDS
    if len(old) <= 4 * sample:
        return True
    if _SPARSE_SHARE * best_bytes < new.nbytes:
        return False
    starts = np.linspace(0, len(old) - _STRIPE_WORDS, _STRIPES).astype(np.int64)
    chosen = (starts[:, None] + np.arange(_STRIPE_WORDS)).ravel()
    length = len(encode_planes(old[chosen], new[chosen], word_type, coder))
    return length * len(old) < _PLANES_MARGIN * best_bytes * sample
