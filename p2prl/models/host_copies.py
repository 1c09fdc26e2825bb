"""Copies of a model's weights into host memory: what training waits for when a version is published.

From a card, words are rounded where they are and come through two pieces of pinned memory, one of which is filled while
the other is emptied. Torch's own copy moves float32 into pageable memory and rounds there, which takes many times as
long.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PINNED_WORDS = 1 << 22
"""Words of a piece of pinned memory: enough to hide the start of a copy."""


class HostCopies:
    """Copies from one device; `finish` before the copies are read."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """`dtype` is that of every copy."""
        self._pieces = [_Pinned(dtype) for _ in range(2)] if device.type == "cuda" else []

    def add(self, flat: Tensor, target: Tensor) -> None:
        """Copy `flat`, of shape (n,) on the device and of any type, into `target`, (n,) on the host, rounded."""
        if not self._pieces:
            target.copy_(flat)
            return
        for start in range(0, flat.numel(), _PINNED_WORDS):
            oldest = self._pieces.pop(0)
            oldest.empty()
            oldest.fill(flat[start : start + _PINNED_WORDS], target[start : start + _PINNED_WORDS])
            self._pieces.append(oldest)

    def finish(self) -> None:
        """Wait for the last words."""
        for piece in self._pieces:
            piece.empty()


class _Pinned:
    """A piece of pinned memory, and where its words go."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._memory = torch.empty(_PINNED_WORDS, dtype=dtype, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._place: Tensor | None = None

    def fill(self, source: Tensor, place: Tensor) -> None:
        """Begin to copy `source` here, on its way to `place`."""
        self._memory[: source.numel()].copy_(source.to(self._memory.dtype), non_blocking=True)
        self._copied.record(torch.cuda.current_stream(source.device))
        self._place = place

    def empty(self) -> None:
        """Copy what came to its place."""
        if self._place is not None:
            self._copied.synchronize()
            self._place.copy_(self._memory[: self._place.numel()])
            self._place = None
