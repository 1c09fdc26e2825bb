"""Hypothesis strategies for words with any bit pattern, and the properties every patch codec has on them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from p2prl.patches.decode import decode_segment
from p2prl.patches.dense_codecs import ZstdCoder, decode_planes, encode_planes
from p2prl.patches.encode import encode_segment
from p2prl.patches.exponent_classes import History
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.sparse_codec import decode_ec2, decode_ec2_both_ways, encode_changes, encode_ec2
from p2prl.patches.words import BF16, WORD_TYPES, Words, WordType

Version = tuple[WordType, Words, Words]
"""Word type, words before and words after."""

BOTH = (NUMPY_KERNELS, fastest_kernels())
word_types = st.sampled_from(list(WORD_TYPES.values()))


def special(word_type: WordType) -> st.SearchStrategy[int]:
    """±0, ±Inf, NaNs, subnormals, and any word at all."""
    infinity = (word_type.exponents - 1) << word_type.mantissa_bits
    sign = 1 << (word_type.bits - 1)
    named = [0, infinity, infinity + 1, sign - 1, 1, infinity - 1]
    return st.sampled_from([*named, *(sign | word for word in named)]) | st.integers(0, 2 * sign - 1)


@st.composite
def versions(draw: st.DrawFn) -> Version:
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


pairs_of_words = arrays.arrays(np.uint16, st.shared(st.integers(0, 60), key="length"), elements=special(BF16))
"""Arrays of the same short length."""


def check_round_trip(case: Version) -> None:
    """Both kernels write the same bytes and decode them to the new words."""
    word_type, old, new = case
    sent = [encode_segment(old, new, word_type, kernels) for kernels in BOTH]
    assert sent[0] == sent[1]
    header, body = sent[0]
    assert len(body) <= new.nbytes
    for kernels in BOTH:
        assert np.array_equal(decode_segment(old, header, body, word_type, kernels), new)


def check_each_codec(case: Version) -> None:
    """The dense codec, and the sparse one without and with a history, reproduce the new words with either kernel."""
    word_type, old, new = case
    earlier = np.roll(old, 1)
    for history in (None, History.none(len(old)), History.none(len(old)).after(earlier, old, word_type)):
        bodies = [encode_ec2(old, new, word_type, kernels, history=history) for kernels in BOTH]
        assert bodies[0] == bodies[1]
        for kernels in BOTH:
            got = decode_ec2(old, memoryview(bodies[0]), word_type, kernels, history=history)
            assert np.array_equal(got, new)
    planes = memoryview(encode_planes(old, new, word_type, ZstdCoder()))
    assert np.array_equal(decode_planes(old, planes, word_type, ZstdCoder()), new)


def check_both_ways(case: Version) -> None:
    """Decoding finds what comparing would: the words that changed, and the patch that leads back to the old ones."""
    word_type, old, new = case
    body = memoryview(encode_ec2(old, new, word_type, NUMPY_KERNELS))
    for kernels in BOTH:
        applied = decode_ec2_both_ways(old, body, word_type, kernels)
        assert np.array_equal(applied.words, new)
        assert np.array_equal(np.sort(applied.places), np.flatnonzero(old != new))
        compared = NUMPY_KERNELS.find(new, old, word_type, body[0], None)
        assert applied.back.groups == compared.groups
        assert np.array_equal(applied.back.gaps, compared.gaps)
        assert np.array_equal(applied.back.steps, compared.steps)
        back = memoryview(encode_changes(applied.back, word_type, kernels))
        assert np.array_equal(decode_ec2(new, back, word_type, NUMPY_KERNELS), old)


def check_small_pair(old: Words, new: Words) -> None:
    """A pair of bf16 words survives encoding and decoding."""
    header, body = encode_segment(old, new, BF16, NUMPY_KERNELS)
    assert np.array_equal(decode_segment(old, header, body, BF16, NUMPY_KERNELS), new)
