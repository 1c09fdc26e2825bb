"""The draw in torch operations on the device of the logits, without float64.

Noise is computed in float32, within `_SLACK` of the defined one, for every token. Only tokens whose approximate noisy
logit is within twice that of the row's best can be the draw: one per row, mostly. Their noise is computed on the CPU.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from p2prl.models.seeded_draw.every_token import critical_hashes
from p2prl.models.seeded_draw.gumbel_noise import (
    ADDED,
    BYTES_HASHED,
    FACTOR_1,
    FACTOR_2,
    FINAL_1,
    FINAL_2,
    Indices,
    noise_of,
)
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

_SLACK = 1e-3
"""Largest error of the approximate noise; that of float32 arithmetic is below 1e-5."""

_RELATIVE_SLACK = 1e-6
"""Rounding of a noisy logit, of its size."""

_SERIES_BELOW = 1 / 16
"""−ln(1 − x) is summed from four terms of its series below this, where 1 − x would lose the digits of x."""


def scan(logits: Tensor, rows: RowSettings, *, with_sums: bool) -> Scan:
    """See `rows.Scan`. `logits` (N, V) float32."""
    device = logits.device
    states = torch.from_numpy(rows.states.view(np.int32)).to(device)
    temperatures = torch.from_numpy(rows.temperatures).to(device)
    scaled = logits / temperatures[:, None]
    hashes = _hashes(states, logits.shape[1])
    noisy = scaled + _noise(hashes)
    tokens = noisy.argmax(dim=-1)
    best = noisy.gather(1, tokens[:, None])[:, 0]
    floor = best - (2 * _SLACK + _RELATIVE_SLACK * best.abs())
    near = (noisy >= floor[:, None]) & best.isfinite()[:, None]  # the other rows have their token: see `Scan.tokens`
    owners, candidates = near.nonzero(as_tuple=True)
    result = Scan(
        tokens.cpu().numpy(),
        best.cpu().numpy(),
        torch.logsumexp(scaled, dim=-1).cpu().numpy() if with_sums else np.empty(0, np.float32),
    )
    _replace(result, *(part.cpu().numpy() for part in (owners, candidates, scaled[near], hashes[near])))
    return result


def is_accurate_on(device: str) -> bool:
    """Whether this device's float32 arithmetic keeps the approximate noise well within the slack."""
    hashes = critical_hashes()
    made = _noise(torch.from_numpy(hashes.view(np.int32)).to(device)).cpu().numpy()
    return bool((np.abs(made - noise_of(hashes)) < _SLACK / 2).all())


def _replace(result: Scan, owners: Indices, candidates: Indices, scaled: Floats, bits: NDArray[np.int32]) -> None:
    """Overwrite the draws of `owners` with the best of their `candidates`, by exact noise."""
    noisy = scaled + noise_of(bits.view(np.uint32))
    order = np.lexsort((candidates, -noisy, owners))
    first = order[np.diff(owners[order], prepend=-1) > 0]
    result.best[owners[first]] = noisy[first]
    result.tokens[owners[first]] = candidates[first]


def _noise(hashes: Tensor) -> Tensor:
    """−ln(−ln u) in float32, from the int32 bits of h."""
    is_upper = hashes < 0  # the top bit of h is set: u is at least 1/2
    ratio = (torch.where(is_upper, ~hashes, hashes).float() + 0.5) * 2.0**-32  # 1 − u, or u
    series = ratio * (1 + ratio * (1 / 2 + ratio * (1 / 3 + ratio / 4)))
    exact = -torch.log(torch.where(is_upper, 1 - ratio, ratio))
    return -torch.log(torch.where(is_upper & (ratio < _SERIES_BELOW), series, exact))


def _hashes(states: Tensor, vocabulary: int) -> Tensor:
    """`gumbel_noise.hashes` as int32 of the same bits: products wrap modulo 2^32, shifts keep the sign."""
    tokens = torch.arange(vocabulary, dtype=torch.int32, device=states.device)
    tokens = _rotate(tokens * _signed(FACTOR_1), 15) * _signed(FACTOR_2)
    h = _rotate(states[:, None] ^ tokens, 13) * 5 + _signed(ADDED)
    h = h ^ int(BYTES_HASHED)
    h = (h ^ _shift(h, 16)) * _signed(FINAL_1)
    h = (h ^ _shift(h, 13)) * _signed(FINAL_2)
    return h ^ _shift(h, 16)


def _signed(bits: np.uint32) -> int:
    return int(bits.astype(np.int32))


def _rotate(x: Tensor, bits: int) -> Tensor:
    return (x << bits) | _shift(x, 32 - bits)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign bit are masked away."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
