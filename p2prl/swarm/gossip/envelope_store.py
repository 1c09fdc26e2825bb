"""Envelopes kept to answer peers that ask for them, and the storage receipts of groups that are pushed again."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.kinds import Kind

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


_ENTRY_BYTES = 256
"""Memory of an entry beyond its envelope: its digest, a tuple and its place in the table. Most envelopes are not much
larger than this, so a budget that did not count it would be no bound."""


class EnvelopeStore:
    """Raw envelopes by digest."""

    def __init__(self, budget_bytes: int) -> None:
        """`budget_bytes` bounds the memory of the recent envelopes; pinned ones do not count."""
        self._budget_bytes = budget_bytes
        self._recent: OrderedDict[Digest, tuple[Kind, bytes]] = OrderedDict()
        self._recent_bytes = 0
        self._pinned: dict[Digest, bytes] = {}

    def pin(self, name: Digest, raw: bytes) -> None:
        """Keep an envelope until it is unpinned."""
        self._pinned[name] = raw

    def unpin(self, name: Digest) -> None:
        """Release a pinned envelope."""
        self._pinned.pop(name, None)

    def is_pinned(self, name: Digest) -> bool:
        """Whether an envelope is kept until it is unpinned."""
        return name in self._pinned

    def add(self, opened: Opened) -> None:
        """Keep an envelope while the budget allows; the oldest is dropped first."""
        if opened.digest in self._recent or opened.digest in self._pinned:
            return
        self._recent[opened.digest] = opened.kind, opened.raw
        self._recent_bytes += len(opened.raw) + _ENTRY_BYTES
        while self._recent_bytes > self._budget_bytes:
            _, (_, oldest) = self._recent.popitem(last=False)
            self._recent_bytes -= len(oldest) + _ENTRY_BYTES

    def get(self, name: Digest) -> bytes:
        """The envelope, or nothing."""
        return self._pinned.get(name) or self._recent.get(name, (None, b""))[1]

    def kind_of_recent(self, name: Digest) -> Kind | None:
        """Kind of an envelope that is kept and not pinned."""
        return self._recent.get(name, (None, b""))[0]
