"""Patch codecs on any words and any bytes: exact round trips, equal kernels, errors only."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.patches.decode import PatchReader, decode_segment
from p2prl.patches.dense_codecs import decode_planes, encode_planes
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.sparse_codecs import decode_sparse, encode_sparse
from p2prl.patches.stream_format import MAGIC, Codec, SegmentHeader, words_digest
from p2prl.patches.words import BF16, WORD_TYPES, Words, WordType
from p2prl.patches.zstd_coder import ZstdCoder

BOTH = (NUMPY_KERNELS, fastest_kernels())
word_types = st.sampled_from(list(WORD_TYPES.values()))


def special(word_type: WordType) -> st.SearchStrategy[int]:
    """±0, ±Inf, NaNs, subnormals, and any word at all."""
    infinity = (word_type.exponents - 1) << word_type.mantissa_bits
    sign = 1 << (word_type.bits - 1)
    named = [0, infinity, infinity + 1, sign - 1, 1, infinity - 1]
    return st.sampled_from([*named, *(sign | word for word in named)]) | st.integers(0, 2 * sign - 1)


@st.composite
def versions(draw: st.DrawFn) -> tuple[WordType, Words, Words]:
    """Words before and after: a few special changes, many single steps of any density, or both."""
    word_type = draw(word_types)
    length = draw(st.integers(0, 400) | st.sampled_from([5000, 70_000]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    old = draw(
        st.sampled_from(
            [
                rng.integers(0, 1 << word_type.bits, length).astype(word_type.dtype),
                (rng.standard_normal(length) * 0.02).astype(np.float32).view(np.uint32).astype(word_type.dtype)
                if word_type.bits == 32
                else (rng.standard_normal(length).astype(np.float32).view(np.uint32) >> 16).astype(word_type.dtype),
                np.full(length, draw(special(word_type)), dtype=word_type.dtype),
            ]
        )
    )
    new = old.copy()
    moved = rng.random(length) < draw(st.sampled_from([0, 0.003, 0.1, 0.5, 0.97, 1]))
    reach = draw(st.sampled_from([1, 2, 300]))
    new[moved] += rng.integers(-reach, reach + 1, int(moved.sum())).astype(word_type.dtype)
    for _ in range(draw(st.integers(0, 8)) if length else 0):
        new[draw(st.integers(0, length - 1))] = draw(special(word_type))
    return word_type, old, new


@given(versions())
@settings(max_examples=120, deadline=None)
def test_round_trip_with_either_kernel(case: tuple[WordType, Words, Words]) -> None:
    word_type, old, new = case
    sent = [encode_segment(old, new, word_type, kernels) for kernels in BOTH]
    assert sent[0] == sent[1]
    header, body = sent[0]
    assert len(body) <= new.nbytes
    for kernels in BOTH:
        assert np.array_equal(decode_segment(old, header, body, word_type, kernels), new)


@given(versions())
@settings(max_examples=120, deadline=None)
def test_round_trip_of_each_codec(case: tuple[WordType, Words, Words]) -> None:
    word_type, old, new = case
    coder = ZstdCoder()
    for flat in (True, False):
        bodies = [encode_sparse(old, new, word_type, kernels, coder, flat=flat) for kernels in BOTH]
        assert bodies[0] == bodies[1]
        for kernels in BOTH:
            got = decode_sparse(old, memoryview(bodies[0]), word_type, kernels, coder, flat=flat)
            assert np.array_equal(got, new)
    planes = memoryview(encode_planes(old, new, word_type, coder))
    assert np.array_equal(decode_planes(old, planes, word_type, coder), new)


pair_of_words = arrays.arrays(np.uint16, st.shared(st.integers(0, 60), key="length"), elements=special(BF16))


@given(pair_of_words, pair_of_words)
@settings(max_examples=200, deadline=None)
def test_round_trip_of_small_arrays(old: Words, new: Words) -> None:
    header, body = encode_segment(old, new, BF16, NUMPY_KERNELS)
    assert np.array_equal(decode_segment(old, header, body, BF16, NUMPY_KERNELS), new)


def unproven(old: Words, codec: Codec, body: bytes, word_type: WordType, kernels: Any) -> Words | None:
    """What the decoder makes of `body` when nobody vouches for the result; None when it refuses."""
    header = SegmentHeader(codec=codec, body_bytes=len(body), pre=words_digest(old), post=words_digest(old))
    if codec in (Codec.EC1, Codec.FLAT):
        try:
            return decode_sparse(old, memoryview(body), word_type, kernels, ZstdCoder(), flat=codec is Codec.FLAT)
        except RemoteProtocolError:
            return None
    try:
        return decode_segment(old, header, body, word_type, kernels)
    except (RemoteProtocolError, IntegrityError):
        return None


@given(st.data(), versions(), st.sampled_from(list(Codec)))
@settings(max_examples=250, deadline=None)
def test_damaged_body_is_refused_or_harmless(
    data: st.DataObject, case: tuple[WordType, Words, Words], codec: Codec
) -> None:
    word_type, old, new = case
    header, body = encode_segment(old, new, word_type, NUMPY_KERNELS)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4)) if body else 0):
        place = data.draw(st.integers(0, min(len(damaged) - 1, 80)) | st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.none() | st.integers(0, len(damaged)))
    bad = bytes(damaged[:cut])
    seen = []
    for kernels in BOTH:
        got = unproven(old, data.draw(st.just(header.codec)), bad, word_type, kernels)
        assert got is None or got.shape == old.shape
        seen.append(None if got is None else got.tobytes())
        unproven(old, codec, bad, word_type, kernels)
        try:
            proven = decode_segment(old, replace(header, body_bytes=len(bad)), bad, word_type, kernels)
        except (RemoteProtocolError, IntegrityError):
            continue
        assert np.array_equal(proven, new)
    assert seen[0] == seen[1]


@given(st.binary(max_size=300), st.sampled_from(list(Codec)), word_types)
@settings(max_examples=300, deadline=None)
def test_any_body_is_words_or_an_error(body: bytes, codec: Codec, word_type: WordType) -> None:
    old = np.arange(900, dtype=word_type.dtype) * word_type.dtype.type(64)
    made = [unproven(old, codec, body, word_type, kernels) for kernels in BOTH]
    assert (made[0] is None) == (made[1] is None)
    if made[0] is not None and made[1] is not None:
        assert np.array_equal(made[0], made[1])


@given(st.binary(max_size=400), st.integers(0, 100))
def test_any_stream_is_a_patch_or_an_error(data: bytes, words: int) -> None:
    reader = PatchReader(words=words, word_type=BF16)
    with contextlib.suppress(RemoteProtocolError):
        assert reader.receive(data) == []
        assert len(data) < len(MAGIC) + 9  # the preamble is incomplete, so nothing could be refused yet
