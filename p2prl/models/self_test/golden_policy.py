"""Weights that every machine makes alike without a download, to test engines with: a hash's bytes as small fractions.

A value is an odd multiple of 1/256 below one, times a power of two, so each dtype holds it exactly, and the same bytes
come out everywhere. Matrices have about unit gain, which keeps noise from growing with depth. The embeddings at both
ends have a larger one, so that logits spread as much as those of a language model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from p2prl.models.run_model import RunModel
from p2prl.models.weights.layout import NUMPY_WORDS, TORCH_DTYPES, WeightLayout

MOST_BYTES = 1 << 30
"""Largest weights that are made: a second's work. Larger models are not tested this way."""

BY_SIDE, BY_USE = 0, 1
"""Revisions of the rule for gains. The first one gives the larger gain to all matrices with a side as long as the
vocabulary, and unit gain to both halves of an adapter. Where a hidden size equals the vocabulary's, or an adapter is
scaled up, it multiplies in every layer, and rounding grows until sound engines differ. The second one knows embeddings
and adapters by their use."""

_SPREAD = 4.0
"""Deviation of the logits, about that of a small language model."""

_ADAPTED = 0.25
"""Deviation of what an adapter adds to the output of its matrix, as a part of that output's."""

_VALUE_DEVIATION = 0.577
"""Of a uniform number in -1..1."""

_KEY = 0x70327072
_BLOCK = (1 << 22) + 9
"""Bytes of the hash used again and again; odd, so that the rows of a matrix do not repeat."""


def golden_weights(run: RunModel, revision: int) -> bytearray:
    """The golden policy of a run, as bytes in layout order."""
    return policy_weights(run.layout, _gains(run, revision))


def is_tame(run: RunModel, revision: int) -> bool:
    """Whether a revision keeps noise from growing in the layers of this run's model."""
    return _gains(run, revision) == _gains(run, BY_USE)


def least_revision(run: RunModel) -> int:
    """The oldest revision that gives this run its golden policy: programs that know no other read its file too."""
    return BY_SIDE if is_tame(run, BY_SIDE) else BY_USE


def _gains(run: RunModel, revision: int) -> dict[str, float]:
    """Gains of matrices by name, where they are not 1."""
    matrices = [spec for spec in run.layout.tensors if len(spec.shape) > 1]
    if revision == BY_SIDE:
        vocabulary: int = run.skeleton.config.get_text_config().vocab_size
        return {spec.name: _SPREAD for spec in matrices if vocabulary in spec.shape}
    ends = (run.skeleton.get_input_embeddings(), run.skeleton.get_output_embeddings())
    weights = {id(end.weight) for end in ends if end is not None}
    embeddings = {name for name, tensor in run.skeleton.state_dict(keep_vars=True).items() if id(tensor) in weights}
    gains = {spec.name: _SPREAD for spec in matrices if spec.name in embeddings}
    if run.lora is not None and (added := _ADAPTED * run.lora.rank / run.lora.alpha) != 1.0:
        gains |= {spec.name: added for spec in matrices if ".lora_B." in spec.name}
    return gains


def policy_weights(layout: WeightLayout, gains: Mapping[str, float]) -> bytearray:
    """Weights as bytes in layout order; `gains` of matrices by name, 1 for others."""
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
            gain = gains.get(spec.name, 1.0)
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
