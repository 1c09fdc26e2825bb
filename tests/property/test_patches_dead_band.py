"""Dead band, compared with floats in order: words held back, words published, and the largest distance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2prl.patches import dead_band
from p2prl.patches.dead_band import hold_back, widest_band_ulp
from p2prl.patches.words import BF16, FP16, FP32, WORD_TYPES, Words, WordType


def values_of(words: Words, word_type: WordType) -> NDArray[Any]:
    """The float values of 16-bit words."""
    return words.view(np.float16) if word_type is FP16 else (words.astype(np.uint32) << 16).view(np.float32)


def ranks_of(word_type: WordType) -> dict[int, int]:
    """Place of every finite 16-bit word among all of them in the order of their values, −0 before +0."""
    words = np.arange(1 << 16, dtype=np.uint16)
    finite = words[np.isfinite(values_of(words, word_type))]
    values = values_of(finite, word_type)
    by_value = np.lexsort((~np.signbit(values), values))
    return {int(word): rank for rank, word in enumerate(finite[by_value])}


RANKS = {word_type.name: ranks_of(word_type) for word_type in (BF16, FP16)}


@st.composite
def cases(draw: st.DrawFn) -> tuple[WordType, Words, Words, int]:
    """Finite 16-bit words, the fresh ones near the published ones or anywhere at all, and a band."""
    word_type = draw(st.sampled_from([BF16, FP16]))
    finite = np.array(sorted(RANKS[word_type.name]), dtype=np.uint16)
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    length = draw(st.integers(0, 300))
    special = np.array([0, 1, 0x8000, 0x8001, finite[-1], finite.max() & 0x7FFF], dtype=np.uint16)
    published = rng.choice(special if draw(st.booleans()) else finite, length)
    fresh = rng.choice(finite, length)
    near = rng.random(length) < 0.8
    fresh[near] = (published + rng.integers(-6, 7, length).astype(np.uint16))[near]
    fresh[~np.isin(fresh, finite)] = 0
    return word_type, published, fresh, draw(st.integers(0, 5) | st.integers(0, widest_band_ulp(word_type)))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_held_back_words_lie_within_the_band(
    case: tuple[WordType, Words, Words, int],
) -> None:
    word_type, published, fresh, band = case
    ranks = RANKS[word_type.name]
    expected = [
        new if abs(ranks[new] - ranks[old]) > band else old
        for old, new in zip(published.tolist(), fresh.tolist(), strict=True)
    ]
    got = fresh.copy()
    changed = hold_back(got, published, word_type, band_ulp=band)
    assert got.tolist() == expected
    assert changed == sum(a != b for a, b in zip(expected, published.tolist(), strict=True))
    for word, training in zip(expected, fresh.tolist(), strict=True):
        assert abs(ranks[word] - ranks[training]) <= band, "no published word is further from training than the band"
    if band == 0:
        assert np.array_equal(got, fresh)


@given(st.integers(0, 1 << 30), st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_held_back_fp32_words(seed: int, steps: int, band: int) -> None:
    published = np.random.default_rng(seed).standard_normal(50).astype(np.float32)
    fresh = published.copy()
    for _ in range(steps):
        fresh = np.nextafter(fresh, np.float32(np.inf))
    for old, new in ((published, fresh), (fresh, published)):
        got = new.view(np.uint32).copy()
        changed = hold_back(got, old.view(np.uint32), FP32, band_ulp=band)
        assert np.array_equal(got.view(np.float32), new if steps > band else old)
        assert changed == (50 if steps > band else 0)


@pytest.mark.parametrize("word_type", WORD_TYPES.values(), ids=WORD_TYPES)
def test_ends_of_the_line_are_far_apart(word_type: WordType) -> None:
    """Steps counted modulo the number of words would make them neighbors."""
    largest = ((word_type.exponents - 1) << word_type.mantissa_bits) - 1
    ends = np.array([largest, largest | (1 << (word_type.bits - 1))], dtype=word_type.dtype)
    got = ends[::-1].copy()
    assert hold_back(got, ends, word_type, band_ulp=widest_band_ulp(word_type)) == 2
    assert np.array_equal(got, ends[::-1])


def test_drifting_words_are_published_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random walks of a few steps in blocks of seven words: the error stays within the band, and fewer words change."""
    monkeypatch.setattr(dead_band, "_BLOCK_WORDS", 7)
    rng = np.random.default_rng(4)
    training = rng.integers(0x3C00, 0x3D00, 1000).astype(np.uint16)
    walks = rng.integers(-1, 2, (30, 1000)).astype(np.uint16)
    sent = {}
    for band in (0, 1, 2, 4):
        published, fresh, sent[band] = training, training, 0
        for walk in walks:
            fresh = fresh + walk
            weights = fresh.copy()
            changed = hold_back(weights, published, BF16, band_ulp=band)
            assert changed == int(np.count_nonzero(weights != published))
            assert np.abs(weights.astype(int) - fresh.astype(int)).max() <= band
            published, sent[band] = weights, sent[band] + changed
    assert sent[0] > 2 * sent[1] > 4 * sent[2] > 8 * sent[4] > 0
    assert sent[0] == int(np.count_nonzero(walks))
