"""Layout of a policy's weights in one byte string, and the copy from a model to bytes and back.

The layout is not sent. Learner and volunteers each derive it from the run's configuration, and the run manifest has its
digest. So a stranger's header never decides where bytes are written, and sizes are known before a download begins.
Tied tensors appear once, under the name the model lists first. "Word" means the bit pattern of one weight.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from torch import Tensor, nn

from p2prl.errors import ConfigError, IntegrityError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, chunk_digest
from p2prl.protocol.manifests import DTYPE_BYTES, TensorSpec, layout_digest

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Dtypes of weights on the wire."""

NUMPY_WORDS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<u4"),
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<u2"),
}
"""Bit patterns of weights on the wire, little-endian."""

_BITS = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}

_BLOCK_WORDS = 1 << 20
"""Weights copied at once: a few MiB of staging memory, however large the model."""

_CARD_BLOCK_WORDS = 1 << 24
"""The same on a card, where every copy has a cost of its own: at most 64 MiB of the card's memory."""


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name belongs to a LoRA adapter: it is trained, and all others are frozen."""
    return ".lora_A." in name or ".lora_B." in name


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Order, names, shapes and dtypes of a model's weights in their byte string."""

    tensors: tuple[TensorSpec, ...]

    @property
    def size_bytes(self) -> int:
        """Length of the weight byte string."""
        return sum(spec.size_bytes for spec in self.tensors)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(spec.shape) for spec in self.tensors)

    @property
    def trained_parameters(self) -> int:
        """Number of parameters that a run trains: those of its adapters, or all."""
        return sum(math.prod(spec.shape) for spec in self.tensors if is_adapter(spec.name)) or self.parameters

    @property
    def digest(self) -> Digest:
        """The layout's digest in a run manifest."""
        return layout_digest(self.tensors)

    def check(self) -> None:
        """Raise `IntegrityError` naming the first illegal tensor."""
        if not 0 < len(self.tensors) <= limits.MAX_TENSORS:
            raise IntegrityError(f"layout of {len(self.tensors)} tensors is outside 1..{limits.MAX_TENSORS}")
        if len({spec.name for spec in self.tensors}) != len(self.tensors):
            raise IntegrityError("layout names a tensor twice")
        for spec in self.tensors:
            if spec.dtype not in DTYPE_BYTES:
                raise IntegrityError(f"layout: {spec.name[:64]!r} has the unknown dtype {spec.dtype[:64]!r}")
            if len(spec.shape) > limits.MAX_TENSOR_RANK or any(size < 1 for size in spec.shape):
                raise IntegrityError(f"layout: {spec.name[:64]!r} has an impossible shape")


def layout_of(model: nn.Module, dtype: str) -> WeightLayout:
    """The layout of a model's weights sent in `dtype` (a key of `TORCH_DTYPES`).

    Works on the meta device too, where it costs no memory. `ConfigError` when the model has weights that are not
    floating-point.
    """
    if dtype not in TORCH_DTYPES:
        raise ConfigError(f"weights cannot be sent as {dtype!r}", remedy=f"Choose one of {', '.join(TORCH_DTYPES)}.")
    return WeightLayout(tuple(TensorSpec(name, dtype, tuple(tensor.shape)) for name, tensor in _weights(model)))


def flatten(model: nn.Module, layout: WeightLayout, into: bytearray | None = None) -> bytearray:
    """The model's weights as bytes in layout order. `IntegrityError` when the layout is not the model's.

    With `into`, which has the layout's size, they are written there. Memory that was written before takes a third to a
    fifth of the time that fresh memory takes, most of which the kernel spends on its pages; a card writes into pinned
    memory (`HostMemory`) by itself, sooner still.
    """
    data = bytearray(layout.size_bytes) if into is None else into
    assert len(data) == layout.size_bytes, "the memory has the size of the weights"
    offset, cards = 0, set[torch.device]()
    for spec, tensor in _match(model, layout):
        flat = tensor.detach().reshape(-1)
        target = torch.frombuffer(data, dtype=TORCH_DTYPES[spec.dtype], count=flat.numel(), offset=offset)
        if flat.device.type == "cuda":
            _copy_from_card(flat, target)
            cards.add(flat.device)
        else:
            for start in range(0, flat.numel(), _BLOCK_WORDS):  # torch rounds what is on MPS in one piece
                target[start : start + _BLOCK_WORDS].copy_(flat[start : start + _BLOCK_WORDS])
        offset += spec.size_bytes
    for card in cards:
        torch.cuda.synchronize(card)
    if sys.byteorder == "big":
        _swap_bytes(data, layout)
    return data


def _copy_from_card(flat: Tensor, target: Tensor) -> None:
    """Begin to copy words, rounded on the card: torch would move float32 and round on the host."""
    for start in range(0, flat.numel(), _CARD_BLOCK_WORDS):
        block = flat[start : start + _CARD_BLOCK_WORDS].to(target.dtype)
        target[start : start + _CARD_BLOCK_WORDS].copy_(block, non_blocking=True)


def _swap_bytes(data: bytearray, layout: WeightLayout) -> None:
    offset = 0
    for spec in layout.tensors:
        words = math.prod(spec.shape)
        np.frombuffer(data, dtype=NUMPY_WORDS[spec.dtype], count=words, offset=offset).byteswap(inplace=True)
        offset += spec.size_bytes


