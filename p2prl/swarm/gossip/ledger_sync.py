"""Ledger pages between peers: choice of the peer to ask, rate limit of answers, size of a page.

The entries belong to the owner: a learner reads them from its journal, a scoreboard from its copy, and the receiver
verifies the chain itself. Pure: the owner drains `outbox`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import LedgerPage, LedgerQuery, Padding
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one

_QUERY_BURST = 16
"""Burst of queries a peer may send: queries evenly spaced when sent arrive in bursts behind weight chunks."""

_REMEMBERED_PEERS = 4_096
"""Peers whose queries are counted, those that left included: reconnecting must not buy a fresh allowance."""

_REMEMBERED_QUESTIONS = 64
"""Questions whose answer is awaited; an answer to an older one is not taken any more."""

_FIRST_ENTRY_BYTES = 1_024
"""Size of an entry that is expected before the first page: receipts of some groups."""

_MOST_DOUBLED = 3
"""A question that was not answered may have paid too little: the next one pays twice as much, at most three times."""

_PAGE_OVERHEAD_BYTES = 64
_ENTRY_OVERHEAD_BYTES = 5
"""msgpack's headers of a ledger page and of each entry in it, at most."""


class LedgerSync:
    """Sends ledger queries and pages, and limits the rate of queries answered."""

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._allowances: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()
        """Peer → (queries it may still make, as of when), the most recently heard peer last."""
        self._asked: OrderedDict[tuple[PeerId, int], None] = OrderedDict()
        """(peer, height it was asked for), the newest question last. A role and its mirror ask one peer for different
        heights at once."""
        self._entry_bytes = _FIRST_ENTRY_BYTES
        self._unanswered = 0
        """Questions since the last page."""
        self.outbox: list[tuple[PeerId, Wire]] = []

    def ask(self, heights: Mapping[PeerId, int], from_height: int) -> None:
        """Ask a random peer that claims more than `from_height` entries for the next ones.

        Not the peer that claims most: it may be lying, and would then be asked every time. To the peer this node may be
        a stranger, so it pays for the page that it expects.
        """
        ahead = [peer for peer, height in heights.items() if height > from_height]
        if ahead:
            peer = draw_one(ahead, self._rng)
            self._asked[peer, from_height] = None
            self._asked.move_to_end((peer, from_height))
            if len(self._asked) > _REMEMBERED_QUESTIONS:
                self._asked.popitem(last=False)
            self._pay(peer, heights[peer] - from_height)
            self.outbox.append((peer, LedgerQuery(from_height)))

    def _pay(self, peer: PeerId, ahead: int) -> None:
        entries = min(ahead, limits.MAX_LEDGER_ENTRIES_PER_REPLY)
        expected = entries * self._entry_bytes << min(self._unanswered, _MOST_DOUBLED)
        self._unanswered += 1
        page_bytes = min(limits.MAX_CONTROL_FRAME_BYTES, expected + _PAGE_OVERHEAD_BYTES)
        self.outbox.append((peer, Padding(bytes(page_bytes // limits.MAX_AMPLIFICATION))))

    def on_page(self, peer: PeerId, from_height: int, entries: Sequence[bytes]) -> bool:
        """Whether a page answers a question to a peer; it is answered then, and the next page is expected to have
        entries of this size. Pages that nobody asked for would let a stranger outnumber those who are asked."""
        if len(entries) > limits.MAX_LEDGER_ENTRIES_PER_REPLY or (peer, from_height) not in self._asked:
            return False
        del self._asked[peer, from_height]
        self._unanswered = 0
        if entries:
            self._entry_bytes = max(map(len, entries)) + _ENTRY_OVERHEAD_BYTES
        return True

    def may_query(self, peer: PeerId, now: float) -> bool:
        """Count a peer's query; False when it exceeds the rate limit and is ignored.

        Exceeding it is no fault: a second scoreboard behind the same peer may ask twice as often. The asker asks again.
        """
        left, since = self._allowances.pop(peer, (float(_QUERY_BURST), now))
        left = min(float(_QUERY_BURST), left + max(0.0, now - since) * limits.MAX_LEDGER_QUERIES_PER_S)
        granted = left >= 1
        self._allowances[peer] = (left - granted, now)
        if len(self._allowances) > _REMEMBERED_PEERS:
            self._allowances.popitem(last=False)
        return granted

    def answer(
        self, peer: PeerId, from_height: int, entries: Sequence[bytes], room_bytes: int = limits.MAX_CONTROL_FRAME_BYTES
    ) -> int:
        """Send as many of these entries as one message and `room_bytes` can hold; none if the first does not fit.

        Returns the bytes of the answer.
        """
        whole = room = min(room_bytes, limits.MAX_CONTROL_FRAME_BYTES) - _PAGE_OVERHEAD_BYTES
        page: list[bytes] = []
        for entry in entries[: limits.MAX_LEDGER_ENTRIES_PER_REPLY]:
            size = len(entry) + _ENTRY_OVERHEAD_BYTES
            if size > room:
                break
            room -= size
            page.append(entry)
        if whole < 0 or (entries and not page):
            return 0
        self.outbox.append((peer, LedgerPage(from_height, tuple(page))))
        return _PAGE_OVERHEAD_BYTES + whole - room
