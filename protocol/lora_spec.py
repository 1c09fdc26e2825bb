"""Low-rank adapters of a run: their rank, scale and layers, as the run manifest states them."""

from __future__ import annotations

import math

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.wire_codec import Wire

_MAX_ALPHA = 1e6
"""Far above any in use; beyond, adapters would overflow 16 bits."""


class LoraSpec(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Low-rank adapters beside frozen layers (arXiv 2106.09685): the layer's weights W become W + alpha / rank · B·A.

    Of a run with them only A and B are trained. They are the last tensors of the layout.
    """

    rank: int
    """Rows of A and columns of B."""
    alpha: float
    targets: tuple[str, ...]
    """Names of the layers, in order: the last part of their path in the model."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for the first impossible field."""
        _require(1 <= self.rank <= limits.MAX_LORA_RANK, "the rank of the adapters is out of range")
        _require(math.isfinite(self.alpha) and 0 < self.alpha <= _MAX_ALPHA, "alpha of the adapters is out of range")
        _require(1 <= len(self.targets) <= limits.MAX_LORA_TARGETS, "adapters must have 1 to 64 kinds of layers")
        _require(list(self.targets) == sorted(set(self.targets)), "layers of adapters must be distinct and in order")
        _require(
            all(len(name) <= limits.MAX_NAME_CHARS and name.isidentifier() and name.isascii() for name in self.targets),
            "layers of adapters must have plain names",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"manifest: {message}")
