"""The draw on the CPU, compiled by numba: two passes over the logits, few logarithms.

The first pass takes blocks of tokens. Of each block it finds the largest logit and an upper bound on the noisy logits,
from integers and one multiplication: the noise is below −ln(1 − u), and the bits of a float, read as an integer, are
a straight-line approximation of its log2 from below. The second pass computes exact noise in the blocks whose bound
reaches the best noisy logit found so far, for the tokens whose own bound reaches it: a handful per row.

Loops keep to 32-bit integers, since numba widens every sum and product to 64 bits and so would use vectors of half the
lanes. Maxima are taken of integers in the order of the floats, since maxima of floats are not vectorized.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from p2prl.models.gumbel_noise import ADDED, BYTES_HASHED, FACTOR_1, FACTOR_2, FINAL_1, FINAL_2
from p2prl.models.seeded_draw.rows import Floats, RowSettings, Scan

_BLOCK = 512
"""Tokens that share a bound: more make the second pass longer, fewer the first."""

_TILE = 4096
"""Tokens whose scrambled ids all rows use while they are in the first-level cache; a multiple of `_BLOCK`."""

_NONE = np.float32(-np.inf)
_LARGE = np.float32(1e37)
_LOG2_E = np.float32(math.log2(math.e))
_INFINITE_BITS = np.int32(0x7F800000)
_MAGNITUDE = np.int32(0x7FFFFFFF)
_FIVE = np.uint32(5)
_QUARTER = np.float32(0.25)

_BOUND_AT_ZERO = np.float32((31 + 127) * math.log(2))
_BOUND_SLOPE = np.float32(math.log(2) / 2**23)
"""A float of bits b is at least 2^(b / 2^23 − 127). The bound's argument is (1 − u) · 2^31, or less."""

_SLACK = 1e-3
_RELATIVE_SLACK = 1e-6
"""More than the rounding of a bound and of a noisy logit: 1e-4 for terms of the noise, which are below 128, and 4e-7 of
the scaled logit."""

_C5 = np.float32(0.0013390863)
_C4 = np.float32(0.0096760326)
_C3 = np.float32(0.0555035667)
_C2 = np.float32(0.2402210693)
_C1 = np.float32(0.6931471910)
_C0 = np.float32(1.0000000755)
"""2^f on [−1/2, 1/2] by Chebyshev's polynomial of degree 5: relative error 1e-7."""

_LOWEST_EXPONENT = np.float32(-126.0)
_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)


def _compiled(loop: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile when first used, without a cache on disk: numba would keep machine code in pickles there."""
    made: Callable[..., Any] = njit(nogil=True, error_model="numpy", **options)(loop)
    return made


def _part(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that only compiled functions call: without wrappers for Python it compiles faster."""

    def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
        return _compiled(loop, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)

    return compiled


@cache
def _bit_cast(source: Any, target: Any) -> Callable[..., Any]:
    """A function of one number of type `source` that gives the number of type `target` with the same bits."""

    def cast(_context: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    made: Callable[..., Any] = intrinsic(cast)
    return made


_bits_of = _bit_cast(types.float32, types.int32)
_float_of = _bit_cast(types.int32, types.float32)


@_part()
def _rotate(x: Any, bits: Any) -> Any:
    return np.uint32(np.uint32(x << np.uint32(bits)) | np.uint32(x >> np.uint32(32 - bits)))


@_part()
def _scramble(first: Any, scrambled: Any) -> None:
    """`gumbel_noise.scramble` of `first`, `first` + 1, …"""
    for i in range(scrambled.shape[0]):
        x = np.uint32(np.uint32(first + i) * FACTOR_1)
        scrambled[i] = np.uint32(_rotate(x, 15) * FACTOR_2)


@_part()
def _hash(state: Any, scrambled: Any) -> Any:
    """`gumbel_noise.hashes`."""
    h = np.uint32(np.uint32(_rotate(np.uint32(state ^ scrambled), 13) * _FIVE) + ADDED)
    h = np.uint32(h ^ BYTES_HASHED)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * FINAL_1)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(13))) * FINAL_2)
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


