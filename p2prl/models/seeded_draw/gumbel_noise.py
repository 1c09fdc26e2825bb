"""Counter-based Gumbel noise: the same number for (seed, position, token) on every machine.

A token is drawn as argmax_v(logits_v / temperature + gumbel(seed, t, v)), so anyone with the weights can check every
draw with one forward pass. An engine's own seeded sampler would not work: its noise changes with the backend and the
release.

Definition. h = murmur3_32 (x86, hash seed 0) over four little-endian 32-bit integers: the seed's low half, the seed's
high half, t, v. u = (h + 1/2) / 2^32. gumbel = −ln(−ln u), computed in float64 and rounded once to float32, so that
libraries whose logarithms differ in the last float64 place still agree.

This module is the definition, in numpy, where unsigned products wrap as the hash needs. Engines draw with
`p2prl/models/seeded_draw`, which gives the same tokens at a small part of the cost.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Hashes = NDArray[np.uint32]
Indices = NDArray[np.int64]

FACTOR_1 = np.uint32(0xCC9E2D51)
FACTOR_2 = np.uint32(0x1B873593)
ADDED = np.uint32(0xE6546B64)
FINAL_1 = np.uint32(0x85EBCA6B)
FINAL_2 = np.uint32(0xC2B2AE35)
BYTES_HASHED = np.uint32(16)


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Noise of every token.

    `seeds` (N,) int64, 63-bit; `positions` (N, T) int64, the index of the token within its completion. Returns
    (N, T, `vocabulary`) float32 on the device of the seeds. For one position the float64 temporaries of a vocabulary of
    151,936 are 1.2 MB.
    """
    states_NT = row_states(seeds.cpu().numpy()[:, None], positions.cpu().numpy())
    return torch.from_numpy(noise_of(hashes(states_NT[:, :, None], scrambled(vocabulary)))).to(seeds.device)


def row_states(seeds: Indices, positions: Indices) -> Hashes:
    """Hash state after seed and position: the part of the hash that all tokens of a draw share.

    The shapes are broadcast against each other.
    """
    states = _seed_states(seeds.astype(np.int64).tobytes()).reshape(seeds.shape)
    return _mix(states ^ scramble(positions.astype(np.uint32)))


@lru_cache(maxsize=8)
def _seed_states(seeds: bytes) -> Hashes:
    """Hash states after int64 seeds. Kept, because a batch asks for the same ones at every step."""
    low, high = np.frombuffer(seeds, dtype="<u4").reshape(-1, 2).T
    return _mix(_mix(scramble(low)) ^ scramble(high))


def scrambled(vocabulary: int) -> Hashes:
    """The part of the hash that depends on the token alone, for every token; (`vocabulary`,)."""
    return scramble(np.arange(vocabulary, dtype=np.uint32))


def scramble(values: Hashes) -> Hashes:
    """First half of absorbing 32-bit integers into the hash."""
    return _rotate(values * FACTOR_1, 15) * FACTOR_2


def hashes(states: Hashes, tokens: Hashes) -> Hashes:
    """Hashes h from states of rows and scrambled tokens, broadcast against each other."""
    h = _mix(states ^ tokens)
    h ^= BYTES_HASHED
    h ^= h >> 16
    h *= FINAL_1
    h ^= h >> 13
    h *= FINAL_2
    h ^= h >> 16
    return h


def noise_of(h: Hashes) -> NDArray[np.float32]:
    """The noise of hashes: grows with the hash."""
    u = h.astype(np.float64)
    u += 0.5
    u *= 2.0**-32
    np.log(u, out=u)
    np.negative(u, out=u)
    np.log(u, out=u)
    np.negative(u, out=u)
    return u.astype(np.float32)


def _mix(state: Hashes) -> Hashes:
    return _rotate(state, 13) * np.uint32(5) + ADDED


def _rotate(x: Hashes, bits: int) -> Hashes:
    high = x << np.uint32(bits)
    high |= x >> np.uint32(32 - bits)
    return high
