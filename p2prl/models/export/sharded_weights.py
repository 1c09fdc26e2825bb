"""Write weights as sharded safetensors, a few MiB at a time, however large the model and its shards.

safetensors' own writer needs all tensors of a file in memory, several GB beside a learner that trains. The format is a
JSON header and the tensors one after the other, so it is written here as a stream; the library reads it back.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor

from p2prl.errors import ConfigError
from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import DTYPE_BYTES

_FORMAT_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Names of the types in a safetensors header."""

_ALIGNMENT = 8
"""The tensors begin at a multiple of this, as the library writes them."""


class WeightSource(Protocol):
    """Weights to write, tensor by tensor."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, in the order they are written."""
        ...

    def blocks(self, name: str) -> Iterator[Tensor]:
        """The tensor's values in order, a few MiB at a time, on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """The weight files of an export."""

    files: tuple[str, ...]
    size_bytes: int
    """Bytes of all tensors."""
    digest: Digest
    """BLAKE3 of all tensors in the order written: a version's `weights_digest` if they are its weights in its order."""


def size_of(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> int:
    """Bytes of tensors of these shapes in `dtype`."""
    return sum(math.prod(shape) for shape in shapes.values()) * DTYPE_BYTES[dtype]


def write_weights(
    source: WeightSource,
    directory: Path,
    *,
    dtype: str,
    shard_bytes: int,
    on_progress: Callable[[float], None],
) -> WrittenWeights:
    """Write `source` in `dtype` into `directory`, in files of at most `shard_bytes` (or one tensor), with their index.

    Values are rounded to the nearest, ties to even, as published weights are. `ConfigError` when one is not finite in
    `dtype`. The files are on disk when this returns.
    """
    sizes = {name: math.prod(shape) * DTYPE_BYTES[dtype] for name, shape in source.shapes.items()}
    total = sum(sizes.values())
    shards = _split(sizes, shard_bytes)
    files = _file_names(len(shards))
    digest, written = blake3(), 0
    for file, names in zip(files, shards, strict=True):
        with (directory / file).open("wb") as out:
            out.write(_header({name: source.shapes[name] for name in names}, dtype))
            for name in names:
                for block in source.blocks(name):
                    data = _in_type(block, dtype, name)
                    out.write(data)
                    digest.update(data)
                    written += len(data)
                    on_progress(written / total)
            out.flush()
            os.fsync(out.fileno())
    if len(files) > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
        }
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return WrittenWeights(files, total, Digest(digest.digest()))


def _split(sizes: Mapping[str, int], shard_bytes: int) -> list[list[str]]:
    """Names in order, cut into files of at most `shard_bytes`; a larger tensor gets a file of its own."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _file_names(count: int) -> tuple[str, ...]:
    """Names that transformers and vLLM look for."""
    if count == 1:
        return ("model.safetensors",)
    return tuple(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1))


def _header(shapes: Mapping[str, tuple[int, ...]], dtype: str) -> bytes:
    """Length and JSON header of a safetensors file, padded so that the tensors are aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": _FORMAT_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _in_type(block: Tensor, dtype: str, name: str) -> memoryview:
    """The block's bytes in `dtype`."""
    rounded = block.to(TORCH_DTYPES[dtype])
    if not bool(torch.isfinite(rounded).all()):
        raise ConfigError(
            f"the weights of {name!r} are not all finite in {dtype}",
            remedy="Give --dtype float32 or bfloat16, or export another step.",
        )
    return rounded.contiguous().reshape(-1).view(torch.uint8).numpy().data