@_part()
def _noise(h: Any) -> Any:
    """`gumbel_noise.noise_of`."""
    return np.float32(-math.log(-math.log((np.float64(h) + 0.5) * 2.0**-32)))


@_part()
def _bound(h: Any) -> Any:
    """At least the noise of a hash, and at most .06 more where the hash is in the upper half of its range by far."""
    rest = np.float32(np.int32(np.uint32(np.uint32(~h) >> np.uint32(1)))) + _QUARTER
    return _BOUND_AT_ZERO - _BOUND_SLOPE * np.float32(_bits_of(rest))


@_part()
def _in_order(bits: Any) -> Any:
    """Bits of a float32 as an integer that grows with it; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & _MAGNITUDE))


@_part(fastmath={"contract"})
def _maxima(logits: Any, scrambled: Any, state: Any, inverse: Any) -> Any:
    """Of a block: upper bound of the noisy logits, largest logit, and whether one is not a number."""
    bound = np.int32(-(2**31))
    top = np.int32(-(2**31))
    magnitude = np.int32(0)
    for i in range(scrambled.shape[0]):
        bits = _bits_of(logits[i])
        magnitude = max(magnitude, np.int32(bits & _MAGNITUDE))
        top = max(top, _in_order(bits))
        noisy = logits[i] * inverse + _bound(_hash(state, scrambled[i]))
        bound = max(bound, _in_order(_bits_of(noisy)))
    return _float_of(_in_order(bound)), _float_of(_in_order(top)), magnitude > _INFINITE_BITS


@_part(fastmath={"reassoc", "contract"})
def _sum_of_exponentials(logits: Any, top: Any, inverse: Any) -> Any:
    """Sum of exp((logit − top) · `inverse`) over a block."""
    factor = _LOG2_E * inverse
    total = np.float32(0)
    for i in range(logits.shape[0]):
        power = max((logits[i] - top) * factor, _LOWEST_EXPONENT)
        whole = np.float32(math.floor(power + np.float32(0.5)))
        f = power - whole
        fraction = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
        total += fraction * _float_of(np.int32(np.int32(np.int32(whole) + _BIAS) << _MANTISSA_BITS))
    return total


@_part()
def _floor(best: Any) -> Any:
    """The bound of a token whose noisy logit is `best` or more is at least this. Near overflow none is excluded."""
    if not best < _LARGE:
        return _LARGE
    return np.float32(np.float64(best) - (_SLACK + _RELATIVE_SLACK * abs(np.float64(best))))


@_part()
def _search(logits: Any, first: Any, scrambled: Any, state: Any, temperature: Any, best: Any, token: Any) -> Any:
    """Best noisy logit and its token, of those given and a block that starts at token `first`."""
    _scramble(first, scrambled)
    inverse = np.float32(1) / temperature
    floor = _floor(best)
    for i in range(logits.shape[0]):
        h = _hash(state, scrambled[i])
        if logits[i] * inverse + _bound(h) >= floor:
            noisy = logits[i] / temperature + _noise(h)
            if noisy > best or (noisy == best and first + i < token):
                best, token = noisy, first + i
                floor = _floor(best)
    return best, token


@_part()
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
        _scramble(start, scratch[: end - start])
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


@_part()
def _second_pass(logits: Any, temperature: Any, state: Any, bounds: Any, scratch: Any) -> Any:
    """Best noisy logit of a row and its token: the most promising block first, so that few others remain."""
    leader = 0
    for block in range(1, bounds.shape[0]):
        if bounds[block] > bounds[leader]:
            leader = block
    best, token = _NONE, logits.shape[0]
    for turn in range(-1, bounds.shape[0]):
        block = leader if turn < 0 else turn
        if bounds[block] >= _floor(best):
            low = block * _BLOCK
            part = logits[low : min(low + _BLOCK, logits.shape[0])]
            best, token = _search(part, low, scratch[: part.shape[0]], state, temperature, best, token)
    return best, token


@_part()
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


_scan_loop = _compiled(_scan_rows)


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
