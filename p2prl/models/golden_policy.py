"""Weights that every machine makes alike without a download, to test engines with: a hash's bytes as small fractions.

A value is an odd multiple of 1/256 below one, times a power of two, so each dtype holds it exactly, and the same bytes
come out everywhere. Matrices have about unit gain, which keeps noise from growing with depth, and logits spread as much
as those of a language model.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from p2prl.models.weight_layout import NUMPY_WORDS, TORCH_DTYPES, WeightLayout

MOST_BYTES = 1 << 30
"""Largest weights that are made: a second's work. Larger models are not tested this way."""

_SPREAD = 4.0
"""Deviation of the logits, about that of a small language model."""

_VALUE_DEVIATION = 0.577
"""Of a uniform number in -1..1."""

_KEY = 0x70327072
_BLOCK = (1 << 22) + 9
"""Bytes of the hash used again and again; odd, so that the rows of a matrix do not repeat."""


def policy_weights(layout: WeightLayout, vocabulary: int) -> bytearray:
    """The golden policy's weights, as bytes in layout order."""
    size = min(_BLOCK, layout.parameters)
    block = np.random.Philox(key=_KEY).random_raw(-(-size // 8)).astype("<u8").view(np.uint8)[:size]
    data, offset, used = bytearray(layout.size_bytes), 0, 0
    for spec in layout.tensors:
        count = math.prod(spec.shape)
        word = NUMPY_WORDS[spec.dtype]
        target = np.frombuffer(data, dtype=word, count=count, offset=offset)
        if len(spec.shape) < 2:
            target[:] = _words([0.0 if spec.name.endswith("bias") else 1.0], spec.dtype)[0]
        else:
            gain = _SPREAD if vocabulary in spec.shape else 1.0
            power = round(math.log2(gain / math.sqrt(spec.shape[-1]) / _VALUE_DEVIATION))
            values = [(2 * k - 255) / 256 * 2.0**power for k in range(256)]
            table = _words(values, spec.dtype)
            for start in range(0, count, size):
                end = min(start + size, count)
                first = (used + start) % size
                turned = np.concatenate([block[first:], block[:first]])[: end - start]
                target[start:end] = table[turned]
            used += count
        offset += spec.size_bytes
    return data


def _words(values: list[float], dtype: str) -> np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]:
    """Bit patterns of exact values."""
    raw = torch.tensor(values, dtype=TORCH_DTYPES[dtype]).view(torch.uint8).numpy().tobytes()
    return np.frombuffer(raw, dtype=NUMPY_WORDS[dtype].newbyteorder("=")).astype(NUMPY_WORDS[dtype])
