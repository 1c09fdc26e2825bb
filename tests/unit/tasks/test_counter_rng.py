"""Counter-based draws: defined by their bytes, so that every machine and every release draws the same."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import LocalProtocolError
from p2prl.tasks.counter_rng import Draws


def words_of(domain: bytes, seed: int, blocks: int) -> list[int]:
    """Little-endian 32-bit words of SHA-256(length, domain, seed, counter), block after block."""
    digests = (
        hashlib.sha256(bytes([len(domain)]) + domain + seed.to_bytes(8, "little") + block.to_bytes(8, "little"))
        for block in range(blocks)
    )
    return [
        sum(byte << (8 * place) for place, byte in enumerate(digest.digest()[at : at + 4]))
        for digest in digests
        for at in range(0, 32, 4)
    ]


@given(st.binary(max_size=20), st.integers(0, (1 << 63) - 1), st.integers(1, 1 << 16))
def test_draws_are_the_words_of_the_hashes(domain: bytes, seed: int, limit: int) -> None:
    draws = Draws(domain, seed)
    assert [draws.below(limit) for _ in range(24)] == [word % limit for word in words_of(domain, seed, 3)]


@given(st.integers(0, (1 << 63) - 1), st.floats(0, 1))
def test_a_chance_is_a_word_below_its_share_of_all_words(seed: int, probability: float) -> None:
    draws = Draws(b"chance", seed)
    assert [draws.chance(probability) for _ in range(16)] == [
        word / 2**32 < probability for word in words_of(b"chance", seed, 2)
    ]


def test_no_chance_never_happens_and_certainty_always() -> None:
    draws = Draws(b"", 0)
    assert not any(draws.chance(0.0) for _ in range(100))
    assert all(draws.chance(1.0) for _ in range(100))


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_seeds_have_63_bits(seed: int) -> None:
    Draws(b"", 0)
    Draws(b"", (1 << 63) - 1)
    with pytest.raises(LocalProtocolError, match="outside"):
        Draws(b"", seed)
