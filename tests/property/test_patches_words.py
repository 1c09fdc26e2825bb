"""Patch codec on any words: exact round trips, equal bytes from both kernels, and only errors on damaged bytes."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.patches.decode import PatchReader, decode_segment
from p2prl.patches.ec2 import decode_ec2, decode_ec2_both_ways
from p2prl.patches.encode import encode_segment
from p2prl.patches.kernel_choice import fastest_kernels
from p2prl.patches.kernels import NUMPY_KERNELS
from p2prl.patches.stream_format import MAGIC, Codec, SegmentHeader, words_digest
from p2prl.patches.words import BF16, Words, WordType
from p2prl_lab.testing.patch_properties import (
    Version,
    check_both_ways,
    check_each_codec,
    check_round_trip,
    check_small_pair,
    pairs_of_words,
    versions,
    word_types,
)

BOTH = (NUMPY_KERNELS, fastest_kernels())


@given(versions())
@settings(max_examples=60, deadline=None)
def test_any_words_survive_either_kernel(case: Version) -> None:
    check_round_trip(case)


@given(versions())
@settings(max_examples=60, deadline=None)
def test_any_words_survive_each_codec(case: Version) -> None:
    check_each_codec(case)


@given(versions())
@settings(max_examples=60, deadline=None)
def test_a_patch_that_is_decoded_tells_the_way_back(case: Version) -> None:
    check_both_ways(case)


@given(pairs_of_words, pairs_of_words)
@settings(max_examples=100, deadline=None)
def test_any_pair_of_small_arrays(old: Words, new: Words) -> None:
    check_small_pair(old, new)


def unproven(old: Words, codec: Codec, body: bytes, word_type: WordType, kernels: Any) -> Words | None:
    """The decoder's output for `body` without a digest check; None when it refuses."""
    header = SegmentHeader(codec=codec, body_bytes=len(body), pre=words_digest(old), post=words_digest(old))
    if codec is Codec.EC2:
        try:
            found = decode_ec2(old, memoryview(body), word_type, kernels)
        except RemoteProtocolError as error:
            with pytest.raises(RemoteProtocolError, match=re.escape(str(error))):
                decode_ec2_both_ways(old, memoryview(body), word_type, kernels)
            return None
        assert np.array_equal(decode_ec2_both_ways(old, memoryview(body), word_type, kernels).words, found)
        return found
    try:
        return decode_segment(old, header, body, word_type, kernels)
    except (RemoteProtocolError, IntegrityError):
        return None


@given(st.data(), versions(), st.sampled_from(list(Codec)))
@settings(max_examples=120, deadline=None)
def test_a_damaged_body_is_refused_or_harmless(data: st.DataObject, case: Version, codec: Codec) -> None:
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
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_words_or_an_error(body: bytes, codec: Codec, word_type: WordType) -> None:
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