def weight_blocks(model: nn.Module, layout: WeightLayout) -> Iterator[NDArray[Any]]:
    """The weights as arrays of little-endian words, a few MiB at a time, without a second copy of a large model."""
    for spec, tensor in _match(model, layout):
        flat = tensor.detach().reshape(-1)
        word = NUMPY_WORDS[spec.dtype]
        for start in range(0, flat.numel(), _BLOCK_WORDS):
            block = flat[start : start + _BLOCK_WORDS].to(TORCH_DTYPES[spec.dtype]).cpu()  # rounded where it is
            bits = block.contiguous().view(_BITS[spec.dtype]).numpy()
            yield bits.view(word.newbyteorder("=")).astype(word, copy=False)


def check_weights(
    model: nn.Module,
    layout: WeightLayout,
    weights: bytes | bytearray | memoryview,
    on_block: Callable[[Tensor, int, Tensor], None] = lambda *_: None,
) -> Digest:
    """Check weights against the model and its layout, and return the digest the model will have (`held_digest`).

    Names, shapes, the length and every weight (all must be finite) are checked: `IntegrityError` when they do not fit.
    The model's weights are not read, so another thread may sample with the model meanwhile. `on_block` gets every
    block: the model's tensor, the first weight in it, and the received weights, which are overwritten afterwards.
    """
    targets = _match(model, layout)
    view = memoryview(weights).cast("B")
    if view.nbytes != layout.size_bytes:
        raise IntegrityError(f"{view.nbytes} weight bytes do not fill a layout of {layout.size_bytes}")
    hasher = blake3()
    for spec, destination, start, block in _blocks(targets, view):
        # A NaN would pass every later comparison and make the peer sample garbage in good faith.
        if not torch.isfinite(block).all():
            raise IntegrityError(f"weights of {spec.name!r} are not all finite")
        hasher.update(_bytes(block.to(destination.dtype)))
        on_block(destination, start, block)
    return Digest(hasher.digest())


def copy_weights(model: nn.Module, layout: WeightLayout, weights: bytes | bytearray | memoryview) -> None:
    """Write checked weights into the model's own memory, converted to its dtype. No second copy is made."""
    with torch.no_grad():
        for _, destination, start, block in _blocks(_match(model, layout), memoryview(weights).cast("B")):
            destination.detach().view(-1)[start : start + block.numel()].copy_(block)


def held_digest(model: nn.Module, layout: WeightLayout) -> Digest:
    """BLAKE3 of the model's own weights in layout order: the policy's `weights_digest` if the dtypes agree."""
    hasher = blake3()
    for _, tensor in _match(model, layout):
        flat = tensor.detach().view(-1)
        for start in range(0, flat.numel(), _BLOCK_WORDS):
            hasher.update(_bytes(flat[start : start + _BLOCK_WORDS].cpu()))
    return Digest(hasher.digest())


def _bytes(words: Tensor) -> memoryview:
    """The bytes of contiguous words on the CPU."""
    return words.view(torch.uint8).numpy().data


def weights_digest(weights: bytes | bytearray | memoryview) -> Digest:
    """BLAKE3 of a complete weight byte string: `PolicyManifest.weights_digest`."""
    return chunk_digest(memoryview(weights))


def _blocks(
    targets: list[tuple[TensorSpec, Tensor]], view: memoryview
) -> Iterator[tuple[TensorSpec, Tensor, int, Tensor]]:
    """(spec, the model's tensor, first weight of the piece, the received weights), at most `_BLOCK_WORDS` a piece.

    The model's tensor is not read: its memory may be free at the moment (`FreedWeights`).
    """
    staging = np.empty(_BLOCK_WORDS, dtype=np.uint32)
    offset = 0
    for spec, tensor in targets:
        word = NUMPY_WORDS[spec.dtype]
        for start in range(0, tensor.numel(), _BLOCK_WORDS):
            count = min(_BLOCK_WORDS, tensor.numel() - start)
            # Copied first: torch would wrap the received, read-only bytes in a tensor it believes it may write to.
            block = staging.view(word.newbyteorder("="))[:count]
            block[:] = np.frombuffer(view, dtype=word, count=count, offset=offset)
            yield spec, tensor, start, torch.from_numpy(block).view(TORCH_DTYPES[spec.dtype])
            offset += count * word.itemsize


def _match(model: nn.Module, layout: WeightLayout) -> list[tuple[TensorSpec, Tensor]]:
    """Pair the layout with the model's tensors, or raise `IntegrityError` at the first difference."""
    layout.check()
    weights = _weights(model)
    if len(weights) != len(layout.tensors):
        raise IntegrityError(f"layout of {len(layout.tensors)} tensors for a model of {len(weights)}")
    pairs = []
    for spec, (name, tensor) in zip(layout.tensors, weights, strict=True):
        if spec.name != name or spec.shape != tuple(tensor.shape):
            raise IntegrityError(f"layout has {spec.name[:64]!r} {spec.shape}, but the model has {name!r}")
        if not tensor.is_contiguous():
            raise IntegrityError(f"the model's {name!r} is not contiguous and cannot be filled in place")
        pairs.append((spec, tensor))
    return pairs


def _weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and saved buffers, each once, adapters last: of a run that trains those alone, one end changes.

    By identity, not by address: on the meta device all addresses are 0.
    """
    saved = model.state_dict(keep_vars=True)
    seen: set[int] = set()
    weights = []
    for name, tensor in saved.items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not tensor.is_floating_point():
            raise ConfigError(
                f"weight {name!r} is of type {tensor.dtype}", remedy="Use a model whose weights are all floating-point."
            )
        weights.append((name, tensor))
    weights.sort(key=lambda each: is_adapter(each[0]))
    return weights
