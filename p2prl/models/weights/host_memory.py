"""Host memory into which a model's weights are copied again and again, for every version that is published."""

from __future__ import annotations

from contextlib import suppress

import torch


class HostMemory:
    """Memory of a fixed size, pinned for a card.

    A card writes into pinned memory by itself, as fast as its bus is; through pageable memory the copy takes a
    processor many times as long, and longer still beside other programs. Where the system pins nothing, it stays
    pageable.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        """`device` is the one that the copies come from."""
        self.data = bytearray(size_bytes)
        self.is_pinned = device.type == "cuda" and _pin(self.data, device)

    def __del__(self) -> None:
        """Unpin, before the memory goes back: the card would write to pages that belong to others by then."""
        if getattr(self, "is_pinned", False):
            torch.cuda.cudart().cudaHostUnregister(_address(self.data))  # type: ignore[no-untyped-call]


def _pin(data: bytearray, device: torch.device) -> bool:
    """Whether the driver pinned the memory."""
    refused = torch.cuda.cudart().cudaHostRegister(_address(data), len(data), 0)  # type: ignore[no-untyped-call]
    if int(refused) == 0:
        return True
    with suppress(RuntimeError):  # the refusal is kept and raised by the next kernel: by this one
        torch.zeros(1, device=device)
    return False


def _address(data: bytearray) -> int:
    return torch.frombuffer(data, dtype=torch.uint8).data_ptr()
