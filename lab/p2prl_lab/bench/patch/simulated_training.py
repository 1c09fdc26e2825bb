"""Simulated Adam training in bf16, and the entropy bound of a patch: test data for the codec.

Benchmarks and tests use it. It shares no functions with the codec, so that it is an independent check.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest even, for finite values."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def adam_training(words: int, learning_rate: float, seed: int, *, scale: float = 0.02) -> Iterator[NDArray[np.uint16]]:
    """Yield versions 0, 1, 2, … in bf16 of an fp32 master, with weights N(0, `scale`) and stationary moments.

    Gradients have unit variance, a tenth of it signal. So second moments are 1, and a step is the first moment times
    the learning rate.
    """
    rng = np.random.default_rng(seed)
    master = (scale * rng.standard_normal(words)).astype(np.float32)
    signal = (0.1 * rng.standard_normal(words)).astype(np.float32)
    first = signal + (np.sqrt(0.1 / 1.9) * rng.standard_normal(words)).astype(np.float32)
    while True:
        yield bf16(master)
        first = np.float32(0.9) * first + np.float32(0.1) * (signal + rng.standard_normal(words).astype(np.float32))
        master -= np.float32(learning_rate) * first


def adam_versions(
    words: int, learning_rate: float, updates: int, seed: int, *, scale: float = 0.02
) -> tuple[NDArray[np.uint16], list[NDArray[np.uint16]]]:
    """(version 0, versions 1..updates) of `adam_training`."""
    first, *later = islice(adam_training(words, learning_rate, seed, scale=scale), updates + 1)
    return first, later


def lora_versions(words: int, learning_rate: float, seed: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Adapters before and after one update in bf16 of an fp32 master, both halves of `words` under Adam.

    The first half (A) began as N(0, .02), the second (B) at zero. Both were trained for twenty updates before, in which
    B reached a few learning rates.
    """
    _, (*_, old_a, new_a) = adam_versions(words - words // 2, learning_rate, 21, seed)
    _, (*_, old_b, new_b) = adam_versions(words // 2, learning_rate, 21, seed + 1, scale=0.0)
    return np.concatenate([old_a, old_b]), np.concatenate([new_a, new_b])


def entropy_bits(old: NDArray[Any], new: NDArray[Any]) -> float:
    """Plug-in entropy of position and step given the old word's exponent, in bits for the whole array.

    For bf16 and fp32. It is a bound if steps repeat. Steps of fp32 are almost all different, so a few thousand of them
    show little more than the logarithm of their number.
    """

    def information(counts: NDArray[Any]) -> float:
        counts = counts[counts > 0].astype(np.float64)
        return float((counts * np.log2(counts.sum() / counts)).sum())

    bits_per_word = 8 * old.dtype.itemsize
    exponents = (old.astype(np.int64) >> (bits_per_word - 9)) & 255
    sign = 1 << (bits_per_word - 1)
    line_old, line_new = (np.where(w < sign, w, sign - 1 - w) for w in (old.astype(np.int64), new.astype(np.int64)))
    bits = 0.0
    for exponent in np.unique(exponents):
        own = exponents == exponent
        moved = (line_new - line_old)[own]
        steps, counts = np.unique(moved, return_counts=True)
        bits += information(np.array([np.count_nonzero(moved), np.count_nonzero(moved == 0)]))
        bits += information(counts[steps != 0])
    return bits
