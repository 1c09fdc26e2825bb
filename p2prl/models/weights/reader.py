"""Single tensors, or rows of them, read from a policy's weight byte string.

For engines that load weights by name. Each tensor is copied, so a policy is never in memory twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from p2prl.errors import IntegrityError
from p2prl.models.weights.layout import NUMPY_WORDS, TORCH_DTYPES, WeightLayout
from p2prl.protocol.manifests import TensorSpec


class WeightReader:
    """Reads one policy of `layout`."""

    def __init__(self, layout: WeightLayout, weights: bytes | bytearray | memoryview) -> None:
        """`IntegrityError` when the bytes do not fill the layout."""
        self._view = memoryview(weights).cast("B")
        if self._view.nbytes != layout.size_bytes:
            raise IntegrityError(f"{self._view.nbytes} weight bytes do not fill a layout of {layout.size_bytes}")
        self._places: dict[str, tuple[TensorSpec, int]] = {}
        offset = 0
        for spec in layout.tensors:
            self._places[spec.name] = spec, offset
            offset += spec.size_bytes

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor by name, in layout order."""
        return ((name, self.tensor(name)) for name in self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._places[name][0].shape

    def tensor(self, name: str) -> Tensor:
        """A copy of a tensor, in its dtype on the wire."""
        spec, offset = self._places[name]
        return self._copy(spec, offset, math.prod(spec.shape)).view(spec.shape)

    def rows(self, name: str, start: int, end: int) -> Tensor:
        """A copy of rows `start` to `end` of a tensor."""
        spec, offset = self._places[name]
        width = math.prod(spec.shape[1:])
        skipped = start * width * NUMPY_WORDS[spec.dtype].itemsize
        return self._copy(spec, offset + skipped, (end - start) * width).view(end - start, *spec.shape[1:])

    def _copy(self, spec: TensorSpec, offset: int, count: int) -> Tensor:
        word = NUMPY_WORDS[spec.dtype]
        # Copied because torch would wrap the received, read-only bytes in a tensor it believes it may write to.
        words = np.frombuffer(self._view, dtype=word, count=count, offset=offset).astype(word.newbyteorder("="))
        return torch.from_numpy(words).view(TORCH_DTYPES[spec.dtype])
