"""Counter-based Gumbel noise: the same number for (seed, position, token) on every machine.

A token is drawn as argmax_v(logits_v / temperature + gumbel(seed, t, v)), so anyone with the weights can check every
draw with one forward pass. An engine's own seeded sampler would not work: its noise changes with the backend and the
release.

Definition. h = murmur3_32 (x86, hash seed 0) over four little-endian 32-bit words: the seed's low word, the seed's
high word, t, v. u = (h + 1/2) / 2^32. gumbel = −ln(−ln u), computed in float64 and rounded once to float32, so that
libraries whose logarithms differ in the last float64 place still agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from p2prl.errors import MachineError

_C1 = 0xCC9E2D51 - (1 << 32)
_C2 = 0x1B873593
_ADD = 0xE6546B64 - (1 << 32)
_FINAL_1 = 0x85EBCA6B - (1 << 32)
_FINAL_2 = 0xC2B2AE35 - (1 << 32)
_BYTES_HASHED = 16
_LOW_WORD = 0xFFFFFFFF

_STEPS_AHEAD = 16
"""Steps of noise computed at once. More gains nothing, and is wasted when completions end early."""

_ELEMENTS_AHEAD = 1 << 18
"""Most noise computed ahead: for a large vocabulary it is computed step by step, at little cost next to the model."""

MAX_NOISE_ELEMENTS = 1 << 24
"""Most noise computed at once: float64 temporaries of 128 MiB. Callers cut positions to stay below."""


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Noise for rows of positions.

    `seeds` (N,) int64, 63-bit; `positions` (N, T) int64, the index of the token within its completion; both on the
    device that gets the noise. Returns (N, T, `vocabulary`) float32.
    """
    device = seeds.device
    if device.type == "mps":  # no float64 there: compute on the CPU, move the rounded numbers over
        return gumbel(seeds.cpu(), positions.cpu(), vocabulary).to(device)
    # 32-bit words: products wrap modulo 2^32 on CPU and CUDA alike, as the hash needs, at half the memory traffic of
    # int64 with masks. `check_noise` verifies this on the device before sampling.
    state = _absorb(_to_word(seeds & _LOW_WORD), torch.zeros_like(seeds, dtype=torch.int32))
    state = _absorb(_to_word(seeds >> 32), state)
    state = _absorb(_to_word(positions), state[:, None])
    tokens = _scramble(torch.arange(vocabulary, dtype=torch.int32, device=device))
    hashed = _finish(_mix(state[:, :, None] ^ tokens))
    uniform = hashed.to(torch.float64)
    uniform = torch.where(uniform < 0, uniform + 4294967296.0, uniform).add_(0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


class StepNoise:
    """Noise for a batch of completions sampled step by step, computed several steps at once.

    For a small model the forty small operations of one step's noise take as long as a layer.
    """

    def __init__(self, seeds: Tensor, vocabulary: int) -> None:
        """`seeds` (N,) int64 as for `gumbel`."""
        self._seeds = seeds
        self._vocabulary = vocabulary
        self._first = 0
        self._ahead_NKV = torch.empty(len(seeds), 0, vocabulary, device=seeds.device)

    def at(self, step: int) -> Tensor:
        """Noise (N, V) for token `step` of each completion; steps are read in order."""
        if step >= self._first + self._ahead_NKV.shape[1]:
            self._first, self._ahead_NKV = step, self._work(step)
        return self._ahead_NKV[:, step - self._first]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self._seeds, self._ahead_NKV = self._seeds[rows], self._ahead_NKV[rows]

    def _work(self, step: int) -> Tensor:
        count = len(self._seeds)
        ahead = max(1, min(_STEPS_AHEAD, _ELEMENTS_AHEAD // (count * self._vocabulary)))
        steps_K = torch.arange(step, step + ahead, dtype=torch.int64, device=self._seeds.device)
        rows = max(1, MAX_NOISE_ELEMENTS // (ahead * self._vocabulary))
        parts = (self._seeds[i : i + rows] for i in range(0, count, rows))
        return torch.cat([gumbel(seeds, steps_K.expand(len(seeds), ahead), self._vocabulary) for seeds in parts])


def check_noise(device: torch.device) -> None:
    """Raise `MachineError` unless this device gives the defined noise at known positions."""
    seeds = torch.tensor([0x0123456789ABCDEF, (1 << 63) - 1], dtype=torch.int64, device=device)
    positions = torch.tensor([[0, 7], [1, 32_767]], dtype=torch.int64, device=device)
    made = gumbel(seeds, positions, 3)[:, :, 2].flatten().tolist()
    if made != _KNOWN:
        raise MachineError(
            f"sampling noise on {device} is {made}, not {_KNOWN}",
            remedy="Choose another device; work sampled on this one would be rejected.",
        )


_KNOWN = [-0.36623960733413696, -1.0870659351348877, 0.9657083749771118, 0.6183928847312927]


def _to_word(values: Tensor) -> Tensor:
    """The low 32 bits of int64 values below 2^32, as int32 of the same bits."""
    return torch.where(values >= 1 << 31, values - (1 << 32), values).to(torch.int32)


def _rotate(x: Tensor, bits: int) -> Tensor:
    return (x << bits) | _shift(x, 32 - bits)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's is arithmetic, so the copies of the sign bit are masked away."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _scramble(word: Tensor) -> Tensor:
    return _rotate(word * _C1, 15) * _C2


def _mix(state: Tensor) -> Tensor:
    return _rotate(state, 13) * 5 + _ADD


def _absorb(word: Tensor, state: Tensor) -> Tensor:
    return _mix(state ^ _scramble(word))


def _finish(state: Tensor) -> Tensor:
    state = state ^ _BYTES_HASHED
    state = (state ^ _shift(state, 16)) * _FINAL_1
    state = (state ^ _shift(state, 13)) * _FINAL_2
    return state ^ _shift(state, 16)
