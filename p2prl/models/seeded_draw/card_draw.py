"""The draw on a CUDA card in two Triton kernels: nothing returns to the host, so it can stand in a CUDA graph.

The first takes blocks of tokens. Of each it keeps the largest approximate noisy logit, in float32, and its part of the
sum of exponentials. The second computes the defined noise, in float64, of the blocks that can still hold the draw: one
a row, mostly, and every one that ties.

Importing this needs Triton, which torch for CUDA brings.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from p2prl.models.seeded_draw import every_token
from p2prl.models.seeded_draw.every_token import KnownRows, critical_hashes
from p2prl.models.seeded_draw.gumbel_noise import ADDED, BYTES_HASHED, FACTOR_1, FACTOR_2, FINAL_1, FINAL_2, noise_of

_BLOCK = 1024
"""Tokens that share a bound: fewer make the first kernel write more, more make the second compute more."""

_BLOCKS = 1024
"""Most blocks of a vocabulary without a kernel of its own: a million tokens."""

_MOST_STRIDE = 1 << 31
"""From here on a number is a 64-bit one in Triton, which is another kernel."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_SLACK = tl.constexpr(1e-3)
"""Largest error of the approximate noise; that of float32 arithmetic is below 1e-5."""

_RELATIVE_SLACK = tl.constexpr(1e-6)
"""Rounding of a noisy logit, of its size."""

_SERIES_BELOW = tl.constexpr(1 / 16)
"""−ln(1 − x) is summed from four terms of its series below this, where 1 − x would lose the digits of x."""

_HALF, _ALL_BITS = tl.constexpr(1 << 31), tl.constexpr((1 << 32) - 1)
_UNIT = tl.constexpr(2.0**-32)
_FACTOR_1, _FACTOR_2 = tl.constexpr(int(FACTOR_1)), tl.constexpr(int(FACTOR_2))
_ADDED, _BYTES_HASHED = tl.constexpr(int(ADDED)), tl.constexpr(int(BYTES_HASHED))
_FINAL_1, _FINAL_2 = tl.constexpr(int(FINAL_1)), tl.constexpr(int(FINAL_2))
_INFINITY = tl.constexpr(float("inf"))

log = logging.getLogger("p2prl.models")


