"""Storage receipts by group: a group that is pushed again is answered from here, without a signature. Pure."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest

CAPACITY = 16_384
"""Groups remembered. The receipts behind them have at most 32 KiB each, and most name many groups."""


class ReceiptCache:
    """The newest storage receipt of each group, as the learner signed it."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._receipts: OrderedDict[Digest, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._receipts)

    def note(self, groups: tuple[bytes, ...], envelope: bytes) -> None:
        """Remember a verified receipt of the learner."""
        for name in groups:
            self._receipts[Digest(name)] = envelope
            self._receipts.move_to_end(Digest(name))
        while len(self._receipts) > self._capacity:
            self._receipts.popitem(last=False)

    def receipt_for(self, group: Digest) -> bytes:
        """The receipt's envelope; empty when none is remembered."""
        return self._receipts.get(group, b"")
