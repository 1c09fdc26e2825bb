"""Memory of a model's weights, freed while no policy is needed and taken again before the next one is loaded.

The tensors stay, with their shapes and their places in the model: only what they point to goes.
"""

from __future__ import annotations

import torch
from torch import nn


class FreedWeights:
    """The storages that were freed, each once, and their sizes."""

    def __init__(self) -> None:
        self._storages: list[tuple[torch.UntypedStorage, int]] = []

    def free(self, model: nn.Module) -> None:
        """Free parameters and saved buffers. Constants that no policy brings, as positions' frequencies, stay."""
        if self._storages:
            return
        tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}  # tied ones once
        for tensor in tensors.values():
            size_bytes = tensor.untyped_storage().nbytes()
            if not size_bytes or size_bytes != tensor.nbytes:
                continue  # part of a larger storage, which others may use
            if not tensor.untyped_storage().resizable():
                # On a CPU, a digest has lent these bytes to numpy, and torch never frees such a storage in place.
                tensor.data = torch.empty_like(tensor)
            storage = tensor.untyped_storage()
            storage.resize_(0)
            self._storages.append((storage, size_bytes))

    def restore(self) -> None:
        """Take the memory again, with contents of no meaning."""
        for storage, size_bytes in self._storages:
            storage.resize_(size_bytes)
        self._storages = []
