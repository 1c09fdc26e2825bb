"""The draw on the CPU, compiled by numba: two passes over the logits, few logarithms.

The first pass takes blocks of tokens. Of each block it finds the largest logit and an upper bound on the noisy logits.
The second computes exact noise in the blocks whose bound reaches the best noisy logit found so far, for the tokens
whose own bound reaches it: a handful per row.

Maxima are taken of integers in the order of the floats, since maxima of floats are not vectorized.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

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
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

_BLOCK = 512
"""Tokens that share a bound: more make the second pass longer, fewer the first."""

_TILE = 4096
"""Tokens whose scrambled ids all rows use while they are in the first-level cache; a multiple of `_BLOCK`."""

_NONE = np.float32(-np.inf)
_LOG2_E = np.float32(math.log2(math.e))
_INFINITE_BITS = np.int32(0x7F800000)


@compiled_part(fastmath={"contract"})
def _maxima(logits: Any, scrambled: Any, state: Any, inverse: Any) -> Any:
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
def _sum_of_exponentials(logits: Any, top: Any, inverse: Any) -> Any:
    """Sum of exp((logit − top) · `inverse`) over a block."""
    factor = _LOG2_E * inverse
    total = np.float32(0)
    for i in range(logits.shape[0]):
        total += power_of_two((logits[i] - top) * factor)
    return total


@compiled_part()
def _search(logits: Any, first: Any, scrambled: Any, state: Any, temperature: Any, best: Any, token: Any) -> Any:
    """Best noisy logit and its token, of those given and a block that starts at token `first`."""
    scramble(first, scrambled)
    inverse = np.float32(1) / temperature
    floor = floor_of(best)
    for i in range(logits.shape[0]):
        h = hash_of(state, scrambled[i])
        if logits[i] * inverse + bound_of(h) >= floor:
            noisy = logits[i] / temperature + noise_of(h)
            if noisy > best or (noisy == best and first + i < token):
                best, token = noisy, first + i
                floor = floor_of(best)
    return best, token


@compiled_part()
def _first_pass(
    logits: Any,
    temperatures: Any,
    states: Any,
    bounds: Any,
    tops: Any,
    sums: Any,
    broken: Any,
    scratch: Any,
    with_sums: Any,
) -> None:
    """Bound, largest logit and sum of exponentials of each block, and the rows with logits that are not numbers."""
    vocabulary = logits.shape[1]
    for start in range(0, vocabulary, _TILE):
        end = min(start + _TILE, vocabulary)
        scramble(start, scratch[: end - start])
        for row in range(logits.shape[0]):
            inverse = np.float32(1) / temperatures[row]
            for low in range(start, end, _BLOCK):
                high = min(low + _BLOCK, end)
                block = low // _BLOCK
                bound, top, is_broken = _maxima(
                    logits[row, low:high], scratch[low - start : high - start], states[row], inverse
                )
                bounds[row, block] = bound
                tops[row, block] = top
                broken[row] |= is_broken
                if with_sums and math.isfinite(top):
                    sums[row, block] = _sum_of_exponentials(logits[row, low:high], top, inverse)


@compiled_part()
def _second_pass(logits: Any, temperature: Any, state: Any, bounds: Any, scratch: Any) -> Any:
    """Best noisy logit of a row and its token: the most promising block first, so that few others remain."""
    leader = 0
    for block in range(1, bounds.shape[0]):
        if bounds[block] > bounds[leader]:
            leader = block
    best, token = _NONE, logits.shape[0]
    for turn in range(-1, bounds.shape[0]):
        block = leader if turn < 0 else turn
        if bounds[block] >= floor_of(best):
            low = block * _BLOCK
            part = logits[low : min(low + _BLOCK, logits.shape[0])]
            best, token = _search(part, low, scratch[: part.shape[0]], state, temperature, best, token)
    return best, token


@compiled_part()
def _log_sum(tops: Any, sums: Any, temperature: Any) -> Any:
    """Log of the sum of a row's exponentials."""
    top = tops[0]
    for block in range(1, tops.shape[0]):
        top = max(top, tops[block])
    total = 0.0
    for block in range(tops.shape[0]):
        total += sums[block] * math.exp((tops[block] - top) / temperature)
    return top / temperature + math.log(total)


def _scan_rows(
    logits: Any,
    temperatures: Any,
    states: Any,
    bounds: Any,
    tops: Any,
    sums: Any,
    broken: Any,
    scratch: Any,
    with_sums: Any,
    tokens: Any,
    best: Any,
    log_sums: Any,
) -> None:
    _first_pass(logits, temperatures, states, bounds, tops, sums, broken, scratch, with_sums)
    for row in range(logits.shape[0]):
        if broken[row]:
            token = 0
            while logits[row, token] == logits[row, token]:
                token += 1
            tokens[row] = token
            best[row] = log_sums[row] = np.nan
        else:
            best[row], tokens[row] = _second_pass(logits[row], temperatures[row], states[row], bounds[row], scratch)
            if with_sums:
                log_sums[row] = _log_sum(tops[row], sums[row], temperatures[row])


_scan_loop = compiled(_scan_rows)


def scan(logits: Floats, rows: RowSettings, *, with_sums: bool, threads: int) -> Scan:
    """See `rows.Scan`. `logits` (N, V), contiguous. The first call compiles, which takes a second or two."""
    count = len(logits)
    result = Scan.empty(count)
    workers = min(threads, count)
    cuts = [count * i // workers for i in range(workers + 1)] if workers else [0]
    parts = [slice(start, end) for start, end in pairwise(cuts)]
    others = [_pool(workers - 1).submit(_scan_part, logits[p], rows[p], result[p], with_sums) for p in parts[1:]]
    for part in parts[:1]:
        _scan_part(logits[part], rows[part], result[part], with_sums)
    for other in others:
        other.result()
    return result


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="draw")


def _scan_part(logits: Floats, rows: RowSettings, result: Scan, with_sums: bool) -> None:
    count, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    bounds, tops = np.empty((count, blocks), np.float32), np.empty((count, blocks), np.float32)
    sums, broken, scratch = np.ones_like(bounds), np.zeros(count, np.bool_), np.empty(_TILE, np.uint32)
    results = (result.tokens, result.best, result.log_sums)
    _scan_loop(logits, rows.temperatures, rows.states, bounds, tops, sums, broken, scratch, with_sums, *results)
