"""Gumbel noise against murmur3-32 written over bytes and Python integers, and against its own distribution."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.models.seeded_draw import gumbel_noise


def _murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, for whole words."""
    h = 0
    for (k,) in struct.iter_unpack("<I", data):
        k = k * 0xCC9E2D51 % 2**32
        k = (k << 15 | k >> 17) % 2**32
        h ^= k * 0x1B873593 % 2**32
        h = (h << 13 | h >> 19) % 2**32
        h = (h * 5 + 0xE6546B64) % 2**32
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


def _gumbel(seed: int, t: int, v: int) -> float:
    u = (_murmur3_32(struct.pack("<QII", seed, t, v)) + 0.5) / 2**32
    exact: float = struct.unpack("<f", struct.pack("<f", -math.log(-math.log(u))))[0]
    return exact


def test_oracle_gives_published_murmur3_values() -> None:
    assert _murmur3_32(b"") == 0
    assert _murmur3_32(b"test") == 0xBA6BD213
    assert _murmur3_32(b"\x21\x43\x65\x87") == 0xF55B516B


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 40_000)), min_size=1, max_size=4), st.integers(1, 40)
)
def test_noise_equals_the_oracle(rows: list[tuple[int, int]], vocabulary: int) -> None:
    seeds = torch.tensor([seed for seed, _ in rows])
    positions = torch.tensor([[t, t + 1] for _, t in rows])
    made = gumbel_noise.gumbel(seeds, positions, vocabulary)
    assert made.shape == (len(rows), 2, vocabulary)
    assert made.dtype == torch.float32
    expected = [[[_gumbel(seed, p, v) for v in range(vocabulary)] for p in (t, t + 1)] for seed, t in rows]
    torch.testing.assert_close(made, torch.tensor(expected), rtol=2e-7, atol=1e-12)


def test_top_bits_and_large_tokens() -> None:
    seed = 0x7FFFFFFF_80000001
    made = gumbel_noise.gumbel(torch.tensor([seed]), torch.tensor([[32_767]]), 200_000)
    for v in (0, 65_535, 65_536, 131_073, 199_999):
        assert made[0, 0, v].item() == pytest.approx(_gumbel(seed, 32_767, v), rel=2e-7)


def test_noise_is_gumbel_distributed() -> None:
    made = gumbel_noise.gumbel(torch.arange(100), torch.arange(100)[:, None] % 7, 2000).double()
    assert torch.isfinite(made).all()
    assert made.mean().item() == pytest.approx(0.57722, abs=0.01)
    assert made.var().item() == pytest.approx(math.pi**2 / 6, abs=0.03)
    assert torch.quantile(made.flatten()[:100_000], 0.5).item() == pytest.approx(-math.log(math.log(2)), abs=0.02)


def test_argmax_of_logits_and_noise_samples_the_softmax() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    made = gumbel_noise.gumbel(torch.arange(40_000), torch.zeros(40_000, 1, dtype=torch.int64), 4)[:, 0]
    shares = torch.bincount((logits + made).argmax(-1), minlength=4) / 40_000
    torch.testing.assert_close(shares, torch.softmax(logits, 0), atol=0.008, rtol=0)


def test_noise_grows_with_the_hash() -> None:
    edges = np.concatenate(
        [np.arange(1 << 16), (1 << 31) + np.arange(-(1 << 15), 1 << 15), (1 << 32) - np.arange(1 << 16, 0, -1)]
    )
    spread = np.arange(0, 1 << 32, 40_503)
    made = gumbel_noise.noise_of(np.unique(np.concatenate([edges, spread])).astype(np.uint32))
    assert (np.diff(made) >= 0).all()
    assert made[0] == pytest.approx(-math.log(33 * math.log(2)), rel=1e-7)
    assert made[-1] == pytest.approx(33 * math.log(2), rel=1e-7)
