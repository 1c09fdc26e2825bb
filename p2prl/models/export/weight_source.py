"""Weights to export: a checkpoint's own, or those of the version published at its step, bit for bit.

Files are opened before anything is read from them, so a learner that deletes an old checkpoint or version meanwhile
does not disturb an export.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2prl.errors import IntegrityError
from p2prl.models.base_model.model_folder import shard_names
from p2prl.models.weights.layout import TORCH_DTYPES, WeightLayout
from p2prl.models.weights.lora import read_adapters
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.protocol.manifests import DTYPE_BYTES

_BLOCK_WEIGHTS = 1 << 20
"""Weights read at once: a few MiB of memory, however large the model."""

_FLOATING = frozenset({"F32", "BF16", "F16"})
"""Types of weights in a checkpoint."""


class CheckpointWeights:
    """The weights of a Hugging Face model directory, in its own names and types."""

    def __init__(self, directory: Path) -> None:
        """Raises `FileNotFoundError` when a file is gone, `IntegrityError` when one is damaged, `ConfigError` when its
        index names files elsewhere."""
        self._slices: dict[str, Any] = {}
        for file in shard_names(directory) or ["model.safetensors"]:
            self._open(directory / file)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `WeightSource.shapes`."""
        return {name: tuple(each.get_shape()) for name, each in self._slices.items()}

    def reordered(self, layout: WeightLayout) -> bool:
        """Put the tensors in the order of a run's layout; False when they are not the layout's tensors.

        transformers saves some architectures under other names than it holds them by: one tensor for each expert.
        """
        shapes = {spec.name: spec.shape for spec in layout.tensors}
        if shapes != self.shapes:
            return False
        self._slices = {name: self._slices[name] for name in shapes}
        return True

    def blocks(self, name: str) -> Iterator[Tensor]:
        """See `WeightSource.blocks`."""
        weights, shape = self._slices[name], tuple(self._slices[name].get_shape())
        if not shape:
            yield weights[...]
            return
        rows = max(1, _BLOCK_WEIGHTS // max(1, math.prod(shape[1:])))
        for start in range(0, shape[0], rows):
            yield weights[start : start + rows]

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118 - not a dict
                self._slices[name] = file.get_slice(name)
        except SafetensorError as error:
            raise IntegrityError(f"{path} is damaged: {error}", remedy="Export another step.") from error
        other = {each.get_dtype() for each in self._slices.values()} - _FLOATING
        if other:
            raise IntegrityError(f"{path} holds weights of type {other.pop()}", remedy="Export another step.")


class MergedWeights:
    """A frozen model's weights with adapters added to them: W + alpha / rank · B·A, computed in float32."""

    def __init__(self, frozen: CheckpointWeights, adapters: Path, lora: LoraSpec) -> None:
        """`adapters` is a folder of `save_adapters`. `IntegrityError` when it is damaged, or not the frozen model's."""
        self._frozen = frozen
        self._scale = lora.alpha / lora.rank
        self._adapters, self._transposed = read_adapters(adapters)
        unknown = self._adapters.keys() - frozen.shapes.keys()
        if unknown:
            raise IntegrityError(f"{adapters} holds adapters of another model", remedy="Export another step.")

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `WeightSource.shapes`."""
        return self._frozen.shapes

    def blocks(self, name: str) -> Iterator[Tensor]:
        """See `WeightSource.blocks`."""
        if name not in self._adapters:
            yield from self._frozen.blocks(name)
            return
        down_RI, up_OR = self._adapters[name]
        first, second = (down_RI.T, up_OR.T) if self._transposed else (up_OR, down_RI)
        start = 0
        for block in self._frozen.blocks(name):
            end = start + len(block)
            yield torch.addmm(block.float(), first[start:end], second, alpha=self._scale)
            start = end


class PublishedWeights:
    """The weights of a published version, in its own type."""

    def __init__(self, source: Path | memoryview, layout: WeightLayout) -> None:
        """`source` is a file or its bytes.

        Raises `FileNotFoundError` when the file is gone and `ValueError` when it is shorter than the layout.
        """
        self._dtype = layout.tensors[0].dtype
        self.shapes: Mapping[str, tuple[int, ...]] = {spec.name: spec.shape for spec in layout.tensors}
        # Read as integers of the same width: numpy has no bfloat16.
        stored: np.dtype[Any] = np.dtype(f"<i{DTYPE_BYTES[self._dtype]}")
        if isinstance(source, Path):
            self._data: NDArray[Any] = np.memmap(source, dtype=stored, mode="r", shape=(layout.parameters,))
        else:
            self._data = np.frombuffer(source, dtype=stored, count=layout.parameters)
        self._starts: dict[str, int] = {}
        start = 0
        for spec in layout.tensors:
            self._starts[spec.name] = start
            start += math.prod(spec.shape)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """See `WeightSource.blocks`."""
        first = self._starts[name]
        end = first + math.prod(self.shapes[name])
        for start in range(first, end, _BLOCK_WEIGHTS):
            # Copied: torch would wrap the read-only file in a tensor it believes it may write to.
            data = self._data[start : min(end, start + _BLOCK_WEIGHTS)].astype(self._data.dtype.newbyteorder("="))
            yield torch.from_numpy(data).view(TORCH_DTYPES[self._dtype])
