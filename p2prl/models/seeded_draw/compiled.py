"""The draw on the CPU, compiled by numba: one pass over the logits, few logarithms.

The pass takes blocks of tokens. Of each block it finds the largest logit and an upper bound on the noisy logits. Where
the bound reaches the best noisy logit found so far, it computes exact noise for the tokens whose own bound reaches it:
some tens per row. Tokens are taken in order, so that the first of several best ones stays.

Maxima are taken of integers in the order of the floats, since maxima of floats are not vectorized.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2prl.models.seeded_draw.compiled_arithmetic import (
    MAGNITUDE,
    bits_of,
    bound_of,
    compiled,
    compiled_part,
    float_of,
    floor_of,
    hash_of,
    in_order,
    noise_of,
    power_of_two,
    scramble,
)
from p2prl.models.seeded_draw.gumbel_noise import Hashes, Indices
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

_BLOCK = 512
"""Tokens that share a bound: more make the second pass longer, fewer the first."""

_TILE = 4096
"""Tokens whose scrambled ids all rows use while they are in the first-level cache; a multiple of `_BLOCK`."""

_NONE = np.float32(-np.inf)
_LOG2_E = np.float32(math.log2(math.e))
_INFINITE_BITS = np.int32(0x7F800000)


@compiled_part(fastmath={"contract"})
def _maxima(
    logits: Floats, scrambled: Hashes, state: np.uint32, inverse: np.float32
) -> tuple[np.float32, np.float32, np.bool]:
    """Of a block: upper bound of the noisy logits, largest logit, and whether one is not a number."""
    bound = np.int32(-(2**31))
    top = np.int32(-(2**31))
    magnitude = np.int32(0)
    for i in range(scrambled.shape[0]):
        bits = bits_of(logits[i])
        magnitude = max(magnitude, np.int32(bits & MAGNITUDE))
        top = max(top, in_order(bits))
        noisy = logits[i] * inverse + bound_of(hash_of(state, scrambled[i]))
        bound = max(bound, in_order(bits_of(noisy)))
    return float_of(in_order(bound)), float_of(in_order(top)), magnitude > _INFINITE_BITS


@compiled_part(fastmath={"reassoc"})
def _sum_of_exponentials(logits: Floats, top: np.float32, inverse: np.float32) -> np.float32:
    """Sum of exp((logit − top) · `inverse`) over a block."""
    factor = _LOG2_E * inverse
    total = np.float32(0)
    for i in range(logits.shape[0]):
        total += power_of_two((logits[i] - top) * factor)
    return total


@compiled_part()
def _search(
    logits: Floats,
    first: int,
    scrambled: Hashes,
    state: np.uint32,
    temperature: np.float32,
    best: np.float32,
    token: int,
) -> tuple[np.float32, int]:
    """Best noisy logit and its token, of those given and a block that starts at token `first`."""
    inverse = np.float32(1) / temperature
    floor = floor_of(best)
    for i in range(logits.shape[0]):
        h = hash_of(state, scrambled[i])
        if logits[i] * inverse + bound_of(h) >= floor:
            noisy = logits[i] / temperature + noise_of(h)
            if noisy > best:
                best, token = noisy, first + i
                floor = floor_of(best)
    return best, token


@compiled_part()
def _first_broken(logits: Floats) -> int:
    """Index of the first that is not a number."""
    i = 0
    while logits[i] == logits[i]:
        i += 1
    return i


def _extend(
    logits: Floats,
    first: int,
    temperatures: Floats,
    states: Hashes,
    with_sums: bool,
    scratch: Hashes,
    tokens: Indices,
    best: Floats,
    tops: Floats,
    sums: NDArray[np.float64],
) -> None:
    """Go on with draws: `logits` are those of token `first` and the following ones. See `Draws` for the results."""
    width = logits.shape[1]
    for start in range(0, width, _TILE):
        end = min(start + _TILE, width)
        scramble(first + start, scratch[: end - start])
        for row in range(logits.shape[0]):
            inverse = np.float32(1) / temperatures[row]
            for low in range(start, end, _BLOCK):
                block = logits[row, low : min(low + _BLOCK, end)]
                scrambled = scratch[low - start : min(low + _BLOCK, end) - start]
                bound, top, is_broken = _maxima(block, scrambled, states[row], inverse)
                if best[row] != best[row]:
                    continue
                if is_broken:
                    tokens[row] = first + low + _first_broken(block)
                    best[row] = sums[row] = np.nan
                    continue
                if bound >= floor_of(best[row]):
                    best[row], tokens[row] = _search(
                        block, first + low, scrambled, states[row], temperatures[row], best[row], tokens[row]
                    )
                if with_sums and top > _NONE:
                    if top > tops[row]:
                        sums[row] *= math.exp((tops[row] - top) * inverse)
                        tops[row] = top
                    part = _sum_of_exponentials(block, top, inverse) if math.isfinite(top) else np.float32(1)
                    sums[row] += part * math.exp((top - tops[row]) * inverse)


_extend_loop = compiled(_extend)


class Draws:
    """Draws of rows whose logits come in parts of the vocabulary, in order."""

    def __init__(self, rows: RowSettings, *, with_sums: bool, threads: int) -> None:
        count = len(rows.states)
        self._rows = rows
        self._with_sums = with_sums
        self._threads = threads
        self._tokens = np.zeros(count, np.int64)
        self._best = np.full(count, -np.inf, np.float32)
        self._tops = np.full(count, -np.inf, np.float32)
        self._sums = np.zeros(count, np.float64)

    def add(self, logits: Floats, first: int) -> None:
        """Take the logits (N, W), contiguous, of tokens `first` to `first` + W − 1.

        The first call in a process compiles, which takes a few seconds.
        """
        workers = max(1, min(self._threads, len(logits)))
        cuts = [len(logits) * i // workers for i in range(workers + 1)]
        parts = [slice(start, end) for start, end in pairwise(cuts)]
        others = [_pool(workers - 1).submit(self._add, logits, first, part) for part in parts[1:]]
        self._add(logits, first, parts[0])
        for other in others:
            other.result()

    def result(self) -> Scan:
        """The draws, once all logits were added."""
        with np.errstate(all="ignore"):  # logits may be infinite or not numbers
            log_sums = self._tops / self._rows.temperatures + np.log(self._sums)
        return Scan(self._tokens, self._best, log_sums.astype(np.float32))

    def _add(self, logits: Floats, first: int, part: slice) -> None:
        rows, scratch = self._rows[part], np.empty(_TILE, np.uint32)
        state = (self._tokens[part], self._best[part], self._tops[part], self._sums[part])
        _extend_loop(logits[part], first, rows.temperatures, rows.states, self._with_sums, scratch, *state)


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="draw")
