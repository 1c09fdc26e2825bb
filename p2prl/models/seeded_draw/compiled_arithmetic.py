"""Arithmetic of the compiled draw: the hash, exact noise, and an upper bound on the noise from the hash alone.

The bound: the noise is below −ln(1 − u), and the bits of a float, read as an integer, are a straight-line approximation
of its log2 from below.

Everything keeps to 32-bit integers, since numba widens sums and products to 64 bits and so would use vectors of half
the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.base import BaseContext
from numba.core.typing import Context, Signature
from numba.extending import intrinsic

from p2prl.models.seeded_draw.gumbel_noise import ADDED, BYTES_HASHED, FACTOR_1, FACTOR_2, FINAL_1, FINAL_2, Hashes

Loop = TypeVar("Loop", bound=Callable[..., object])

MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but the sign."""

_LARGE = np.float32(1e37)
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


def compiled(loop: Loop, **options: object) -> Loop:
    """Compile when first used, without a cache on disk: numba would keep machine code in pickles there."""
    made: Loop = njit(nogil=True, error_model="numpy", **options)(loop)
    return made


def compiled_part(**options: object) -> Callable[[Loop], Loop]:
    """A function that only compiled functions call: without wrappers for Python it compiles faster."""

    def decorated(loop: Loop) -> Loop:
        return compiled(loop, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)

    return decorated


@cache
def _bit_cast(source: types.Number, target: types.Number) -> Callable[..., Any]:
    """A function of one number of type `source` that gives the number of type `target` with the same bits."""

    def cast(_context: Context, _value: types.Number) -> tuple[Signature, Callable[..., ir.Value]]:
        def generate(
            context: BaseContext, builder: ir.IRBuilder, _signature: Signature, arguments: Sequence[ir.Value]
        ) -> ir.Value:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    made: Callable[..., Any] = intrinsic(cast)
    return made


bits_of: Callable[[np.float32], np.int32] = _bit_cast(types.float32, types.int32)
float_of: Callable[[np.int32], np.float32] = _bit_cast(types.int32, types.float32)


@compiled_part()
def _rotate(x: np.uint32, bits: int) -> np.uint32:
    return np.uint32(np.uint32(x << np.uint32(bits)) | np.uint32(x >> np.uint32(32 - bits)))


@compiled_part()
def scramble(first: int, scrambled: Hashes) -> None:
    """`gumbel_noise.scramble` of `first`, `first` + 1, …"""
    for i in range(scrambled.shape[0]):
        x = np.uint32(np.uint32(first + i) * FACTOR_1)
        scrambled[i] = np.uint32(_rotate(x, 15) * FACTOR_2)


@compiled_part()
def hash_of(state: np.uint32, scrambled: np.uint32) -> np.uint32:
    """`gumbel_noise.hashes`."""
    h = np.uint32(np.uint32(_rotate(np.uint32(state ^ scrambled), 13) * _FIVE) + ADDED)
    h = np.uint32(h ^ BYTES_HASHED)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * FINAL_1)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(13))) * FINAL_2)
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


@compiled_part()
def noise_of(h: np.uint32) -> np.float32:
    """`gumbel_noise.noise_of`."""
    return np.float32(-math.log(-math.log((np.float64(h) + 0.5) * 2.0**-32)))


@compiled_part(fastmath={"contract"})
def bound_of(h: np.uint32) -> np.float32:
    """At least the noise of a hash; mostly less than .1 more at large hashes, up to 3.2 more at small ones."""
    rest = np.float32(np.int32(np.uint32(np.uint32(~h) >> np.uint32(1)))) + _QUARTER
    return _BOUND_AT_ZERO - _BOUND_SLOPE * np.float32(bits_of(rest))


@compiled_part()
def in_order(bits: np.int32) -> np.int32:
    """Bits of a float32 as an integer that grows with it; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & MAGNITUDE))


@compiled_part()
def floor_of(best: np.float32) -> np.float32:
    """The bound of a token whose noisy logit is `best` or more is at least this. Near overflow none is excluded."""
    if not best < _LARGE:
        return _LARGE
    return np.float32(np.float64(best) - (_SLACK + _RELATIVE_SLACK * abs(np.float64(best))))


@compiled_part(fastmath={"contract"})
def power_of_two(power: np.float32) -> np.float32:
    """2^`power` for powers up to 127; those below −126 give 2^−126."""
    power = max(power, _LOWEST_EXPONENT)
    whole = np.float32(math.floor(power + np.float32(0.5)))
    f = power - whole
    fraction = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    return fraction * float_of(np.int32(np.int32(np.int32(whole) + _BIAS) << _MANTISSA_BITS))