def draw_on_card(
    logits_NV: Tensor, temperatures_N: Tensor, seeds_N: Tensor, positions_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens (N,) int64 as of `draw.draw`, and their log-probs (N,) float32 at the temperature.

    All tensors are on one CUDA device, and nothing waits for it. `logits_NV` of any float dtype; `temperatures_N`
    float, above 0; `seeds_N` 63-bit and `positions_N` int64. `is_right_on` has compiled all that this needs, for a
    vocabulary within the protocol's limit.
    """
    count, vocabulary = logits_NV.shape
    if logits_NV.dtype not in _DTYPES:
        logits_NV = logits_NV.float()
    if logits_NV.stride(1) != 1 or logits_NV.stride(0) >= _MOST_STRIDE:
        logits_NV = logits_NV.contiguous()
    stride = logits_NV.stride(0) if count > 1 else 0  # of a single row it can be anything
    device, blocks = logits_NV.device, triton.cdiv(vocabulary, _BLOCK)
    tokens_N = torch.empty(count, dtype=torch.int64, device=device)
    logprobs_N = torch.empty(count, dtype=torch.float32, device=device)
    if not count:
        return tokens_N, logprobs_N
    bounds_NB, tops_NB, sums_NB = torch.empty(3, count, blocks, dtype=torch.float32, device=device)
    broken_NB = torch.empty(count, blocks, dtype=torch.int32, device=device)
    settings = (temperatures_N.float(), seeds_N.long(), positions_N.long())
    rows = (logits_NV, stride, *(each.contiguous() for each in settings))  # the kernels know no other stride of these
    parts = (bounds_NB, tops_NB, sums_NB, broken_NB)
    with torch.cuda.device_of(logits_NV):  # type: ignore[no-untyped-call]
        _bound[(count, blocks)](*rows, *parts, vocabulary, blocks, BLOCK=_BLOCK)
        _choose[(count,)](
            *rows,
            *parts,
            tokens_N,
            logprobs_N,
            vocabulary,
            blocks,
            BLOCK=_BLOCK,
            BLOCKS=max(_BLOCKS, triton.next_power_of_2(blocks)),
        )
    return tokens_N, logprobs_N


@cache
def is_right_on(device: torch.device) -> bool:
    """Whether this device draws the known tokens, and its float32 keeps the approximate noise well within the slack.

    It compiles what later draws need. False, with the cause in the log, also where Triton cannot compile: it needs a C
    compiler and the right to start it, or what `kept_kernels` keeps.
    """
    if fault := fault_on(device):
        log.warning("each token waits for %s, a slower way: %s", device, fault)
    return not fault


def fault_on(device: torch.device) -> str:
    """Why this device must not draw, in one line; empty if it may. See `is_right_on`."""
    try:
        if all(_draws_known(device, dtype) for dtype in _DTYPES) and _is_accurate(device):
            return ""
    except (AssertionError, OSError, RuntimeError, subprocess.SubprocessError, triton.TritonError) as error:
        return f"Triton cannot compile the draw: {' '.join(str(error).split())}"
    return "its draw is not the defined one"


def _draws_known(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the known rows have their tokens, rounded to a dtype, which gets no other kernel later."""
    known = KnownRows.make()
    rounded = torch.from_numpy(known.logits).to(dtype)
    rows = (rounded, *map(torch.from_numpy, (known.rows.temperatures, known.seeds, known.positions)))
    tokens, logprobs = (made.cpu().numpy() for made in draw_on_card(*(part.to(device) for part in rows)))
    logits = rounded.float().numpy()
    wanted = every_token.scan(logits, known.rows, with_sums=False).tokens
    scaled = (logits / known.rows.temperatures[:, None]).astype(np.float64)
    scaled -= scaled.max(axis=1, keepdims=True)
    expected = scaled[np.arange(len(wanted)), wanted] - np.log(np.exp(scaled).sum(axis=1))
    return np.array_equal(tokens, wanted) and np.allclose(logprobs, expected, rtol=1e-5, atol=1e-4)


def _is_accurate(device: torch.device) -> bool:
    hashes = critical_hashes()
    made = torch.empty(len(hashes), dtype=torch.float32, device=device)
    with torch.cuda.device_of(made):  # type: ignore[no-untyped-call]
        _approximate[(triton.cdiv(len(hashes), _BLOCK),)](
            torch.from_numpy(hashes.view(np.int32)).to(device), made, len(hashes), BLOCK=_BLOCK
        )
    return bool((np.abs(made.cpu().numpy() - noise_of(hashes)) < _SLACK.value / 2).all())


def _kernel(function: Callable[..., Any]) -> Any:
    """Compiled once for each dtype: not again for sizes that are multiples of 16, or 1."""
    sizes_and_places = [name for name in signature(function).parameters if name.islower()]
    return triton.jit(function, do_not_specialize=sizes_and_places)


@_kernel
def _absorb(state: tl.tensor, values: tl.tensor) -> tl.tensor:
    """Hash state after one more 32-bit integer."""
    scrambled = values.to(tl.uint32) * _FACTOR_1
    state = state ^ (((scrambled << 15) | (scrambled >> 17)) * _FACTOR_2)
    return ((state << 13) | (state >> 19)) * 5 + _ADDED


@_kernel
def _row_state(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """`gumbel_noise.row_states`."""
    return _absorb(_absorb(_absorb(0, seed), seed >> 32), position)


@_kernel
def _hash(state: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """`gumbel_noise.hashes`."""
    h = _absorb(state, tokens) ^ _BYTES_HASHED
    h = (h ^ (h >> 16)) * _FINAL_1
    h = (h ^ (h >> 13)) * _FINAL_2
    return h ^ (h >> 16)


@_kernel
def _approximate_noise(h: tl.tensor) -> tl.tensor:
    """−ln(−ln u) in float32."""
    is_upper = h >= _HALF  # u is at least 1/2
    ratio = (tl.where(is_upper, h ^ _ALL_BITS, h).to(tl.float32) + 0.5) * _UNIT  # 1 − u, or u
    series = ratio * (1 + ratio * (1 / 2 + ratio * (1 / 3 + ratio / 4)))
    exact = -tl.log(tl.where(is_upper, 1 - ratio, ratio))
    return -tl.log(tl.where(is_upper & (ratio < _SERIES_BELOW), series, exact))


@_kernel
def _noise(h: tl.tensor) -> tl.tensor:
    """`gumbel_noise.noise_of`."""
    return (-tl.log(-tl.log((h.to(tl.float64) + 0.5) * _UNIT))).to(tl.float32)


@_kernel
def _approximate(hashes: tl.tensor, made: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Approximate noise of given hashes, for `is_right_on`."""
    each = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    noise = _approximate_noise(tl.load(hashes + each, mask=each < count, other=0).to(tl.uint32))
    tl.store(made + each, noise, mask=each < count)


@_kernel
def _bound(
    logits: tl.tensor,
    stride: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    bounds: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    broken: tl.tensor,
    vocabulary: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Of a row's block: largest approximate noisy logit, largest scaled logit, sum of exp(scaled − largest), and the
    first token whose logit is not a number, or `vocabulary`."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    state = _row_state(tl.load(seeds + row), tl.load(positions + row))
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    held = tl.load(logits + row * stride + tokens, mask=tokens < vocabulary, other=-_INFINITY).to(tl.float32)
    scaled = tl.div_rn(held, temperature)
    top = tl.max(scaled, axis=0)
    noisy = scaled + _approximate_noise(_hash(state, tokens))
    at = row * blocks + block
    tl.store(bounds + at, tl.max(noisy, axis=0))
    tl.store(tops + at, top)
    tl.store(sums + at, tl.where(top == -_INFINITY, 0.0, tl.sum(tl.exp(scaled - top), axis=0)))
    tl.store(broken + at, tl.min(tl.where(scaled != scaled, tokens, vocabulary), axis=0))


@_kernel
def _choose(
    logits: tl.tensor,
    stride: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    bounds: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    broken: tl.tensor,
    chosen: tl.tensor,
    logprobs: tl.tensor,
    vocabulary: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """Of a row: the drawn token and its log-prob, from what `_bound` found."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    state = _row_state(tl.load(seeds + row), tl.load(positions + row))
    each = tl.arange(0, BLOCKS)
    is_block = each < blocks
    at = row * blocks + each
    bound_B = tl.load(bounds + at, mask=is_block, other=-_INFINITY)
    highest = tl.max(bound_B, axis=0)
    # Infinite logits are as approximate as exact: only their blocks are left.
    near = highest - (2 * _SLACK + _RELATIVE_SLACK * tl.abs(highest))
    floor = tl.where(tl.abs(highest) < _INFINITY, near, highest)
    can_win = is_block & (bound_B >= floor)
    best = tl.full((), -_INFINITY, tl.float32)
    token = tl.full((), 0, tl.int32)
    block = tl.min(tl.where(can_win, each, blocks), axis=0)
    while block < blocks:
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        held = tl.load(logits + row * stride + tokens, mask=tokens < vocabulary, other=-_INFINITY).to(tl.float32)
        noisy = tl.div_rn(held, temperature) + _noise(_hash(state, tokens))
        top_noisy = tl.max(noisy, axis=0)
        first = tl.min(tl.where(noisy == top_noisy, tokens, vocabulary), axis=0)
        token = tl.where(top_noisy > best, first, token)  # blocks come in order: the first of several stays
        best = tl.maximum(best, top_noisy)
        block = tl.min(tl.where(can_win & (each > block), each, blocks), axis=0)
    first_broken = tl.min(tl.load(broken + at, mask=is_block, other=vocabulary), axis=0)
    token = tl.where(first_broken < vocabulary, first_broken, token)
    top_B = tl.load(tops + at, mask=is_block, other=-_INFINITY)
    top = tl.max(top_B, axis=0)
    total = tl.sum(tl.load(sums + at, mask=is_block, other=0.0) * tl.exp(top_B - top), axis=0)
    scaled = tl.div_rn(tl.load(logits + row * stride + token).to(tl.float32), temperature)
    tl.store(chosen + row, token.to(tl.int64))
    tl.store(logprobs + row, (scaled - top) - tl.log(total))
